"""The service under a clock that jumps: parking, loading, deadlines, leaving."""

from math import inf

import pytest
import trio
import trio.lowlevel
import trio.testing

from kwire.codec.messages.heartbeat import HeartbeatRequest
from kwire.codec.messages.sync_group import SyncGroupRequest
from kwire.coordinator.decision import NOTHING, Decision, Moment
from kwire.errors import (
    CoordinatorLoadInProgress,
    CoordinatorNotAvailable,
    InvalidGroupId,
    InvalidSessionTimeout,
    KafkaError,
    KafkaStorageError,
    NotCoordinator,
    NotEnoughReplicas,
    NotLeaderOrFollower,
    UnknownMemberId,
    UnstableOffsetCommit,
)
from kwire.records.build import New, batch
from kwire.records.control import ControlType, control_key, end_txn_value
from kwire.records.header import parse
from kwire.records.iterate import records
from kwire.types import TopicPartition
from tests.support.coordinator.node import OLD, committing, fetched, joining, node


async def test_a_partition_led_elsewhere_is_refused() -> None:
    one = node()
    with pytest.raises(NotCoordinator):
        await one.groups.commit(committing(1))


async def test_an_empty_partition_is_ready_at_once() -> None:
    one = node()
    one.service.on_elected(one.groups.partition_of("g"), 0)
    await one.groups.commit(committing(7))
    assert await fetched(one) == 7
    assert await fetched(one, "g") == 7


async def test_checks_before_any_partition_is_asked() -> None:
    one = node()
    with pytest.raises(InvalidGroupId):
        await one.groups.join(joining(group=""), OLD)
    for session_ms in (5_999, 1_800_001):
        with pytest.raises(InvalidSessionTimeout):
            await one.groups.join(joining(session_ms=session_ms), OLD)


async def test_an_answer_waits_for_the_high_watermark(autojump_clock: object) -> None:
    """Invariant 72: what was acknowledged is known to any later coordinator."""
    one = node()
    one.service.on_elected(one.groups.partition_of("g"), 0)
    one.log.held = True
    done = []

    async def commit() -> None:
        await one.groups.commit(committing(5))
        done.append("commit")

    async def read() -> None:
        assert await fetched(one) == 5
        done.append("read")

    async with trio.open_nursery() as nursery:
        nursery.start_soon(commit)
        await trio.testing.wait_all_tasks_blocked()
        nursery.start_soon(read)
        await trio.testing.wait_all_tasks_blocked()
        assert done == []
        one.log.release()
    assert sorted(done) == ["commit", "read"]


async def test_an_answer_does_not_wait_for_ever(autojump_clock: object) -> None:
    one = node()
    one.service.on_elected(one.groups.partition_of("g"), 0)
    one.log.held = True
    with pytest.raises(CoordinatorNotAvailable):
        await one.groups.commit(committing(5))
    assert trio.current_time() == pytest.approx(5.0)


@pytest.mark.parametrize(
    ("failure", "told"),
    [
        (NotEnoughReplicas, CoordinatorNotAvailable),
        (NotLeaderOrFollower, NotCoordinator),
        (KafkaStorageError, NotCoordinator),
    ],
)
async def test_what_cannot_be_written_did_not_happen(
    failure: type[KafkaError], told: type[KafkaError]
) -> None:
    one = node()
    one.service.on_elected(one.groups.partition_of("g"), 0)
    await one.groups.commit(committing(5))
    one.log.failure = failure()
    with pytest.raises(told):
        await one.groups.commit(committing(6))
    one.log.failure = None
    assert await fetched(one) == 5


async def test_resigning_answers_everyone(autojump_clock: object) -> None:
    """Invariant 72: no answer from the old coordinator."""
    one = node()
    index = one.groups.partition_of("g")
    for partition in range(4):
        one.service.on_elected(partition, 3)
    told: list[int] = []

    async def attempt(ask: object) -> None:
        with pytest.raises(NotCoordinator):
            await ask  # type: ignore[misc]
        told.append(1)

    async with trio.open_nursery() as nursery:
        await nursery.start(one.service.run)
        # alone it is in generation 1 at once; the second one waits for it to join again
        await one.groups.join(joining(), OLD)
        nursery.start_soon(attempt, one.groups.join(joining(), OLD))
        await trio.testing.wait_all_tasks_blocked()
        one.log.held = True
        nursery.start_soon(attempt, one.groups.commit(committing(1, "h")))
        await trio.testing.wait_all_tasks_blocked()
        one.service.on_resigned(index, 2)
        assert index in one.service.active
        assert told == []
        for partition in range(4):
            one.service.on_resigned(partition, 4)
        one.log.gone = True
        one.log.wake()
        await trio.testing.wait_all_tasks_blocked()
        assert len(told) == 2
        nursery.cancel_scope.cancel()
    assert one.service.statistics()["waiting"] == 0


@pytest.mark.parametrize("error", [KafkaStorageError(), ValueError("no batch")])
async def test_a_log_that_cannot_be_read_costs_ever_less(
    error: Exception, autojump_clock: object
) -> None:
    one = node()
    index = one.groups.partition_of("g")
    one.service.on_elected(index, 1)
    await one.groups.commit(committing(7))
    two = node(one.log)
    one.log.read_failures += [error] * 10
    async with trio.open_nursery() as nursery:
        await nursery.start(two.service.run)
        two.service.on_elected(index, 2)
        await trio.sleep(100)
        assert len(one.log.read_failures) == 3, "after 0, 1, 3, 7, 15, 31 and 63 seconds"
        with pytest.raises(CoordinatorLoadInProgress):
            await two.groups.commit(committing(1))
        one.log.read_failures.clear()
        await trio.sleep(61)
        assert await fetched(two) == 7
        nursery.cancel_scope.cancel()


async def test_a_new_leader_goes_on_with_generation_and_members(autojump_clock: object) -> None:
    """Invariant 72: members notice nothing, and the former coordinator answers no request."""
    one = node()
    index = one.groups.partition_of("g")
    one.service.on_elected(index, 1)
    two = node(one.log)
    async with trio.open_nursery() as nursery:
        await nursery.start(one.service.run)
        await nursery.start(two.service.run)
        joined = await one.groups.join(joining(), OLD)
        sync = SyncGroupRequest(
            group_id="g",
            generation_id=joined.generation_id,
            member_id=joined.member_id,
            must_name_protocol=False,
            assignments=[
                SyncGroupRequest.SyncGroupRequestAssignment(
                    member_id=joined.member_id, assignment=b"everything"
                )
            ],
        )
        await one.groups.sync(sync)
        beat = HeartbeatRequest(
            group_id="g", generation_id=joined.generation_id, member_id=joined.member_id
        )
        one.service.on_resigned(index, 2)
        two.service.on_elected(index, 2)
        with pytest.raises(CoordinatorLoadInProgress):
            await two.groups.sync(sync)
        for ask in (one.groups.heartbeat(beat), one.groups.sync(sync)):
            with pytest.raises(NotCoordinator):
                await ask
        while two.service.loading:  # noqa: ASYNC110
            await trio.sleep(0.1)
        assert (await two.groups.heartbeat(beat)).error_code == 0
        assert (await two.groups.sync(sync)).assignment == b"everything"
        # its session began anew: it is whole, and then it is over
        await trio.sleep(9.8)
        assert (await two.groups.heartbeat(beat)).error_code == 0
        await trio.sleep(10.1)
        with pytest.raises(UnknownMemberId):
            await two.groups.heartbeat(beat)
        nursery.cancel_scope.cancel()


async def test_a_new_leader_loads_first(autojump_clock: object) -> None:
    """Invariant 72: LOAD_IN_PROGRESS, then the same offsets and groups."""
    one = node()
    index = one.groups.partition_of("g")
    one.service.on_elected(index, 1)
    for offset in range(100):
        await one.groups.commit(committing(offset))
    two = node(one.log)
    one.log.read_delay = 0.1
    one.log.read_failures.append(KafkaStorageError())
    async with trio.open_nursery() as nursery:
        await nursery.start(two.service.run)
        two.service.on_elected(index, 2)
        with pytest.raises(CoordinatorLoadInProgress):
            await two.groups.commit(committing(1))
        with pytest.raises(CoordinatorLoadInProgress):
            await two.groups.list_groups([], [])
        beat = HeartbeatRequest(group_id="g", generation_id=1, member_id="m")
        assert (await two.groups.heartbeat(beat)).error_code == 0
        two.groups.on_topics_deleted({bytes(16): "other"})
        while two.service.loading:  # noqa: ASYNC110
            await trio.sleep(0.1)
        assert await fetched(two) == 99
        assert [g.group_id for g in await two.groups.list_groups([], [])] == ["g"]
        with pytest.raises(UnknownMemberId):
            await two.groups.heartbeat(beat)
        nursery.cancel_scope.cancel()


async def test_deadlines_fire_and_nothing_else_wakes(autojump_clock: object) -> None:
    one = node(group_initial_rebalance_delay_ms=3_000)
    one.service.on_elected(one.groups.partition_of("g"), 0)
    async with trio.open_nursery() as nursery:
        await nursery.start(one.service.run)
        assert one.service._sleep.deadline == inf
        reply = await one.groups.join(joining(), OLD)
        assert (reply.generation_id, reply.leader) == (1, "c-1")
        assert trio.current_time() == pytest.approx(3.0)
        # its session is over 10 s after the answer, and with it the group's life
        await trio.sleep(10.1)
        (group,) = await one.groups.list_groups([], [])
        assert group.group_state == "Empty"
        await trio.sleep(86_400 * 8)
        assert await one.groups.list_groups([], []) == []
        assert one.service.statistics()["timers"] == 0
        nursery.cancel_scope.cancel()


async def test_a_deadline_that_cannot_be_kept_comes_again(autojump_clock: object) -> None:
    one = node()
    one.service.on_elected(one.groups.partition_of("g"), 0)
    async with trio.open_nursery() as nursery:
        await nursery.start(one.service.run)
        await one.groups.join(joining(), OLD)
        one.log.failure = NotEnoughReplicas()
        await trio.sleep(11)
        (group,) = await one.groups.list_groups([], [])
        assert group.group_state == "CompletingRebalance"
        one.log.failure = None
        await trio.sleep(2)
        (group,) = await one.groups.list_groups([], [])
        assert group.group_state == "Empty"
        nursery.cancel_scope.cancel()


async def test_a_client_that_goes_away_leaves_no_waiter(autojump_clock: object) -> None:
    one = node()
    one.service.on_elected(one.groups.partition_of("g"), 0)
    with trio.move_on_after(1):
        await one.groups.join(joining(), OLD)
    assert one.service.statistics()["waiting"] == 0


async def test_poison_is_set_aside(caplog: pytest.LogCaptureFixture) -> None:
    one = node()
    index = one.groups.partition_of("g")
    one.service.on_elected(index, 1)
    await one.groups.commit(committing(5))
    partition = TopicPartition("__consumer_offsets", index)
    bad = [
        New(None, None),
        New(b"\0\2", b"\0\3"),
        New(b"\0\2\0\1g", b"\0\x63garbage"),
        New(b"\0\2\0\1x", b"\0\3\0\1"),
        New(b"\x7f\1whatever", b"xx"),
        New(b"", b""),
    ]
    one.log.append(partition, batch(bad, timestamp_ms=1))
    broken = bytearray(batch([New(b"\0\2\0\1g", None)], timestamp_ms=1))
    broken[61] = 0xFF
    one.log.append(partition, bytes(broken))
    await one.groups.commit(committing(6))
    two = node(one.log)
    async with trio.open_nursery() as nursery:
        await nursery.start(two.service.run)
        two.service.on_elected(index, 2)
        while two.service.loading:
            await trio.lowlevel.checkpoint()
        assert await fetched(two) == 6
        nursery.cancel_scope.cancel()
    warned = [record for record in caplog.records if "set aside" in record.getMessage()]
    assert len(warned) == 6


async def test_offsets_of_transactions_found_in_the_log() -> None:
    """Invariant 62: unstable while the transaction is open, seen if it commits, else never."""
    one = node()
    index = one.groups.partition_of("g")
    one.service.on_elected(index, 1)
    await one.groups.commit(committing(9))
    await one.groups.commit(committing(5))
    partition = TopicPartition("__consumer_offsets", index)
    stored = one.log.data[index][0]

    def begin(producer: int) -> None:
        """A transaction commits the offset 9."""
        (record,) = records(stored, 0, parse(stored, 0))
        new = [New(record.key, record.value)]
        written = batch(
            new, timestamp_ms=1, producer_id=producer, producer_epoch=0, transactional=True
        )
        one.log.append(partition, written)

    def end(producer: int, kind: ControlType) -> None:
        marker = [New(control_key(kind), end_txn_value(0))]
        written = batch(
            marker,
            timestamp_ms=1,
            producer_id=producer,
            producer_epoch=0,
            transactional=True,
            control=True,
        )
        one.log.append(partition, written)

    async def loaded(stable: bool = True) -> tuple[int, int]:
        again = node(one.log)
        async with trio.open_nursery() as nursery:
            await nursery.start(again.service.run)
            again.service.on_elected(index, 2)
            while again.service.loading:
                await trio.lowlevel.checkpoint()
            (topic,) = await again.groups.fetch("g", [("t", [0])], require_stable=stable)
            nursery.cancel_scope.cancel()
        return topic.partitions[0].error_code, topic.partitions[0].committed_offset

    one.service.on_resigned(index)
    one.service.on_elected(index, 2)
    begin(1)
    assert await loaded() == (UnstableOffsetCommit.code, -1)
    assert await loaded(stable=False) == (0, 5)
    end(1, ControlType.ABORT)
    assert await loaded() == (0, 5)
    end(1, ControlType.COMMIT)  # of a later transaction without offsets
    assert await loaded() == (0, 5)
    begin(2)
    assert await loaded(stable=False) == (0, 5)
    end(2, ControlType.COMMIT)
    assert await loaded() == (0, 9)


async def test_a_marker_ends_a_transaction_that_the_coordinator_holds() -> None:
    """Invariant 62 while it runs: the same without a load in between."""
    one = node()
    index = one.groups.partition_of("g")
    one.service.on_elected(index, 1)
    await one.groups.commit(committing(5))
    machine = one.service._shards[index].machine
    (record,) = records(one.log.data[index][0], 0, parse(one.log.data[index][0], 0))
    decoded = machine.decode(record.key or b"", record.value)
    assert decoded is not None
    decoded.value.offset = 9
    for producer, committed, offset in ((1, False, 5), (2, True, 9)):
        machine.apply(decoded, producer)
        (topic,) = await one.groups.fetch("g", [("t", [0])], require_stable=True)
        assert topic.partitions[0].error_code == UnstableOffsetCommit.code
        one.service.on_transaction_ended(index, producer, committed=committed)
        assert await fetched(one) == offset


async def test_a_group_is_deleted_once_however_often_it_is_named() -> None:
    one = node()
    for index in range(3):
        one.service.on_elected(index, 0)
    results = {r.group_id: r.error_code for r in await one.groups.delete(["a", "a", "b", "c", "d"])}
    codes = {
        name: 69 if one.groups.partition_of(name) < 3 else NotCoordinator.code for name in "abcd"
    }
    assert results == codes


def test_nothing_is_nothing() -> None:
    assert Decision() == NOTHING
    assert Moment(1.0, 2).wall_ms == 2
