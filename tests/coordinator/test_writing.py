"""The records that a coordinator writes, their batches, and the answers if a write fails."""

from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from itertools import count

import pytest
import trio
import trio.lowlevel
import trio.testing

from kwire.codec.messages.heartbeat import HeartbeatRequest
from kwire.codec.messages.offset_commit import OffsetCommitRequest
from kwire.codec.messages.offset_delete import OffsetDeleteRequest
from kwire.codec.messages.sync_group import SyncGroupRequest
from kwire.drive import Slices
from kwire.errors import (
    CoordinatorNotAvailable,
    GroupSubscribedToTopic,
    KafkaError,
    KafkaStorageError,
    NonEmptyGroup,
    NotCoordinator,
    NotEnoughReplicas,
    OffsetMetadataTooLarge,
    RebalanceInProgress,
    UnknownMemberId,
    UnknownServerError,
)
from kwire.group.deletion import delete_groups, delete_offsets
from tests.support.coordinator.node import (
    CLIENT,
    CommitPartition,
    Node,
    commit_request,
    fetch_offset,
    join_request,
    make_node,
    wait_result,
)

SLICED = ("kwire.group.coordinator", "kwire.group.deletion")
"""The modules that write large requests in slices."""


@pytest.mark.parametrize(
    ("failure", "max_bytes", "code"),
    [
        (NotEnoughReplicas(), 1_000_000, CoordinatorNotAvailable.code),
        (KafkaStorageError(), 1_000_000, NotCoordinator.code),
        (None, 400, UnknownServerError.code),
    ],
)
async def test_all_members_get_an_error_if_the_assignments_cannot_be_written(
    failure: KafkaError | None, max_bytes: int, code: int, autojump_clock: object
) -> None:
    """Invariant 71: members that wait for the leader's assignments join again at once."""
    node = make_node()
    node.service.on_elected(node.groups.partition_of("g"), 0)
    joins, codes = {}, {}

    async def join(member_id: str) -> None:
        reply = await node.groups.join(join_request(member_id), CLIENT)
        joins[reply.member_id] = reply

    def sync_request(member_id: str) -> SyncGroupRequest:
        assignments = []
        if joins[member_id].leader == member_id:
            assignments = [
                SyncGroupRequest.SyncGroupRequestAssignment(member_id=name, assignment=bytes(300))
                for name in joins
            ]
        return SyncGroupRequest(
            group_id="g",
            generation_id=joins[member_id].generation_id,
            member_id=member_id,
            must_name_protocol=False,
            assignments=assignments,
        )

    async def sync(member_id: str) -> None:
        codes[member_id] = (await node.groups.sync(sync_request(member_id))).error_code

    async with trio.open_nursery() as nursery:
        await nursery.start(node.service.run)
        await join("")
        nursery.start_soon(join, "")
        await trio.testing.wait_all_tasks_blocked()
        await join("c-1")
        await trio.testing.wait_all_tasks_blocked()
        leader = joins["c-1"].leader
        (follower,) = set(joins) - {leader}
        nursery.start_soon(sync, follower)
        await trio.testing.wait_all_tasks_blocked()
        node.log.failure, node.log.max_bytes = failure, max_bytes
        await sync(leader)
        await trio.testing.wait_all_tasks_blocked()
        assert codes == {leader: code, follower: code}
        heartbeat = HeartbeatRequest(group_id="g", generation_id=2, member_id=follower)
        reply = await wait_result(node.groups.heartbeat(heartbeat))
        assert reply.error_code == RebalanceInProgress.code
        # Once the log can be written again, the same members complete a generation.
        node.log.failure, node.log.max_bytes = None, 1_000_000
        nursery.start_soon(join, follower)
        await join(leader)
        await trio.testing.wait_all_tasks_blocked()
        assert {reply.generation_id for reply in joins.values()} == {3}
        nursery.start_soon(sync, follower)
        await sync(leader)
        await trio.testing.wait_all_tasks_blocked()
        assert codes == {leader: 0, follower: 0}
        nursery.cancel_scope.cancel()


async def test_records_above_max_message_bytes_are_refused() -> None:
    """Kafka's code; Apache Kafka 4.3.1 answered the same."""
    node = make_node()
    index = node.groups.partition_of("g")
    node.service.on_elected(index, 0)
    node.log.max_bytes = 200
    request = commit_request(1)
    request.topics[0].partitions = [
        CommitPartition(partition_index=0, committed_offset=1, committed_metadata=""),
        CommitPartition(partition_index=1, committed_offset=1, committed_metadata="m" * 200),
    ]
    with pytest.raises(UnknownServerError):
        await wait_result(node.groups.commit(request))
    assert index not in node.log.data
    assert await fetch_offset(node) == -1


def large_commit_request(
    offset: int, topics: int = 10, partitions: int = 330
) -> OffsetCommitRequest:
    """Return a commit of thousands of offsets."""
    request = commit_request(0)
    request.topics = [
        OffsetCommitRequest.OffsetCommitRequestTopic(
            name=f"t{number}",
            partitions=[
                CommitPartition(partition_index=p, committed_offset=offset, committed_metadata="")
                for p in range(partitions)
            ],
        )
        for number in range(topics)
    ]
    return request


async def count_commits(node: Node) -> Counter[int]:
    """Return the number of partitions by committed offset."""
    topics = await node.groups.fetch("g", None, require_stable=True)
    return Counter(p.committed_offset for topic in topics for p in topic.partitions)


@asynccontextmanager
async def pause_in_slices(
    monkeypatch: pytest.MonkeyPatch, between: Callable[[], Awaitable[None]]
) -> AsyncIterator[None]:
    """Await ``between`` in the middle of the first long work that is done in slices."""

    class PausingSlices:
        """Slices whose hundredth pause awaits ``between``."""

        count = 0

        async def pause(self) -> None:
            PausingSlices.count += 1
            if PausingSlices.count == 100:
                await between()

    with monkeypatch.context() as patch:
        for module in SLICED:
            patch.setattr(f"{module}.Slices", PausingSlices)
        yield
    assert PausingSlices.count >= 100


async def test_other_tasks_run_during_a_large_commit_or_deletion(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    ticks = count()
    for module in SLICED:
        monkeypatch.setattr(f"{module}.Slices", lambda: Slices(now=lambda: next(ticks) / 1_000))
    node = make_node()
    node.service.on_elected(node.groups.partition_of("g"), 0)
    turns = 0

    async def count_turns() -> None:
        nonlocal turns
        while True:
            turns += 1
            await trio.lowlevel.checkpoint()

    async with trio.open_nursery() as nursery:
        nursery.start_soon(count_turns)
        reply = await wait_result(node.groups.commit(large_commit_request(7)))
        codes = [
            (t.name, p.partition_index, p.error_code) for t in reply.topics for p in t.partitions
        ]
        assert codes == [(f"t{n}", p, 0) for n in range(10) for p in range(330)]
        assert turns > 40, "every 64 offsets"
        assert await count_commits(node) == {7: 3300}
        turns = 0
        (result,) = await delete_groups(node.groups, ["g"])
        assert result.error_code == 0
        assert turns > 1000, "every 2 offsets"
        nursery.cancel_scope.cancel()
    assert await node.groups.fetch("g", None, require_stable=True) == []
    assert await node.groups.list_groups([], []) == []


async def test_large_commit_is_refused_as_a_whole_if_a_member_joins_meanwhile(
    monkeypatch: pytest.MonkeyPatch, autojump_clock: object
) -> None:
    """Invariant 69: none of its offsets is written if a member joins while it is encoded."""
    node = make_node()
    node.service.on_elected(node.groups.partition_of("g"), 0)
    await wait_result(node.groups.commit(large_commit_request(1)))
    joins = []
    commits_at_join = []

    async with trio.open_nursery() as nursery:
        await nursery.start(node.service.run)

        async def join() -> None:
            commits_at_join.append(await count_commits(node))
            joins.append(await node.groups.join(join_request(), CLIENT))

        async with pause_in_slices(monkeypatch, join):
            with pytest.raises(UnknownMemberId):
                await wait_result(node.groups.commit(large_commit_request(2)))
        assert joins[0].error_code == 0
        assert commits_at_join == [{1: 3300}]
        assert await count_commits(node) == {1: 3300}
        nursery.cancel_scope.cancel()


async def test_fetch_during_a_large_commit_returns_the_offsets_before_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Invariant 11: a fetch during the commit returns what was committed before."""
    node = make_node()
    node.service.on_elected(node.groups.partition_of("g"), 0)
    await wait_result(node.groups.commit(large_commit_request(1)))
    commits_meanwhile = []

    async def fetch() -> None:
        commits_meanwhile.append(await count_commits(node))

    async with pause_in_slices(monkeypatch, fetch):
        await wait_result(node.groups.commit(large_commit_request(2)))
    assert commits_meanwhile == [{1: 3300}]
    assert await count_commits(node) == {2: 3300}


async def test_refused_deletion_of_a_large_group_removes_no_offset(
    monkeypatch: pytest.MonkeyPatch, autojump_clock: object
) -> None:
    """Invariant 76: a member that joins during the deletion can fetch its group's offsets."""
    node = make_node()
    node.service.on_elected(node.groups.partition_of("g"), 0)
    await wait_result(node.groups.commit(large_commit_request(1)))

    async with trio.open_nursery() as nursery:
        await nursery.start(node.service.run)

        async def join() -> None:
            await node.groups.join(join_request(), CLIENT)

        async with pause_in_slices(monkeypatch, join):
            (result,) = await delete_groups(node.groups, ["g"])
        assert result.error_code == NonEmptyGroup.code
        assert await count_commits(node) == {1: 3300}
        nursery.cancel_scope.cancel()


@pytest.mark.parametrize("partitions", [10, 500])
async def test_deletion_of_a_large_group_removes_offsets_committed_meanwhile(
    monkeypatch: pytest.MonkeyPatch, partitions: int
) -> None:
    node = make_node()
    node.service.on_elected(node.groups.partition_of("g"), 0)
    await wait_result(node.groups.commit(large_commit_request(1)))

    async def wait_committed() -> None:
        later = large_commit_request(2, 1, partitions)
        later.topics[0].name = "later"
        await wait_result(node.groups.commit(later))

    async with pause_in_slices(monkeypatch, wait_committed):
        (result,) = await delete_groups(node.groups, ["g"])
    assert result.error_code == 0
    assert await count_commits(node) == {}
    assert await node.groups.list_groups([], []) == []


def large_offset_deletion() -> OffsetDeleteRequest:
    """Return the deletion of the offsets of all topics of a large commit but two."""
    shape = OffsetDeleteRequest.OffsetDeleteRequestTopic
    partitions = [shape.OffsetDeleteRequestPartition(partition_index=p) for p in range(330)]
    topics = [shape(name=f"t{number}", partitions=partitions) for number in range(2, 10)]
    return OffsetDeleteRequest(group_id="g", topics=topics)


async def test_deletion_of_many_offsets_leaves_the_others() -> None:
    node = make_node()
    index = node.groups.partition_of("g")
    node.service.on_elected(index, 0)
    await wait_result(node.groups.commit(large_commit_request(1)))
    reply = await delete_offsets(node.groups, large_offset_deletion())
    assert [len(topic.partitions) for topic in reply.topics] == [330] * 8
    assert not any(p.error_code for topic in reply.topics for p in topic.partitions)
    assert await count_commits(node) == {1: 660}
    await check_successor_has_same_state(node, index)
    batch_count = len(node.log.data[index])
    await delete_offsets(node.groups, large_offset_deletion())
    assert len(node.log.data[index]) == batch_count, "nothing is left to delete"


async def test_many_offsets_stay_if_the_group_reads_their_topics_meanwhile(
    monkeypatch: pytest.MonkeyPatch, autojump_clock: object
) -> None:
    """Invariant 76: none is removed if a member joins while the tombstones are encoded."""
    node = make_node()
    node.service.on_elected(node.groups.partition_of("g"), 0)
    await wait_result(node.groups.commit(large_commit_request(1)))

    async with trio.open_nursery() as nursery:
        await nursery.start(node.service.run)

        async def join() -> None:
            await node.groups.join(join_request(), CLIENT)

        async with pause_in_slices(monkeypatch, join):
            reply = await delete_offsets(node.groups, large_offset_deletion())
        codes = {p.error_code for topic in reply.topics for p in topic.partitions}
        assert codes == {GroupSubscribedToTopic.code}
        assert await count_commits(node) == {1: 3300}
        nursery.cancel_scope.cancel()


async def test_successor_loads_the_state_after_a_large_commit_and_deletion() -> None:
    """Invariant 72: a coordinator that loads the partition has the state of this one."""
    node = make_node()
    index = node.groups.partition_of("g")
    node.service.on_elected(index, 0)
    await wait_result(node.groups.commit(large_commit_request(1)))
    request = large_commit_request(2, 2)
    request.topics[0].partitions[5].committed_metadata = "m" * 5000
    reply = await wait_result(node.groups.commit(request))
    codes = [p.error_code for topic in reply.topics for p in topic.partitions]
    assert codes == [0] * 5 + [OffsetMetadataTooLarge.code] + [0] * 654
    await check_successor_has_same_state(node, index)
    await delete_groups(node.groups, ["g"])
    await check_successor_has_same_state(node, index)


async def check_successor_has_same_state(node: Node, index: int) -> None:
    """Load the partition in another node and compare the states."""
    successor = make_node(node.log)
    async with trio.open_nursery() as nursery:
        await nursery.start(successor.service.run)
        successor.service.on_elected(index, 1)
        while successor.service.loading:
            await trio.lowlevel.checkpoint()
        state, new_state = (n.service._shards[index].machine for n in (node, successor))
        assert new_state.offsets == state.offsets
        assert new_state.groups == state.groups
        nursery.cancel_scope.cancel()


async def test_large_commit_or_deletion_is_refused_as_a_whole_when_the_disk_fills() -> None:
    """Its records are one batch, or it is refused before anything is written."""
    node = make_node()
    index = node.groups.partition_of("g")
    node.service.on_elected(index, 0)
    await wait_result(node.groups.commit(large_commit_request(1)))
    assert len(node.log.data[index]) == 1
    for room, max_bytes in ((0, 1_048_588), (1, 10_000)):
        node.log.room, node.log.max_bytes = room, max_bytes
        with pytest.raises((NotCoordinator, UnknownServerError)):
            await wait_result(node.groups.commit(large_commit_request(2)))
        (result,) = await delete_groups(node.groups, ["g"])
        assert result.error_code in (NotCoordinator.code, UnknownServerError.code)
        assert await count_commits(node) == {1: 3300}
        assert len(node.log.data[index]) == 1
    node.log.room, node.log.max_bytes = 1, 1_048_588
    (result,) = await delete_groups(node.groups, ["g"])
    assert result.error_code == 0
    assert await count_commits(node) == {}


async def test_small_commit_or_deletion_is_refused_as_a_whole_when_its_batch_is_too_large() -> None:
    """Two batches would leave a part of the request when the second one cannot be written."""
    node = make_node()
    index = node.groups.partition_of("g")
    node.service.on_elected(index, 0)
    request = large_commit_request(1, topics=1, partitions=100)
    await wait_result(node.groups.commit(request))
    assert len(node.log.data[index]) == 1
    node.log.max_bytes = 1_000
    with pytest.raises(UnknownServerError):
        await wait_result(node.groups.commit(request))
    (result,) = await delete_groups(node.groups, ["g"])
    assert result.error_code == UnknownServerError.code
    assert await count_commits(node) == {1: 100}
    assert len(node.log.data[index]) == 1


async def test_offsets_of_a_deleted_topic_are_removed_in_batches_that_fit(
    autojump_clock: object,
) -> None:
    """A clean-up need not be atomic: its batches are as many as ``max.message.bytes`` demands."""
    node = make_node()
    node.service.on_elected(node.groups.partition_of("g"), 0)
    await wait_result(node.groups.commit(large_commit_request(1, topics=1)))
    node.log.max_bytes = 1_000
    async with trio.open_nursery() as nursery:
        await nursery.start(node.service.run)
        await trio.sleep(8 * 24 * 3600)
        assert await count_commits(node) == {}
        nursery.cancel_scope.cancel()
