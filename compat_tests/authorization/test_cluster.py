"""Three nodes with an authorizer: their own requests, and those that they forward.

Several controllers have to be super users, because they elect a leader before they know any ACL.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest
from confluent_kafka import KafkaError, Producer

from compat_tests.cluster.nodes import BROKER, REPLICATED, Cluster
from compat_tests.harness.wait import eventually
from kwire.codec.messages.create_acls import CreateAclsRequest
from kwire.codec.messages.create_topics import CreateTopicsRequest
from kwire.codec.messages.describe_acls import DescribeAclsRequest
from kwire.security.acls import ALL, ALLOW, ANY, LITERAL, OPERATIONS, RESOURCE_TYPES
from kwire.testing.wire import WireClient
from tests.support.authorization.matrix import SETTINGS

pytestmark = pytest.mark.single
STRANGER = "127.1.0.1"
TOPIC_AUTHORIZATION_FAILED, INVALID_REPLICATION_FACTOR = 29, 38
RESOURCES = (
    ("Topic", "*"),
    ("Group", "*"),
    ("Cluster", "kafka-cluster"),
    ("TransactionalId", "*"),
)


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[Cluster]:
    """A cluster without nodes."""
    nodes = Cluster(tmp_path / "cluster", {**SETTINGS, **REPLICATED}, False, ("data",))
    yield nodes
    nodes.close()


def test_voters_that_are_super_users_elect_a_leader(cluster: Cluster, broker_kind: str) -> None:
    cluster.overrides = {**cluster.overrides, "super.users": "User:ANONYMOUS"}
    for number in (1, 2, 3):
        cluster.add(number, broker_kind)
    cluster.start()
    assert create(cluster.brokers[0].port, "t", STRANGER) == 0


def test_nodes_need_permissions_and_forward_requests_for_their_clients(
    cluster: Cluster, broker_kind: str
) -> None:
    cluster.add(1, broker_kind)
    for number in (2, 3):
        cluster.add(number, broker_kind, BROKER)
    cluster.start()
    acls = [acl(kind, name, ALL, "127.0.0.1") for kind, name in RESOURCES]
    acls.append(acl("Topic", "mine", OPERATIONS["Create"], STRANGER))
    with cluster.brokers[0].client() as client:
        created = client.call(CreateAclsRequest(creations=acls), 3)
    assert [result.error_code for result in created.results] == [0] * len(acls)
    for node in cluster.brokers:
        eventually(partial(knows, node.port, len(acls)), "the ACLs on every node")
    for node in cluster.brokers:
        assert create(node.port, f"theirs-{node.id}", STRANGER) == TOPIC_AUTHORIZATION_FAILED
        assert create(node.port, f"theirs-{node.id}", "127.0.0.1") == 0
    assert create(cluster.brokers[1].port, "mine", STRANGER) == 0
    restarted = cluster.brokers[2]
    restarted.stop()
    restarted.launch()
    cluster.wait_complete()
    assert produce(cluster.bootstrap, "mine") is None, "followers still fetch"


def produce(address: str, topic: str) -> KafkaError | None:
    """Produce a record that all in-sync replicas acknowledge; return the error, if any."""
    errors: list[KafkaError | None] = []
    producer = Producer({"bootstrap.servers": address, "acks": "all", "message.timeout.ms": 60_000})
    producer.produce(topic, b"v", on_delivery=lambda error, message: errors.append(error))
    producer.flush(120)
    (error,) = errors
    return error


def acl(kind: str, name: str, operation: int, host: str) -> CreateAclsRequest.AclCreation:
    return CreateAclsRequest.AclCreation(
        resource_type=RESOURCE_TYPES[kind],
        resource_name=name,
        resource_pattern_type=LITERAL,
        principal="User:ANONYMOUS",
        host=host,
        operation=operation,
        permission_type=ALLOW,
    )


def knows(port: int, count: int) -> bool:
    """Return whether a broker knows this many ACLs."""
    everything = DescribeAclsRequest(
        resource_type_filter=ANY,
        resource_name_filter=None,
        pattern_type_filter=ANY,
        principal_filter=None,
        host_filter=None,
        operation=ANY,
        permission_type=ANY,
    )
    with WireClient("127.0.0.1", port) as client:
        return sum(len(each.acls) for each in client.call(everything, 3).resources) == count


def create(port: int, name: str, source: str) -> int:
    """Create a topic as a client at an address; return the error code.

    A node that a busy machine stops for seconds is not available for replicas meanwhile.
    """
    topic = CreateTopicsRequest.CreatableTopic(name=name, num_partitions=1, replication_factor=3)
    codes: list[int] = []

    def is_final() -> bool:
        with WireClient("127.0.0.1", port, source=source) as client:
            response = client.call(CreateTopicsRequest(topics=[topic], timeout_ms=20_000), 7)
        codes.append(response.topics[0].error_code)
        return codes[-1] != INVALID_REPLICATION_FACTOR

    eventually(is_final, "three nodes for replicas")
    return codes[-1]
