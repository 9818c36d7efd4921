"""ReadShareGroupStateSummary (API key 87): returns states without their batches.

Brokers send it to the coordinator of the share partitions.
"""

from kwire.codec.messages.read_share_group_state_summary import (
    ReadShareGroupStateSummaryRequest,
    ReadShareGroupStateSummaryResponse,
)
from kwire.drive import run_in_slices, run_steps
from kwire.errors import KafkaError
from kwire.handlers.shared.context import CLUSTER, Context
from kwire.handlers.shared.handler import handles
from kwire.share.state.messages import is_complete, refusing, share_partitions, summary_response


def refuse(
    request: ReadShareGroupStateSummaryRequest, error: KafkaError
) -> ReadShareGroupStateSummaryResponse:
    return run_steps(summary_response(refusing(request, error)))


@handles(ReadShareGroupStateSummaryRequest, refuse=refuse)
async def read_share_group_state_summary(
    context: Context, request: ReadShareGroupStateSummaryRequest
) -> ReadShareGroupStateSummaryResponse:
    context.check_allowed("ClusterAction", "Cluster", CLUSTER)
    if not is_complete(request):
        return ReadShareGroupStateSummaryResponse()
    results = await context.share_states.summaries(share_partitions(request))
    return await run_in_slices(summary_response(results))
