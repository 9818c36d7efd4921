"""What coordinators write, in which pieces, and what they say if it fails."""

import pytest
import trio
import trio.lowlevel
import trio.testing

from kwire.codec.messages.heartbeat import HeartbeatRequest
from kwire.codec.messages.offset_commit import OffsetCommitRequest
from kwire.codec.messages.sync_group import SyncGroupRequest
from kwire.errors import (
    CoordinatorNotAvailable,
    KafkaError,
    KafkaStorageError,
    NotCoordinator,
    NotEnoughReplicas,
    RebalanceInProgress,
    UnknownServerError,
)
from kwire.types import TopicPartition
from tests.coordinator.node import OLD, FakeLog, Spot, committing, fetched, joining, node


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
    one.service.elected(one.groups.partition_of("g"), 0)
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
    one.service.elected(index, 0)
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
    one.service.elected(index, 0)
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


async def test_other_requests_come_between_the_pieces_of_a_large_one() -> None:
    """Commits and deletions of thousands of offsets; what they leave is whole all the same."""
    one = node()
    one.service.elected(one.groups.partition_of("g"), 0)
    turns = 0

    async def others() -> None:
        nonlocal turns
        while True:
            turns += 1
            await trio.lowlevel.checkpoint()

    request = committing(0)
    request.topics = [
        OffsetCommitRequest.OffsetCommitRequestTopic(
            name=f"t{number}",
            partitions=[
                Spot(partition_index=p, committed_offset=p, committed_metadata="")
                for p in range(330)
            ],
        )
        for number in range(10)
    ]
    async with trio.open_nursery() as nursery:
        nursery.start_soon(others)
        reply = await one.groups.commit(request)
        codes = [
            (t.name, p.partition_index, p.error_code) for t in reply.topics for p in t.partitions
        ]
        assert codes == [(f"t{n}", p, 0) for n in range(10) for p in range(330)]
        assert turns > 8, "of 16 pauses"
        topics = await one.groups.fetch("g", None, require_stable=True)
        assert sum(len(topic.partitions) for topic in topics) == 3300
        turns = 0
        (result,) = await one.groups.delete(["g"])
        assert result.error_code == 0
        assert turns > 8, "of 16 pauses"
        nursery.cancel_scope.cancel()
    assert await one.groups.fetch("g", None, require_stable=True) == []
    assert await one.groups.listed([], []) == []


async def test_a_later_piece_of_a_commit_fails_for_its_partitions_alone(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    one = node()
    one.service.elected(one.groups.partition_of("g"), 0)
    request = committing(0)
    request.topics[0].partitions = [
        Spot(partition_index=p, committed_offset=p, committed_metadata="") for p in range(500)
    ]
    append, appended = one.log.append, 0

    def failing(partition: TopicPartition, stored: bytes) -> int:
        nonlocal appended
        appended += 1
        if appended > 1:
            raise NotEnoughReplicas
        return append(partition, stored)

    monkeypatch.setattr(FakeLog, "append", lambda _, *given: failing(*given))
    reply = await one.groups.commit(request)
    codes = [spot.error_code for topic in reply.topics for spot in topic.partitions]
    assert codes == [0] * 200 + [CoordinatorNotAvailable.code] * 300
