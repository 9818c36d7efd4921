"""DescribeCluster (API key 60): the nodes of the cluster.

A broker's listener lists brokers (fenced brokers only on request), a controller's listener lists
controllers; requesting the other kind is an error.
"""

from typing import Final

from kwire import errors
from kwire.codec.apis import ListenerType
from kwire.codec.messages.describe_cluster import DescribeClusterRequest, DescribeClusterResponse
from kwire.handlers.shared.authorized_operations import cluster_operations
from kwire.handlers.shared.client_view import any_controller_id, with_endpoints
from kwire.handlers.shared.context import CLUSTER, Context
from kwire.handlers.shared.handler import handles
from kwire.raftmeta.metadata.image import NodeEndpoint

Node = DescribeClusterResponse.DescribeClusterBroker

BROKERS: Final = 1
CONTROLLERS: Final = 2


@handles(DescribeClusterRequest, refused={"cluster_id": ""})
async def describe_cluster(
    context: Context, request: DescribeClusterRequest
) -> DescribeClusterResponse:
    own = BROKERS if context.listener_type is ListenerType.BROKER else CONTROLLERS
    if own == CONTROLLERS:
        context.check_allowed("Alter", "Cluster", CLUSTER)
    if request.endpoint_type not in (BROKERS, CONTROLLERS):
        raise errors.UnsupportedEndpointType(f"Unsupported endpoint type {request.endpoint_type}")
    if request.endpoint_type != own:
        kind = "BROKER" if own == BROKERS else "CONTROLLER"
        raise errors.MismatchedEndpointType(
            f"The request was sent to an endpoint of type {kind}, but we wanted an endpoint of "
            f"type {'CONTROLLER' if own == BROKERS else 'BROKER'}"
        )
    image = context.image
    if own == BROKERS:
        brokers = sorted(image.brokers.values(), key=lambda broker: broker.id)
        nodes = [
            _node(broker.id, endpoint, broker.rack, broker.fenced)
            for broker, endpoint in with_endpoints(brokers, context.listener)
            if request.include_fenced_brokers or not broker.fenced
        ]
        controller_id = any_controller_id(context, image)
    else:
        controllers = sorted(image.controllers.values(), key=lambda controller: controller.id)
        nodes = [
            _node(controller.id, endpoint, None, False)
            for controller, endpoint in with_endpoints(controllers, context.listener)
        ]
        leader_id = context.quorum.leader().leader_id
        controller_id = -1 if leader_id is None else leader_id
    response = DescribeClusterResponse(
        endpoint_type=own,
        cluster_id=context.services.cluster_id,
        controller_id=controller_id,
        brokers=nodes,
    )
    if request.include_cluster_authorized_operations:
        response.cluster_authorized_operations = cluster_operations(context)
    return response


def _node(node_id: int, endpoint: NodeEndpoint, rack: str | None, fenced: bool) -> Node:
    return Node(
        broker_id=node_id, host=endpoint.host, port=endpoint.port, rack=rack, is_fenced=fenced
    )
