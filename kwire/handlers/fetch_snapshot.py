"""FetchSnapshot (API key 59): a piece of a snapshot of the metadata."""

from kwire.codec.messages.fetch_snapshot import FetchSnapshotRequest, FetchSnapshotResponse
from kwire.errors import ClusterAuthorizationFailed, KafkaError
from kwire.handlers.dispatch import Context, handles
from kwire.handlers.shared.describing import CLUSTER
from kwire.handlers.shared.quorum import ask_quorum


def failed(request: FetchSnapshotRequest, error: KafkaError) -> FetchSnapshotResponse:
    return FetchSnapshotResponse(error_code=error.code)


@handles(FetchSnapshotRequest, failed=failed)
async def fetch_snapshot(context: Context, request: FetchSnapshotRequest) -> FetchSnapshotResponse:
    if not context.authorize("ClusterAction", "Cluster", CLUSTER):
        raise ClusterAuthorizationFailed
    return await ask_quorum(context, request, FetchSnapshotResponse)
