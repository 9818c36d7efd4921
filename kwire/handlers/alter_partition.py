"""AlterPartition (API key 56): a leader reports in-sync replica sets to the controller."""

from kwire.codec.messages.alter_partition import AlterPartitionRequest, AlterPartitionResponse
from kwire.handlers.shared.context import CLUSTER, Context
from kwire.handlers.shared.handler import handles
from kwire.raftmeta.controller.partitions import decide_alter_partition


@handles(AlterPartitionRequest)
async def alter_partition(
    context: Context, request: AlterPartitionRequest
) -> AlterPartitionResponse:
    context.check_allowed("ClusterAction", "Cluster", CLUSTER)
    return await context.decide(decide_alter_partition, request)
