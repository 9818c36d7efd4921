"""Records that coordinators write, their batches, and the answers if a write fails."""

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
from kwire.codec.messages.sync_group import SyncGroupRequest
from kwire.drive import Slices
from kwire.errors import (
    CoordinatorNotAvailable,
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
from tests.support.coordinator.node import OLD, Node, Spot, committing, fetched, joining, node


@pytest.mark.parametrize(
    ("failure", "max_bytes", "code"),
    [
        (NotEnoughReplicas(), 1_000_000, CoordinatorNotAvailable.code),
        (KafkaStorageError(), 1_000_000, NotCoordinator.code),
        (None, 400, UnknownServerError.code),
    ],
)
async def test_every_member_learns_that_the_assignments_were_not_written(
    failure: KafkaError | None, max_bytes: int, code: int, autojump_clock: object
) -> None:
    """Invariant 71: those that wait for the leader's assignments join again at once."""
    one = node()
    one.service.on_elected(one.groups.partition_of("g"), 0)
    joined, codes = {}, {}

    async def join(member_id: str) -> None:
        reply = await one.groups.join(joining(member_id), OLD)
        joined[reply.member_id] = reply

    def syncing(member_id: str) -> SyncGroupRequest:
        assignments = []
        if joined[member_id].leader == member_id:
            assignments = [
                SyncGroupRequest.SyncGroupRequestAssignment(member_id=name, assignment=bytes(300))
                for name in joined
            ]
        return SyncGroupRequest(
            group_id="g",
            generation_id=joined[member_id].generation_id,
            member_id=member_id,
            must_name_protocol=False,
            assignments=assignments,
        )

    async def sync(member_id: str) -> None:
        codes[member_id] = (await one.groups.sync(syncing(member_id))).error_code

    async with trio.open_nursery() as nursery:
        await nursery.start(one.service.run)
        await join("")
        nursery.start_soon(join, "")
        await trio.testing.wait_all_tasks_blocked()
        await join("c-1")
        await trio.testing.wait_all_tasks_blocked()
        leader = joined["c-1"].leader
        (follower,) = set(joined) - {leader}
        nursery.start_soon(sync, follower)
        await trio.testing.wait_all_tasks_blocked()
        one.log.failure, one.log.max_bytes = failure, max_bytes
        await sync(leader)
        await trio.testing.wait_all_tasks_blocked()
        assert codes == {leader: code, follower: code}
        beat = HeartbeatRequest(group_id="g", generation_id=2, member_id=follower)
        assert (await one.groups.heartbeat(beat)).error_code == RebalanceInProgress.code
        # once it can be written again, the same members find together
        one.log.failure, one.log.max_bytes = None, 1_000_000
        nursery.start_soon(join, follower)
        await join(leader)
        await trio.testing.wait_all_tasks_blocked()
        assert {reply.generation_id for reply in joined.values()} == {3}
        nursery.start_soon(sync, follower)
        await sync(leader)
        await trio.testing.wait_all_tasks_blocked()
        assert codes == {leader: 0, follower: 0}
        nursery.cancel_scope.cancel()


async def test_records_above_max_message_bytes_are_refused_not_written() -> None:
    """Kafka's code; Apache Kafka 4.3.1 answered the same."""
    one = node()
    index = one.groups.partition_of("g")
    one.service.on_elected(index, 0)
    one.log.max_bytes = 200
    request = committing(1)
    request.topics[0].partitions = [
        Spot(partition_index=0, committed_offset=1, committed_metadata=""),
        Spot(partition_index=1, committed_offset=1, committed_metadata="m" * 200),
    ]
    with pytest.raises(UnknownServerError):
        await one.groups.commit(request)
    assert index not in one.log.data
    assert await fetched(one) == -1


async def test_records_of_one_decision_may_need_several_batches() -> None:
    one = node()
    one.log.max_bytes = 1_000
    index = one.groups.partition_of("g")
    one.service.on_elected(index, 0)
    request = committing(0)
    request.topics[0].partitions = [
        Spot(partition_index=p, committed_offset=p, committed_metadata="") for p in range(100)
    ]
    await one.groups.commit(request)
    assert len(one.log.data[index]) > 5
    assert all(len(stored) < 1_100 for stored in one.log.data[index])
    (result,) = await one.groups.delete(["g"])
    assert result.error_code == 0
    assert await fetched(one) == -1


def many(offset: int, topics: int = 10, partitions: int = 330) -> OffsetCommitRequest:
    """A commit of thousands of offsets."""
    request = committing(0)
    request.topics = [
        OffsetCommitRequest.OffsetCommitRequestTopic(
            name=f"t{number}",
            partitions=[
                Spot(partition_index=p, committed_offset=offset, committed_metadata="")
                for p in range(partitions)
            ],
        )
        for number in range(topics)
    ]
    return request


async def committed(one: Node) -> Counter[int]:
    """Count the commits of each offset."""
    topics = await one.groups.fetch("g", None, require_stable=True)
    return Counter(spot.committed_offset for topic in topics for spot in topic.partitions)


@asynccontextmanager
async def pausing(
    monkeypatch: pytest.MonkeyPatch, between: Callable[[], Awaitable[None]]
) -> AsyncIterator[None]:
    """Let something happen in the middle of the first long work that goes on in slices."""

    class Sliced:
        """Slices of which the hundredth is the one with the pause."""

        count = 0

        async def pause(self) -> None:
            Sliced.count += 1
            if Sliced.count == 100:
                await between()

    with monkeypatch.context() as patch:
        patch.setattr("kwire.group.service.Slices", Sliced)
        yield
    assert Sliced.count >= 100


async def test_others_have_turns_during_a_commit_or_deletion_of_thousands_of_offsets(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    ticks = count()
    monkeypatch.setattr(
        "kwire.group.service.Slices", lambda: Slices(now=lambda: next(ticks) / 10_000)
    )
    one = node()
    one.service.on_elected(one.groups.partition_of("g"), 0)
    turns = 0

    async def others() -> None:
        nonlocal turns
        while True:
            turns += 1
            await trio.lowlevel.checkpoint()

    async with trio.open_nursery() as nursery:
        nursery.start_soon(others)
        reply = await one.groups.commit(many(7))
        codes = [
            (t.name, p.partition_index, p.error_code) for t in reply.topics for p in t.partitions
        ]
        assert codes == [(f"t{n}", p, 0) for n in range(10) for p in range(330)]
        assert turns > 100, "every 20 offsets"
        assert await committed(one) == {7: 3300}
        turns = 0
        (result,) = await one.groups.delete(["g"])
        assert result.error_code == 0
        assert turns > 100, "every 20 offsets"
        nursery.cancel_scope.cancel()
    assert await one.groups.fetch("g", None, require_stable=True) == []
    assert await one.groups.list_groups([], []) == []


async def test_a_commit_of_thousands_of_offsets_is_fenced_as_a_whole(
    monkeypatch: pytest.MonkeyPatch, autojump_clock: object
) -> None:
    """Invariant 69: nothing of it lands if a member joins while it is encoded."""
    one = node()
    one.service.on_elected(one.groups.partition_of("g"), 0)
    await one.groups.commit(many(1))
    joined = []
    seen = []

    async with trio.open_nursery() as nursery:
        await nursery.start(one.service.run)

        async def join() -> None:
            seen.append(await committed(one))
            joined.append(await one.groups.join(joining(), OLD))

        async with pausing(monkeypatch, join):
            with pytest.raises(UnknownMemberId):
                await one.groups.commit(many(2))
        assert joined[0].error_code == 0
        assert seen == [{1: 3300}]
        assert await committed(one) == {1: 3300}
        nursery.cancel_scope.cancel()


async def test_a_commit_of_thousands_of_offsets_is_seen_as_a_whole(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Invariant 11: a fetch during the commit returns what was committed before."""
    one = node()
    one.service.on_elected(one.groups.partition_of("g"), 0)
    await one.groups.commit(many(1))
    seen = []

    async def look() -> None:
        seen.append(await committed(one))

    async with pausing(monkeypatch, look):
        await one.groups.commit(many(2))
    assert seen == [{1: 3300}]
    assert await committed(one) == {2: 3300}


async def test_a_deletion_that_is_refused_has_removed_nothing(
    monkeypatch: pytest.MonkeyPatch, autojump_clock: object
) -> None:
    """Invariant 76: a member that joins during the deletion finds the offsets of its group."""
    one = node()
    one.service.on_elected(one.groups.partition_of("g"), 0)
    await one.groups.commit(many(1))

    async with trio.open_nursery() as nursery:
        await nursery.start(one.service.run)

        async def join() -> None:
            await one.groups.join(joining(), OLD)

        async with pausing(monkeypatch, join):
            (result,) = await one.groups.delete(["g"])
        assert result.error_code == NonEmptyGroup.code
        assert await committed(one) == {1: 3300}
        nursery.cancel_scope.cancel()


@pytest.mark.parametrize("partitions", [10, 500])
async def test_a_deletion_takes_what_was_committed_meanwhile(
    monkeypatch: pytest.MonkeyPatch, partitions: int
) -> None:
    one = node()
    one.service.on_elected(one.groups.partition_of("g"), 0)
    await one.groups.commit(many(1))

    async def commit() -> None:
        later = many(2, 1, partitions)
        later.topics[0].name = "later"
        await one.groups.commit(later)

    async with pausing(monkeypatch, commit):
        (result,) = await one.groups.delete(["g"])
    assert result.error_code == 0
    assert await committed(one) == {}
    assert await one.groups.list_groups([], []) == []


async def test_what_thousands_of_offsets_leave_is_found_again_in_the_log() -> None:
    """Invariant 72: a coordinator that loads the partition knows what this one knows."""
    one = node()
    index = one.groups.partition_of("g")
    one.service.on_elected(index, 0)
    await one.groups.commit(many(1))
    request = many(2, 2)
    request.topics[0].partitions[5].committed_metadata = "m" * 5000
    reply = await one.groups.commit(request)
    codes = [spot.error_code for topic in reply.topics for spot in topic.partitions]
    assert codes == [0] * 5 + [OffsetMetadataTooLarge.code] + [0] * 654
    await loaded_alike(one, index)
    await one.groups.delete(["g"])
    await loaded_alike(one, index)


async def loaded_alike(one: Node, index: int) -> None:
    two = node(one.log)
    async with trio.open_nursery() as nursery:
        await nursery.start(two.service.run)
        two.service.on_elected(index, 1)
        while two.service.loading:
            await trio.lowlevel.checkpoint()
        ours, theirs = (n.service._shards[index].machine for n in (one, two))
        assert ours.offsets == theirs.offsets
        assert ours.groups == theirs.groups
        nursery.cancel_scope.cancel()


async def test_a_commit_of_thousands_of_offsets_is_not_written_if_the_first_batch_fails() -> None:
    one = node()
    index = one.groups.partition_of("g")
    one.service.on_elected(index, 0)
    one.log.failure = NotEnoughReplicas()
    with pytest.raises(CoordinatorNotAvailable):
        await one.groups.commit(many(1))
    assert index not in one.log.data
    assert await committed(one) == {}
    one.log.failure, one.log.max_bytes = None, 10_000
    await one.groups.commit(many(1))
    assert len(one.log.data[index]) > 10
    assert all(len(stored) <= 10_000 for stored in one.log.data[index])
    await loaded_alike(one, index)
