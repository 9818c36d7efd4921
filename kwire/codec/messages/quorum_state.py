"""The file `quorum-state` of the metadata log, as JSON."""

from kwire.codec.schema import (
    Int32,
    Int64,
    NullableArray,
    String,
    Uuid,
    field,
    message,
    struct,
)
from kwire.types import ZERO_UUID


@message(versions="0-1", flexible="0+")
class QuorumState:
    """Epoch, vote and leader of a raft node.

    Version 1 adds voted_directory_id and drops cluster_id, applied_offset, current_voters.
    """

    cluster_id: String = field("0", default="")
    leader_id: Int32 = field("0+", default=-1)
    leader_epoch: Int32 = field("0+", default=-1)
    voted_id: Int32 = field("0+", default=-1)
    voted_directory_id: Uuid = field("1+", default=ZERO_UUID)
    applied_offset: Int64 = field("0", default=0)

    @struct
    class Voter:
        voter_id: Int32 = field("0", default=0)

    current_voters: NullableArray[Voter] = field("0", factory=list, nullable="0")
