"""Fetch (API key 1) on a controller's listener: the metadata log, for voters and observers.

A broker's listener serves partitions of topics: :mod:`kwire.handlers.fetch`.
"""

from kwire.codec.messages.fetch import FetchRequest, FetchResponse
from kwire.errors import ClusterAuthorizationFailed, KafkaError
from kwire.handlers.dispatch import Context, handles
from kwire.handlers.shared.describing import CLUSTER
from kwire.handlers.shared.quorum import ask_quorum


def failed(request: FetchRequest, error: KafkaError) -> FetchResponse:
    return FetchResponse(error_code=error.code)


@handles(FetchRequest, failed=failed)
async def fetch_metadata_log(context: Context, request: FetchRequest) -> FetchResponse:
    if not context.authorize("ClusterAction", "Cluster", CLUSTER):
        raise ClusterAuthorizationFailed
    return await ask_quorum(context, request, FetchResponse)
