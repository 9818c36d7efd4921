"""ReadShareGroupState (API key 84): returns the states to new leaders of share partitions.

Brokers send it to the coordinator of the share partitions.
"""

from kwire.codec.messages.read_share_group_state import (
    ReadShareGroupStateRequest,
    ReadShareGroupStateResponse,
)
from kwire.drive import run_in_slices, run_steps
from kwire.errors import KafkaError
from kwire.handlers.shared.context import CLUSTER, Context
from kwire.handlers.shared.handler import handles
from kwire.share.state.messages import is_complete, leader_epochs, read_response, refusing


def refuse(request: ReadShareGroupStateRequest, error: KafkaError) -> ReadShareGroupStateResponse:
    return run_steps(read_response(refusing(request, error)))


@handles(ReadShareGroupStateRequest, refuse=refuse)
async def read_share_group_state(
    context: Context, request: ReadShareGroupStateRequest
) -> ReadShareGroupStateResponse:
    context.check_allowed("ClusterAction", "Cluster", CLUSTER)
    if not is_complete(request):
        return ReadShareGroupStateResponse()
    results = await context.share_states.read(leader_epochs(request))
    return await run_in_slices(read_response(results))
