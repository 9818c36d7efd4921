"""The records of control batches, in partitions' logs and in the metadata log."""

from kwire.codec.schema import (
    Array,
    Int16,
    Int32,
    Int64,
    String,
    UInt16,
    Uuid,
    field,
    message,
    struct,
)
from kwire.types import ZERO_UUID


@message(versions="0")
class ControlRecordTypeSchema:
    type: Int16 = field("0+")


@message(versions="0")
class EndTxnMarker:
    coordinator_epoch: Int32 = field("0+")


@struct
class Voter:
    voter_id: Int32 = field("0+")
    voter_directory_id: Uuid = field("1+", default=ZERO_UUID)


@message(versions="0-1", flexible="0+")
class LeaderChangeMessage:
    version: Int16 = field("0+")
    leader_id: Int32 = field("0+")
    voters: Array[Voter] = field("0+", factory=list)
    granting_voters: Array[Voter] = field("0+", factory=list)


@message(versions="0", flexible="0+")
class SnapshotHeaderRecord:
    version: Int16 = field("0+")
    last_contained_log_timestamp: Int64 = field("0+")


@message(versions="0", flexible="0+")
class SnapshotFooterRecord:
    version: Int16 = field("0+")


@message(versions="0", flexible="0+")
class KRaftVersionRecord:
    version: Int16 = field("0+")
    k_raft_version: Int16 = field("0+")


@message(versions="0", flexible="0+")
class VotersRecord:
    version: Int16 = field("0+")

    @struct
    class Voter:
        voter_id: Int32 = field("0+")
        voter_directory_id: Uuid = field("0+")

        @struct
        class Endpoint:
            name: String = field("0+")
            host: String = field("0+")
            port: UInt16 = field("0+")

        endpoints: Array[Endpoint] = field("0+", factory=list)

        @struct
        class KRaftVersionFeature:
            min_supported_version: Int16 = field("0+")
            max_supported_version: Int16 = field("0+")

        k_raft_version_feature: KRaftVersionFeature = field("0+")

    voters: Array[Voter] = field("0+", factory=list)
