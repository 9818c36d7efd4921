"""DeleteShareGroupState (API key 86): deletes the state of share partitions no longer in use.

Brokers send it to the coordinator of the share partitions.
"""

from kwire.codec.messages.delete_share_group_state import (
    DeleteShareGroupStateRequest,
    DeleteShareGroupStateResponse,
)
from kwire.drive import run_in_slices, run_steps
from kwire.errors import KafkaError
from kwire.handlers.shared.context import CLUSTER, Context
from kwire.handlers.shared.handler import handles
from kwire.share.state.messages import delete_response, is_complete, refusing, share_partitions


def refuse(
    request: DeleteShareGroupStateRequest, error: KafkaError
) -> DeleteShareGroupStateResponse:
    return run_steps(delete_response(refusing(request, error)))


@handles(DeleteShareGroupStateRequest, refuse=refuse)
async def delete_share_group_state(
    context: Context, request: DeleteShareGroupStateRequest
) -> DeleteShareGroupStateResponse:
    context.check_allowed("ClusterAction", "Cluster", CLUSTER)
    if not is_complete(request):
        return DeleteShareGroupStateResponse()
    results = await context.share_states.delete(share_partitions(request))
    return await run_in_slices(delete_response(results))
