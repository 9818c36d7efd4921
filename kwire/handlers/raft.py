"""The requests that the metadata quorum answers itself: Vote, BeginQuorumEpoch, EndQuorumEpoch,
its own Fetch and FetchSnapshot, and the requests that change its voters.

Nothing is decided here: the raft node gets each request, in the order of arrival.
"""

from typing import Any

from kwire.codec.messages.add_raft_voter import AddRaftVoterRequest, AddRaftVoterResponse
from kwire.codec.messages.begin_quorum_epoch import (
    BeginQuorumEpochRequest,
    BeginQuorumEpochResponse,
)
from kwire.codec.messages.end_quorum_epoch import EndQuorumEpochRequest, EndQuorumEpochResponse
from kwire.codec.messages.fetch import FetchRequest, FetchResponse
from kwire.codec.messages.fetch_snapshot import FetchSnapshotRequest, FetchSnapshotResponse
from kwire.codec.messages.remove_raft_voter import RemoveRaftVoterRequest, RemoveRaftVoterResponse
from kwire.codec.messages.update_raft_voter import UpdateRaftVoterRequest, UpdateRaftVoterResponse
from kwire.codec.messages.vote import VoteRequest, VoteResponse
from kwire.errors import ClusterAuthorizationFailed, KafkaError
from kwire.handlers.dispatch import Context, Handler, handles
from kwire.handlers.shared.describing import CLUSTER


def _by_the_quorum(
    request_type: type[Any], response_type: type[Any], *, versions: str, operation: str
) -> Handler[Any, Any]:
    """Return a handler that passes the request to the quorum; an error is the whole answer's."""

    def failed(request: Any, error: KafkaError) -> Any:
        return response_type(error_code=error.code)

    @handles(request_type, versions=versions, failed=failed)
    async def ask(context: Context, request: Any) -> Any:
        if not context.authorize(operation, "Cluster", CLUSTER):
            raise ClusterAuthorizationFailed
        return await context.quorum.handle(request)

    return ask


fetch = _by_the_quorum(FetchRequest, FetchResponse, versions="4-18", operation="ClusterAction")
vote = _by_the_quorum(VoteRequest, VoteResponse, versions="0-2", operation="ClusterAction")
begin_quorum_epoch = _by_the_quorum(
    BeginQuorumEpochRequest, BeginQuorumEpochResponse, versions="0-1", operation="ClusterAction"
)
end_quorum_epoch = _by_the_quorum(
    EndQuorumEpochRequest, EndQuorumEpochResponse, versions="0-1", operation="ClusterAction"
)
fetch_snapshot = _by_the_quorum(
    FetchSnapshotRequest, FetchSnapshotResponse, versions="0-1", operation="ClusterAction"
)
add_raft_voter = _by_the_quorum(
    AddRaftVoterRequest, AddRaftVoterResponse, versions="0-1", operation="Alter"
)
remove_raft_voter = _by_the_quorum(
    RemoveRaftVoterRequest, RemoveRaftVoterResponse, versions="0", operation="Alter"
)
update_raft_voter = _by_the_quorum(
    UpdateRaftVoterRequest, UpdateRaftVoterResponse, versions="0", operation="ClusterAction"
)
