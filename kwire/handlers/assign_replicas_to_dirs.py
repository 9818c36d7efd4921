"""AssignReplicasToDirs (API key 73): a broker reports the log directories of its replicas."""

from kwire import errors
from kwire.codec.messages.assign_replicas_to_dirs import (
    AssignReplicasToDirsRequest,
    AssignReplicasToDirsResponse,
)
from kwire.errors import KafkaError
from kwire.handlers.dispatch import Context, handles
from kwire.handlers.shared.describing import CLUSTER
from kwire.raftmeta.controller.partitions import decide_assign_directories


def failed(request: AssignReplicasToDirsRequest, error: KafkaError) -> AssignReplicasToDirsResponse:
    return AssignReplicasToDirsResponse(error_code=error.code)


@handles(AssignReplicasToDirsRequest, failed=failed)
async def assign_replicas_to_dirs(
    context: Context, request: AssignReplicasToDirsRequest
) -> AssignReplicasToDirsResponse:
    if not context.authorize("ClusterAction", "Cluster", CLUSTER):
        raise errors.ClusterAuthorizationFailed
    return await context.controller.call(decide_assign_directories, request)
