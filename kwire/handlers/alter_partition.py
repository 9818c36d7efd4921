"""AlterPartition (API key 56): a leader reports in-sync replica sets to the controller."""

from kwire import errors
from kwire.codec.messages.alter_partition import AlterPartitionRequest, AlterPartitionResponse
from kwire.errors import KafkaError
from kwire.handlers.dispatch import Context, handles
from kwire.handlers.shared.describing import CLUSTER
from kwire.raftmeta.controller.partitions import decide_alter_partition


def failed(request: AlterPartitionRequest, error: KafkaError) -> AlterPartitionResponse:
    return AlterPartitionResponse(error_code=error.code)


@handles(AlterPartitionRequest, failed=failed)
async def alter_partition(
    context: Context, request: AlterPartitionRequest
) -> AlterPartitionResponse:
    if not context.authorize("ClusterAction", "Cluster", CLUSTER):
        raise errors.ClusterAuthorizationFailed
    return await context.controller.call(decide_alter_partition, request)
