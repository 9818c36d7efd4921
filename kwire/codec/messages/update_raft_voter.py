"""UpdateRaftVoter (API key 82): its request and its response."""

from kwire.codec.schema import (
    Array,
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


@message(api_key=82, versions="0", flexible="0+")
class UpdateRaftVoterRequest(Request["UpdateRaftVoterResponse"]):
    cluster_id: NullableString = field("0+", nullable="0+")
    current_leader_epoch: Int32 = field("0+")
    voter_id: Int32 = field("0+")
    voter_directory_id: Uuid = field("0+")

    @struct
    class Listener:
        name: String = field("0+")
        host: String = field("0+")
        port: UInt16 = field("0+")

    listeners: Array[Listener] = field("0+", factory=list)

    @struct
    class KRaftVersionFeature:
        min_supported_version: Int16 = field("0+")
        max_supported_version: Int16 = field("0+")

    k_raft_version_feature: KRaftVersionFeature = field("0+")


@message(api_key=82, versions="0", flexible="0+")
class UpdateRaftVoterResponse:
    throttle_time_ms: Int32 = field("0+", default=0)
    error_code: Int16 = field("0+", default=0)

    @struct
    class CurrentLeader:
        leader_id: Int32 = field("0+", default=-1)
        leader_epoch: Int32 = field("0+", default=-1)
        host: String = field("0+", default="")
        port: Int32 = field("0+", default=0)

    current_leader: CurrentLeader = field("0+", factory=CurrentLeader, tag=0)
