"""Fetch (API key 1) on a controller's listener: the metadata log, for voters and observers.

On a broker's listener, :mod:`kwire.handlers.fetch` serves the partitions of topics.
"""

from kwire.codec.messages.fetch import FetchRequest, FetchResponse
from kwire.handlers.shared.context import CLUSTER, Context
from kwire.handlers.shared.handler import handles
from kwire.handlers.shared.quorum import ask_quorum


@handles(FetchRequest)
async def fetch_metadata_log(context: Context, request: FetchRequest) -> FetchResponse:
    context.check_allowed("ClusterAction", "Cluster", CLUSTER)
    return await ask_quorum(context, request, FetchResponse)
