"""DescribeCluster on controllers' listeners, which test_admin.py does not compare with Kafka."""

import pytest

from kwire.codec.apis import ListenerType
from kwire.codec.messages.describe_cluster import DescribeClusterRequest
from kwire.codec.messages.metadata_records import RegisterControllerRecord
from kwire.handlers.describe_cluster import CONTROLLERS, describe_cluster
from kwire.handlers.shared.context import Context
from kwire.raftmeta.metadata.image_change import apply
from tests.support.handlers.admin_node import admin_node


@pytest.mark.parametrize(
    ("listener", "ports"), [("CONTROLLER", {1: 9093, 2: 1}), ("SECOND", {2: 2}), ("THIRD", {})]
)
async def test_response_has_controllers_with_their_port_on_the_listener(
    listener: str, ports: dict[int, int]
) -> None:
    endpoint = RegisterControllerRecord.ControllerEndpoint
    other = RegisterControllerRecord(
        controller_id=2,
        incarnation_id=b"c" * 16,
        zk_migration_ready=False,
        end_points=[
            endpoint(name=name, host="localhost", port=port, security_protocol=0)
            for name, port in (("CONTROLLER", 1), ("SECOND", 2))
        ],
    )
    async with admin_node() as node:
        current = node.services.current
        current.image, _ = apply(current.image, [other])
        context = Context(
            services=node.services, listener_type=ListenerType.CONTROLLER, listener=listener
        )
        request = DescribeClusterRequest(
            include_cluster_authorized_operations=False, endpoint_type=CONTROLLERS
        )
        answer = await describe_cluster(context, request)
        assert answer is not None
        assert {controller.broker_id: controller.port for controller in answer.brokers} == ports
