"""ControllerRegistration (API key 70): its request and its response."""

from kwire.codec.schema import (
    Array,
    Bool,
    Int16,
    Int32,
    NullableString,
    Request,
    String,
    UInt16,
    Uuid,
    field,
    message,
    struct,
)


@message(api_key=70, versions="0", flexible="0+")
class ControllerRegistrationRequest(Request["ControllerRegistrationResponse"]):
    controller_id: Int32 = field("0+")
    incarnation_id: Uuid = field("0+")
    zk_migration_ready: Bool = field("0+")

    @struct
    class Listener:
        name: String = field("0+")
        host: String = field("0+")
        port: UInt16 = field("0+")
        security_protocol: Int16 = field("0+")

    listeners: Array[Listener] = field("0+", factory=list)

    @struct
    class Feature:
        name: String = field("0+")
        min_supported_version: Int16 = field("0+")
        max_supported_version: Int16 = field("0+")

    features: Array[Feature] = field("0+", factory=list)


@message(api_key=70, versions="0", flexible="0+")
class ControllerRegistrationResponse:
    throttle_time_ms: Int32 = field("0+", default=0)
    error_code: Int16 = field("0+", default=0)
    error_message: NullableString = field("0+", default=None, nullable="0+")
