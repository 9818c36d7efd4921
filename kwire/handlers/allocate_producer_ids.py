"""AllocateProducerIds (API key 67): gives a broker a block of producer ids."""

from kwire.codec.messages.allocate_producer_ids import (
    AllocateProducerIdsRequest,
    AllocateProducerIdsResponse,
)
from kwire.handlers.shared.context import CLUSTER, Context
from kwire.handlers.shared.handler import handles
from kwire.raftmeta.controller.producer_id_blocks import decide_allocate_producer_ids


@handles(AllocateProducerIdsRequest, refused={"producer_id_start": -1, "producer_id_len": 0})
async def allocate_producer_ids(
    context: Context, request: AllocateProducerIdsRequest
) -> AllocateProducerIdsResponse:
    context.check_allowed("ClusterAction", "Cluster", CLUSTER)
    return await context.decide(decide_allocate_producer_ids, request)
