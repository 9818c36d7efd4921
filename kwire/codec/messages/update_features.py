"""UpdateFeatures (API key 57): its request and its response."""

from kwire.codec.schema import (
    Array,
    Bool,
    Int8,
    Int16,
    Int32,
    NullableString,
    Request,
    String,
    field,
    message,
    struct,
)


@message(api_key=57, versions="0-2", flexible="0+")
class UpdateFeaturesRequest(Request["UpdateFeaturesResponse"]):
    timeout_ms: Int32 = field("0+", default=60000)

    @struct
    class FeatureUpdateKey:
        feature: String = field("0+")
        max_version_level: Int16 = field("0+")
        allow_downgrade: Bool = field("0", default=False)
        upgrade_type: Int8 = field("1+", default=1)

    feature_updates: Array[FeatureUpdateKey] = field("0+", factory=list)
    validate_only: Bool = field("1+", default=False)


@message(api_key=57, versions="0-2", flexible="0+")
class UpdateFeaturesResponse:
    throttle_time_ms: Int32 = field("0+", default=0)
    error_code: Int16 = field("0+", default=0)
    error_message: NullableString = field("0+", default=None, nullable="0+")

    @struct
    class UpdatableFeatureResult:
        feature: String = field("0+")
        error_code: Int16 = field("0+", default=0)
        error_message: NullableString = field("0+", default=None, nullable="0+")

    results: Array[UpdatableFeatureResult] = field("0-1", factory=list, ignorable=True)


def widen_request(request: UpdateFeaturesRequest, version: int) -> UpdateFeaturesRequest:
    """Convert version 0's ``allow_downgrade`` to an upgrade type: 1 upgrade, 2 safe downgrade."""
    if version == 0:
        for update in request.feature_updates:
            update.upgrade_type = 2 if update.allow_downgrade else 1
            update.allow_downgrade = False
    return request
