"""BrokerRegistration (API key 62): its request and its response."""

from kwire.codec.schema import (
    Array,
    Bool,
    Int16,
    Int32,
    Int64,
    NullableString,
    Request,
    String,
    UInt16,
    Uuid,
    field,
    message,
    struct,
)


@message(api_key=62, versions="0-4", flexible="0+")
class BrokerRegistrationRequest(Request["BrokerRegistrationResponse"]):
    broker_id: Int32 = field("0+")
    cluster_id: String = field("0+")
    incarnation_id: Uuid = field("0+")

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
    rack: NullableString = field("0+", nullable="0+")
    is_migrating_zk_broker: Bool = field("1+", default=False)
    log_dirs: Array[Uuid] = field("2+", factory=list, ignorable=True)
    previous_broker_epoch: Int64 = field("3+", default=-1, ignorable=True)


@message(api_key=62, versions="0-4", flexible="0+")
class BrokerRegistrationResponse:
    throttle_time_ms: Int32 = field("0+", default=0)
    error_code: Int16 = field("0+", default=0)
    broker_epoch: Int64 = field("0+", default=-1)
