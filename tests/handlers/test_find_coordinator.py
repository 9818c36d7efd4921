"""FindCoordinator: the group's broker; the answers Apache Kafka 4.3.1 gave to the same requests."""

import pytest

from kwire.codec.messages.create_topics import CreateTopicsResponse
from kwire.codec.messages.find_coordinator import FindCoordinatorRequest
from kwire.errors import NotController
from kwire.types import CONSUMER_OFFSETS
from tests.support.handlers.group_node import GroupNode, group_node
from tests.support.raftmeta.clusters import node_config


async def ask(node: GroupNode, key: str, kind: int = 0, version: int = 6) -> tuple[int, int, str]:
    if version < 4:
        reply = await node.ask(FindCoordinatorRequest(key=key, key_type=kind), version)
        return reply.error_code, reply.node_id, reply.host
    request = FindCoordinatorRequest(coordinator_keys=[key], key_type=kind)
    (found,) = (await node.ask(request, version)).coordinators
    assert found.key == key
    return found.error_code, found.node_id, found.host


@pytest.mark.parametrize("version", range(7))
async def test_every_version_finds_the_leader(version: int) -> None:
    async with group_node() as node:
        assert await ask(node, "g", version=version) == (0, 1, "here")
        assert node.topic_creation.asked == []


async def test_the_first_one_makes_the_topic() -> None:
    async with group_node(topics=False) as node:
        assert await ask(node, "g") == (0, 1, "here")
        assert node.topic_creation.asked == [CONSUMER_OFFSETS]
        assert await ask(node, "h") == (0, 1, "here")
        assert node.topic_creation.asked == [CONSUMER_OFFSETS]
        assert (await node.join()).error_code == 79


async def test_a_topic_that_cannot_be_made_yet() -> None:
    async with group_node(topics=False) as node:
        node.topic_creation.failure = NotController()
        assert await ask(node, "g") == (15, -1, "")


@pytest.mark.parametrize(("factor", "code"), [(1, 38), (3, 15)])
async def test_a_topic_that_will_never_be_made(factor: int, code: int) -> None:
    """The answer has a text when waiting does not help; missing brokers may still register."""
    async with group_node(topics=False) as node:
        text = "kwire's broker(s) 1 do not copy partitions"
        node.topic_creation.made = CreateTopicsResponse.CreatableTopicResult(
            name=CONSUMER_OFFSETS, error_code=38, error_message=text
        )
        node.broker.services.config = node_config(offsets_topic_replication_factor=str(factor))
        reply = await node.ask(FindCoordinatorRequest(coordinator_keys=["g"], key_type=0), 6)
        (found,) = reply.coordinators
        assert (found.error_code, found.error_message) == (code, text if code == 38 else "")


@pytest.mark.parametrize(
    ("kind", "key", "code"),
    [
        (1, "x", 15),
        (2, "g:AAAAAAAAAAMAAAAAAAAABA:0", 15),
        (2, "g", 42),  # not group, topic id and partition
        (9, "g", 42),
    ],
)
async def test_what_is_not_coordinated_here(kind: int, key: str, code: int) -> None:
    async with group_node() as node:
        assert await ask(node, key, kind) == (code, -1, "")


async def test_a_listener_without_an_address() -> None:
    async with group_node() as node:
        request = FindCoordinatorRequest(coordinator_keys=["g", "h"])
        reply = await node.ask(request, listener="OTHER")
        assert [found.error_code for found in reply.coordinators] == [15, 15]
