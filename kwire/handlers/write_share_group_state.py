"""WriteShareGroupState (API key 85): stores changes of the states of share partitions.

Partition leaders send it to the coordinator of the share partitions.
"""

from kwire.codec.messages.write_share_group_state import (
    WriteShareGroupStateRequest,
    WriteShareGroupStateResponse,
)
from kwire.drive import run_in_slices, run_steps
from kwire.errors import KafkaError
from kwire.handlers.shared.context import CLUSTER, Context
from kwire.handlers.shared.handler import handles
from kwire.share.state.messages import is_complete, refusing, write_response, writes


def refuse(request: WriteShareGroupStateRequest, error: KafkaError) -> WriteShareGroupStateResponse:
    return run_steps(write_response(refusing(request, error)))


@handles(WriteShareGroupStateRequest, refuse=refuse)
async def write_share_group_state(
    context: Context, request: WriteShareGroupStateRequest
) -> WriteShareGroupStateResponse:
    context.check_allowed("ClusterAction", "Cluster", CLUSTER)
    if not is_complete(request):
        return WriteShareGroupStateResponse()
    results = await context.share_states.write(writes(request))
    return await run_in_slices(write_response(results))
