"""AssignReplicasToDirs (API key 73): a broker reports the log directories of its replicas."""

from kwire.codec.messages.assign_replicas_to_dirs import (
    AssignReplicasToDirsRequest,
    AssignReplicasToDirsResponse,
)
from kwire.handlers.shared.context import CLUSTER, Context
from kwire.handlers.shared.handler import handles
from kwire.raftmeta.controller.partitions import decide_assign_directories


@handles(AssignReplicasToDirsRequest)
async def assign_replicas_to_dirs(
    context: Context, request: AssignReplicasToDirsRequest
) -> AssignReplicasToDirsResponse:
    context.check_allowed("ClusterAction", "Cluster", CLUSTER)
    return await context.decide(decide_assign_directories, request)
