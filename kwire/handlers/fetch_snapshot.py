"""FetchSnapshot (API key 59): a piece of a metadata snapshot."""

from kwire.codec.messages.fetch_snapshot import FetchSnapshotRequest, FetchSnapshotResponse
from kwire.handlers.shared.context import CLUSTER, Context
from kwire.handlers.shared.handler import handles
from kwire.handlers.shared.quorum import ask_quorum


@handles(FetchSnapshotRequest)
async def fetch_snapshot(context: Context, request: FetchSnapshotRequest) -> FetchSnapshotResponse:
    context.check_allowed("ClusterAction", "Cluster", CLUSTER)
    return await ask_quorum(context, request, FetchSnapshotResponse)
