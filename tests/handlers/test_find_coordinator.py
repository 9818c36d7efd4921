"""FindCoordinator: the broker of a group, with the answers that Apache Kafka 4.3.1 gave."""

import pytest

from kwire.codec.messages.create_topics import CreateTopicsResponse
from kwire.codec.messages.find_coordinator import FindCoordinatorRequest
from kwire.errors import NotController
from kwire.net.framing import Disconnect
from kwire.raftmeta.broker.session_lease import SessionLease
from kwire.types import CONSUMER_OFFSETS, SHARE_GROUP_STATE
from tests.support.handlers.group_node import GroupNode, group_node
from tests.support.raftmeta.clusters import node_config
from tests.support.share.coordinator import share_node


async def ask(node: GroupNode, key: str, kind: int = 0, version: int = 6) -> tuple[int, int, str]:
    if version < 4:
        reply = await node.ask(FindCoordinatorRequest(key=key, key_type=kind), version)
        return reply.error_code, reply.node_id, reply.host
    request = FindCoordinatorRequest(coordinator_keys=[key], key_type=kind)
    (coordinator,) = (await node.ask(request, version)).coordinators
    assert coordinator.key == key
    return coordinator.error_code, coordinator.node_id, coordinator.host


@pytest.mark.parametrize("version", range(7))
async def test_every_version_returns_the_leader(version: int) -> None:
    async with group_node() as node:
        assert await ask(node, "g", version=version) == (0, 1, "here")
        assert node.topic_creation.topics == []


async def test_first_request_creates_the_offsets_topic() -> None:
    async with group_node(topics=False) as node:
        assert await ask(node, "g") == (0, 1, "here")
        assert node.topic_creation.topics == [CONSUMER_OFFSETS]
        assert await ask(node, "h") == (0, 1, "here")
        assert node.topic_creation.topics == [CONSUMER_OFFSETS]
        assert (await node.join()).error_code == 79


async def test_coordinator_is_not_available_while_the_topic_cannot_be_created() -> None:
    async with group_node(topics=False) as node:
        node.topic_creation.failure = NotController()
        assert await ask(node, "g") == (15, -1, "")


@pytest.mark.parametrize("factor", ["1", "3"])
async def test_coordinator_is_not_available_while_no_broker_takes_replicas(factor: str) -> None:
    """Apache Kafka answers so, too, while all log directories are cordoned."""
    async with group_node(topics=False) as node:
        node.topic_creation.result = CreateTopicsResponse.CreatableTopicResult(
            name=CONSUMER_OFFSETS,
            error_code=38,
            error_message="some brokers have all their log directories cordoned.",
        )
        node.broker.current.config = node_config(offsets_topic_replication_factor=factor)
        assert await ask(node, "g") == (15, -1, "")


@pytest.mark.parametrize(
    ("kind", "key", "code"),
    [
        (2, "g", 42),  # not group, topic id and partition
        (2, "g:h:0", 42),
        (2, ":AAAAAAAAAAMAAAAAAAAABA:0", 42),
        (2, "g:AAAAAAAAAAMAAAAAAAAABA:x", 42),
        (9, "g", 42),
    ],
)
async def test_key_that_names_nothing_is_rejected(kind: int, key: str, code: int) -> None:
    async with group_node() as node:
        assert await ask(node, key, kind) == (code, -1, "")


@pytest.mark.parametrize("key", ["g:AAAAAAAAAAMAAAAAAAAABA:0", "a:b:AAAAAAAAAAMAAAAAAAAABA:17"])
async def test_share_partition_is_coordinated_by_the_leader_of_its_state(key: str) -> None:
    async with group_node(topics=False) as node:
        coordinator = share_node().coordinator
        node.broker.replace(share_states=lambda: coordinator)
        assert await ask(node, key, 2) == (0, 1, "here")
        assert node.topic_creation.topics == [SHARE_GROUP_STATE]


async def test_clients_before_version_6_know_no_share_partitions() -> None:
    async with group_node() as node:
        assert await ask(node, "g:AAAAAAAAAAMAAAAAAAAABA:0", 2, version=5) == (42, -1, "")


async def test_listener_without_an_address_has_no_coordinator() -> None:
    async with group_node() as node:
        request = FindCoordinatorRequest(coordinator_keys=["g", "h"])
        reply = await node.ask(request, listener="OTHER")
        assert [coordinator.error_code for coordinator in reply.coordinators] == [15, 15]


async def test_broker_whose_lease_is_over_does_not_name_itself() -> None:
    """Another broker may coordinate the group; the client looks for it elsewhere."""
    async with group_node() as node:
        lease = SessionLease(9.0)
        node.broker.replicas.lease = lease
        lease.end = node.broker.replicas.now()
        with pytest.raises(Disconnect):
            await ask(node, "g")
        lease.keep(node.broker.replicas.now())
        assert await ask(node, "g") == (0, 1, "here")
