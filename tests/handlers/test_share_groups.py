"""The APIs of share groups: members, descriptions, offsets, deletion; the persister is a fake."""

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import Any

import pytest
import trio
from trio.testing import wait_all_tasks_blocked

from kwire.codec.messages import metadata_records as r
from kwire.codec.messages.alter_share_group_offsets import AlterShareGroupOffsetsRequest
from kwire.codec.messages.delete_groups import DeleteGroupsRequest
from kwire.codec.messages.delete_share_group_offsets import DeleteShareGroupOffsetsRequest
from kwire.codec.messages.describe_groups import DescribeGroupsRequest
from kwire.codec.messages.describe_share_group_offsets import DescribeShareGroupOffsetsRequest
from kwire.codec.messages.list_groups import ListGroupsRequest
from kwire.codec.messages.share_group_describe import ShareGroupDescribeRequest
from kwire.codec.messages.share_group_heartbeat import ShareGroupHeartbeatRequest
from kwire.errors import BY_CODE, CoordinatorNotAvailable, GroupIdNotFound, kafka_name
from kwire.share.persister import StateBatch
from tests.support.handlers.broker import topic_id
from tests.support.handlers.group_node import GroupNode, group_node
from tests.support.share.persister import MemoryPersister, Stored


@asynccontextmanager
async def share_node(*, level: int = 1, **settings: Any) -> AsyncIterator[GroupNode]:
    async with group_node({"group.share.assignment.interval.ms": "0", **settings}) as node:
        await node.broker.publish(r.FeatureLevelRecord(name="share.version", feature_level=level))
        yield node


def heartbeat(member_id: str = "m", epoch: int = 0, **fields: Any) -> ShareGroupHeartbeatRequest:
    if epoch == 0:
        fields = {"subscribed_topic_names": ["t"], **fields}
    return ShareGroupHeartbeatRequest(
        **{"group_id": "g", "member_id": member_id, "member_epoch": epoch, **fields}
    )


async def join(node: GroupNode) -> None:
    """Have a member join, and wait until its partitions are initialized and assigned."""
    await node.ask(heartbeat())
    await wait_all_tasks_blocked()
    answer = await node.ask(heartbeat(epoch=2))
    assert [t.partitions for t in answer.assignment.topic_partitions] == [[0, 1, 2]]


async def join_and_leave(node: GroupNode) -> None:
    await join(node)
    await node.ask(heartbeat(epoch=-1))


def describe(*group_ids: str) -> ShareGroupDescribeRequest:
    return ShareGroupDescribeRequest(group_ids=list(group_ids), include_authorized_operations=False)


def offsets_of(
    topics: dict[str, list[int]] | None, group: str = "g"
) -> DescribeShareGroupOffsetsRequest:
    shape = DescribeShareGroupOffsetsRequest.DescribeShareGroupOffsetsRequestGroup
    requested = None
    if topics is not None:
        topic = shape.DescribeShareGroupOffsetsRequestTopic
        requested = [topic(topic_name=name, partitions=each) for name, each in topics.items()]
    return DescribeShareGroupOffsetsRequest(groups=[shape(group_id=group, topics=requested)])


async def described_offsets(
    node: GroupNode, topics: dict[str, list[int]] | None = None
) -> dict[str, dict[int, tuple[int, int]]]:
    """Return start offset and lag by topic and partition."""
    (group,) = (await node.ask(offsets_of(topics))).groups
    assert not group.error_code
    return {
        topic.topic_name: {
            each.partition_index: (each.start_offset, each.lag) for each in topic.partitions
        }
        for topic in group.topics
    }


def alter(offsets: dict[str, dict[int, int]], group: str = "g") -> AlterShareGroupOffsetsRequest:
    shape = AlterShareGroupOffsetsRequest.AlterShareGroupOffsetsRequestTopic
    partition = shape.AlterShareGroupOffsetsRequestPartition
    return AlterShareGroupOffsetsRequest(
        group_id=group,
        topics=[
            shape(
                topic_name=name,
                partitions=[
                    partition(partition_index=number, start_offset=offset)
                    for number, offset in of_topic.items()
                ],
            )
            for name, of_topic in offsets.items()
        ],
    )


def delete_offsets(*names: str, group: str = "g") -> DeleteShareGroupOffsetsRequest:
    shape = DeleteShareGroupOffsetsRequest.DeleteShareGroupOffsetsRequestTopic
    topics = [shape(topic_name=name) for name in names]
    return DeleteShareGroupOffsetsRequest(group_id=group, topics=topics)


def error_of(answer: Any) -> str:
    return kafka_name(BY_CODE[answer.error_code]) if answer.error_code else ""


def errors_of(topics: Sequence[Any]) -> dict[str, dict[int, str]]:
    return {t.topic_name: {p.partition_index: error_of(p) for p in t.partitions} for t in topics}


async def test_member_joins_and_is_assigned_partitions_with_initialized_state() -> None:
    async with share_node() as node:
        await join(node)
        states = node.persister.states
        assert set(states) == {("g", topic_id("t"), number) for number in range(3)}
        assert {(s.state_epoch, s.start_offset) for s in states.values()} == {(2, -1)}
        answer = await node.ask(heartbeat(epoch=-1))
        assert (answer.member_epoch, answer.heartbeat_interval_ms) == (-1, 0)


async def test_failed_initialization_is_repeated_with_a_later_heartbeat() -> None:
    async with share_node() as node:
        node.persister.error_code = CoordinatorNotAvailable.code
        await node.ask(heartbeat())
        await wait_all_tasks_blocked()
        node.persister.error_code = 0
        await join(node)


@pytest.fixture
def gates(monkeypatch: pytest.MonkeyPatch) -> list[trio.Event]:
    """Have the first two initializations wait; return the event of each that lets it go on."""
    initialize, gates = MemoryPersister.initialize, [trio.Event(), trio.Event()]
    waiting = iter(gates)

    async def initialize_slowly(persister: MemoryPersister, *work: Any) -> dict[int, int]:
        await next(waiting).wait()
        return await initialize(persister, *work)

    monkeypatch.setattr(MemoryPersister, "initialize", initialize_slowly)
    return gates


async def test_slow_initialization_that_is_repeated_replaces_no_accepted_records(
    gates: list[trio.Event],
) -> None:
    """The persister may retry for longer than the interval after which heartbeats ask again."""
    async with share_node() as node:
        await node.ask(heartbeat())
        await wait_all_tasks_blocked()
        node.broker.wall.ms += 31_000
        await node.ask(heartbeat("n"))
        await wait_all_tasks_blocked()
        gates[0].set()
        await wait_all_tasks_blocked()
        answer = await node.ask(heartbeat("n"))
        assert answer.assignment.topic_partitions, "the partitions can be fetched"
        accepted = StateBatch(0, 9, 2, 1)
        key = "g", topic_id("t"), 0
        epoch = node.persister.states[key].state_epoch
        assert not await node.persister.write(*key, epoch, 0, 0, 10, [accepted])
        gates[1].set()
        await wait_all_tasks_blocked()
        assert node.persister.states[key].batches() == [accepted]


async def test_initialization_that_a_failed_deletion_of_the_group_overtakes_is_repeated(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The share coordinators of some partitions may be out of reach, and those of others not."""
    initialize, gate = MemoryPersister.initialize, trio.Event()

    async def initialize_others_later(
        persister: MemoryPersister, group_id: str, topic_id: bytes, states: Any
    ) -> dict[int, int]:
        codes = await initialize(persister, group_id, topic_id, {0: states[0]})
        await gate.wait()
        others = {number: state for number, state in states.items() if number != 0}
        return codes | await initialize(persister, group_id, topic_id, others)

    async def delete_first(
        persister: MemoryPersister, group_id: str, topic_id: bytes, partitions: Any
    ) -> dict[int, int]:
        persister.states.pop((group_id, topic_id, 0))
        return {n: CoordinatorNotAvailable.code if n else 0 for n in partitions}

    monkeypatch.setattr(MemoryPersister, "initialize", initialize_others_later)
    monkeypatch.setattr(MemoryPersister, "delete", delete_first)
    async with share_node() as node:
        await node.ask(heartbeat())
        await wait_all_tasks_blocked()
        await node.ask(heartbeat(epoch=-1))
        (result,) = (await node.ask(DeleteGroupsRequest(groups_names=["g"]))).results
        assert error_of(result) == "COORDINATOR_NOT_AVAILABLE"
        await node.ask(heartbeat("n"))
        gate.set()
        await wait_all_tasks_blocked()
        await node.ask(heartbeat("n"))
        await wait_all_tasks_blocked()
        answer = await node.ask(heartbeat("n"))
        assert [t.partitions for t in answer.assignment.topic_partitions] == [[0, 1, 2]]
        assert sorted(number for _, _, number in node.persister.states) == [0, 1, 2]


async def test_initialization_replaces_no_offsets_that_are_being_altered(
    gates: list[trio.Event],
) -> None:
    """The persister may retry for longer than the interval after which heartbeats initialize."""
    async with share_node() as node, trio.open_nursery() as nursery:
        nursery.start_soon(node.ask, alter({"t": {0: 5}}))
        await wait_all_tasks_blocked()
        node.broker.wall.ms += 31_000
        await node.ask(heartbeat())
        await wait_all_tasks_blocked()
        for gate in gates:
            gate.set()
            await wait_all_tasks_blocked()
        assert (await described_offsets(node))["t"][0] == (5, -5)


@pytest.mark.parametrize(
    ("fields", "error", "text"),
    [
        ({"member_id": ""}, "INVALID_REQUEST", "Invalid member id in the request."),
        ({"member_id": "m" * 37}, "INVALID_REQUEST", "Invalid member id in the request."),
        ({"member_id": " "}, "INVALID_REQUEST", "MemberId can't be empty."),
        ({"group_id": " "}, "INVALID_REQUEST", "GroupId can't be empty."),
        ({"rack_id": ""}, "INVALID_REQUEST", "RackId can't be empty."),
        (
            {"subscribed_topic_names": []},
            "INVALID_REQUEST",
            "SubscribedTopicNames must be set in first request.",
        ),
        ({"epoch": -2}, "INVALID_REQUEST", "MemberEpoch is invalid."),
        ({"epoch": 1}, "GROUP_ID_NOT_FOUND", "Share group g not found."),
    ],
)
async def test_bad_heartbeats_are_rejected_in_kafkas_words(
    fields: dict[str, Any], error: str, text: str
) -> None:
    async with share_node() as node:
        answer = await node.ask(heartbeat(**fields))
        assert (error_of(answer), answer.error_message) == (error, text)


async def test_share_version_0_serves_no_share_groups() -> None:
    async with share_node(level=0) as node:
        assert error_of(await node.ask(heartbeat())) == "UNSUPPORTED_VERSION"
        (group,) = (await node.ask(describe("g"))).groups
        assert error_of(group) == "UNSUPPORTED_VERSION"
        (group,) = (await node.ask(offsets_of(None))).groups
        assert error_of(group) == "UNSUPPORTED_VERSION"
        assert error_of(await node.ask(alter({}))) == "UNSUPPORTED_VERSION"
        assert error_of(await node.ask(delete_offsets())) == "UNSUPPORTED_VERSION"


async def test_share_group_is_described_with_its_members() -> None:
    async with share_node() as node:
        await node.ask(heartbeat(rack_id="r"), client_host="10.0.0.1")
        group, missing, empty = (await node.ask(describe("g", "x", ""))).groups
        assert (group.group_state, group.group_epoch, group.assignment_epoch) == ("Stable", 2, 2)
        assert group.assignor_name == "simple"
        (member,) = group.members
        assert (member.member_id, member.member_epoch, member.rack_id) == ("m", 2, "r")
        assert (member.client_id, member.client_host) == ("c", "/10.0.0.1")
        assert member.subscribed_topic_names == ["t"]
        assert member.assignment.topic_partitions == []
        assert (error_of(missing), missing.error_message) == (
            "GROUP_ID_NOT_FOUND",
            "Group x not found.",
        )
        assert error_of(empty) == "INVALID_GROUP_ID"


async def test_share_group_is_listed_and_not_described_as_a_classic_group() -> None:
    async with share_node() as node:
        await node.ask(heartbeat())
        (listed,) = (await node.ask(ListGroupsRequest(types_filter=["share"]))).groups
        assert (listed.group_id, listed.protocol_type, listed.group_state, listed.group_type) == (
            "g",
            "share",
            "Stable",
            "share",
        )
        (group,) = (await node.ask(DescribeGroupsRequest(groups=["g"]))).groups
        assert (group.group_state, error_of(group)) == ("Dead", "GROUP_ID_NOT_FOUND")
        assert group.error_message == "Group g is not a classic group."
        answer = await node.commit({"t": {0: 5}}, generation_id_or_member_epoch=-1)
        assert answer == {"t": {0: GroupIdNotFound.code}}


async def test_offsets_are_described_with_the_lag() -> None:
    async with share_node() as node:
        await join(node)
        assert await described_offsets(node) == {"t": {0: (-1, -1), 1: (-1, -1), 2: (-1, -1)}}
        await node.persister.write("g", topic_id("t"), 1, 2, 0, 0, 0, [])
        assert await described_offsets(node, {"t": [1]}) == {"t": {1: (0, 0)}}
        assert await described_offsets(node, {"missing": [0]}) == {"missing": {0: (-1, -1)}}
        (group,) = (await node.ask(offsets_of(None, group="x"))).groups
        assert (error_of(group), group.topics) == ("", [])


async def test_offsets_are_altered_while_the_group_is_empty() -> None:
    async with share_node() as node:
        await join(node)
        answer = await node.ask(alter({"t": {0: 5}}))
        assert (error_of(answer), answer.error_message) == (
            "NON_EMPTY_GROUP",
            "The group is not empty.",
        )
        await node.ask(heartbeat(epoch=-1))
        answer = await node.ask(alter({"t": {0: 5, 9: 1}, "missing": {0: 1}}))
        assert errors_of(answer.responses) == {
            "t": {0: "", 9: "UNKNOWN_TOPIC_OR_PARTITION"},
            "missing": {0: "UNKNOWN_TOPIC_OR_PARTITION"},
        }
        assert (await described_offsets(node))["t"][0] == (5, -5)


async def test_offset_that_is_altered_to_none_is_reset_with_the_next_member() -> None:
    async with share_node() as node:
        await node.ask(alter({"t": {0: 5, 1: 6}}))
        answer = await node.ask(alter({"t": {0: -1, 1: 7}}))
        assert errors_of(answer.responses) == {"t": {0: "", 1: ""}}
        assert await described_offsets(node) == {"t": {0: (-1, -1), 1: (7, -7)}}


async def test_altered_offsets_stay_though_those_of_other_partitions_fail() -> None:
    async with share_node() as node:
        fenced = ("g", topic_id("t"), 1)
        node.persister.states[fenced] = Stored(state_epoch=9, start_offset=0)
        answer = await node.ask(alter({"t": {-1: 3, 0: 5, 1: 7}}))
        assert errors_of(answer.responses) == {
            "t": {-1: "UNKNOWN_TOPIC_OR_PARTITION", 0: "", 1: "FENCED_STATE_EPOCH"}
        }
        assert await described_offsets(node) == {"t": {0: (5, -5)}}
        del node.persister.states[fenced]
        node.broker.wall.ms += 60_000  # Initializations without a result are repeated now.
        await node.ask(heartbeat())
        await wait_all_tasks_blocked()
        assert (await described_offsets(node))["t"][0] == (5, -5)


async def test_altered_offsets_create_a_group() -> None:
    async with share_node() as node:
        answer = await node.ask(alter({"u": {0: 7}}, group="new"))
        assert errors_of(answer.responses) == {"u": {0: ""}}
        (group,) = (await node.ask(describe("new"))).groups
        assert (group.group_state, group.group_epoch) == ("Empty", 1)
        answer = await node.ask(alter({"missing": {0: 7}}, group="other"))
        (group,) = (await node.ask(describe("other"))).groups
        assert error_of(group) == "GROUP_ID_NOT_FOUND"


async def test_offsets_that_the_persister_rejects_are_reported() -> None:
    async with share_node() as node:
        node.persister.error_code = CoordinatorNotAvailable.code
        answer = await node.ask(alter({"u": {0: 7}}))
        assert errors_of(answer.responses) == {"u": {0: "COORDINATOR_NOT_AVAILABLE"}}
        assert await described_offsets(node) == {}


async def test_offsets_are_deleted_while_the_group_is_empty() -> None:
    async with share_node() as node:
        assert error_of(await node.ask(delete_offsets("t"))) == "GROUP_ID_NOT_FOUND"
        await join(node)
        assert error_of(await node.ask(delete_offsets("t"))) == "NON_EMPTY_GROUP"
        await node.ask(heartbeat(epoch=-1))
        answer = await node.ask(delete_offsets("t", "u", "missing"))
        assert [(t.topic_name, error_of(t), t.error_message) for t in answer.responses] == [
            ("t", "", None),
            ("u", "UNKNOWN_TOPIC_OR_PARTITION", "There is no offset information to delete."),
            ("missing", "UNKNOWN_TOPIC_OR_PARTITION", None),
        ]
        assert node.persister.states == {}
        assert await described_offsets(node) == {}


async def test_deletion_of_offsets_that_failed_can_be_repeated() -> None:
    async with share_node() as node:
        await join_and_leave(node)
        node.persister.error_code = CoordinatorNotAvailable.code
        (topic,) = (await node.ask(delete_offsets("t"))).responses
        assert error_of(topic) == "COORDINATOR_NOT_AVAILABLE"
        node.persister.error_code = 0
        (topic,) = (await node.ask(delete_offsets("t"))).responses
        assert error_of(topic) == ""
        assert node.persister.states == {}


async def test_member_that_joins_during_a_deletion_of_offsets_gets_readable_partitions() -> None:
    async with share_node() as node, trio.open_nursery() as nursery:
        await join_and_leave(node)
        node.persister.deletion = deletion = trio.Event()
        nursery.start_soon(node.ask, delete_offsets("t"))
        await wait_all_tasks_blocked()
        answer = await node.ask(heartbeat("n"))
        await wait_all_tasks_blocked()
        deletion.set()
        await wait_all_tasks_blocked()
        answer = await node.ask(heartbeat("n", epoch=answer.member_epoch))
        assert [t.partitions for t in answer.assignment.topic_partitions] == [[0, 1, 2]]
        assert sorted(number for _, _, number in node.persister.states) == [0, 1, 2]


async def test_deleted_group_leaves_no_state() -> None:
    async with share_node() as node:
        await join(node)
        request = DeleteGroupsRequest(groups_names=["g"])
        (result,) = (await node.ask(request)).results
        assert error_of(result) == "NON_EMPTY_GROUP"
        await node.ask(heartbeat(epoch=-1))
        node.persister.error_code = CoordinatorNotAvailable.code
        (result,) = (await node.ask(request)).results
        assert error_of(result) == "COORDINATOR_NOT_AVAILABLE"
        node.persister.error_code = 0
        (result,) = (await node.ask(request)).results
        assert error_of(result) == ""
        assert node.persister.states == {}
        (group,) = (await node.ask(describe("g"))).groups
        assert error_of(group) == "GROUP_ID_NOT_FOUND"
