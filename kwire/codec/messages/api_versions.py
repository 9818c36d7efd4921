"""ApiVersions (API key 18): its request and its response."""

from kwire.codec.schema import (
    Array,
    Bool,
    Int16,
    Int32,
    Int64,
    NullableString,
    Request,
    String,
    field,
    message,
    struct,
)


@message(api_key=18, versions="0-5", flexible="3+")
class ApiVersionsRequest(Request["ApiVersionsResponse"]):
    client_software_name: String = field("3+", default="", ignorable=True)
    client_software_version: String = field("3+", default="", ignorable=True)
    cluster_id: NullableString = field("5+", default=None, nullable="5+", ignorable=True)
    node_id: Int32 = field("5+", default=-1, ignorable=True)


@message(api_key=18, versions="0-5", flexible="3+")
class ApiVersionsResponse:
    error_code: Int16 = field("0+", default=0)

    @struct
    class ApiVersion:
        api_key: Int16 = field("0+")
        min_version: Int16 = field("0+")
        max_version: Int16 = field("0+")

    api_keys: Array[ApiVersion] = field("0+", factory=list)
    throttle_time_ms: Int32 = field("1+", default=0, ignorable=True)

    @struct
    class SupportedFeatureKey:
        name: String = field("3+", default="")
        min_version: Int16 = field("3+", default=0)
        max_version: Int16 = field("3+", default=0)

    supported_features: Array[SupportedFeatureKey] = field(
        "3+", factory=list, tag=0, ignorable=True
    )
    finalized_features_epoch: Int64 = field("3+", default=-1, tag=1, ignorable=True)

    @struct
    class FinalizedFeatureKey:
        name: String = field("3+", default="")
        max_version_level: Int16 = field("3+", default=0)
        min_version_level: Int16 = field("3+", default=0)

    finalized_features: Array[FinalizedFeatureKey] = field(
        "3+", factory=list, tag=2, ignorable=True
    )
    zk_migration_ready: Bool = field("3+", default=False, tag=3, ignorable=True)


def widen_request(request: ApiVersionsRequest, version: int) -> ApiVersionsRequest:
    """Set the software name and version "unknown" for clients before version 3."""
    if version < 3:
        request.client_software_name = request.client_software_version = "unknown"
    return request


def narrow_response(
    response: ApiVersionsResponse, version: int, request: ApiVersionsRequest
) -> ApiVersionsResponse:
    """Leave out features whose lowest level is 0, which clients before version 4 cannot read.

    Source: KAFKA-17492.
    """
    if version < 4:
        response.supported_features = [
            feature for feature in response.supported_features if feature.min_version > 0
        ]
    return response
