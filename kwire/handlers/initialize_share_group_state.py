"""InitializeShareGroupState (API key 83): creates the states of share partitions.

Brokers send it to the coordinator of the share partitions.
"""

from kwire.codec.messages.initialize_share_group_state import (
    InitializeShareGroupStateRequest,
    InitializeShareGroupStateResponse,
)
from kwire.drive import run_in_slices, run_steps
from kwire.errors import KafkaError
from kwire.handlers.shared.context import CLUSTER, Context
from kwire.handlers.shared.handler import handles
from kwire.share.state.messages import initial_states, initialize_response, is_complete, refusing


def refuse(
    request: InitializeShareGroupStateRequest, error: KafkaError
) -> InitializeShareGroupStateResponse:
    return run_steps(initialize_response(refusing(request, error)))


@handles(InitializeShareGroupStateRequest, refuse=refuse)
async def initialize_share_group_state(
    context: Context, request: InitializeShareGroupStateRequest
) -> InitializeShareGroupStateResponse:
    context.check_allowed("ClusterAction", "Cluster", CLUSTER)
    if not is_complete(request):
        return InitializeShareGroupStateResponse()
    results = await context.share_states.initialize(initial_states(request))
    return await run_in_slices(initialize_response(results))
