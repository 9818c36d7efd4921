"""Series of steps: what is left to do while a partition cannot be written."""

import gc
import logging
from collections.abc import Callable

import pytest
import trio
import trio.testing

from kwire.coordinator.decision import NOTHING, Decision, Moment
from kwire.coordinator.shard import Series
from kwire.errors import CoordinatorNotAvailable, NotEnoughReplicas
from kwire.group.records import group_tombstone
from kwire.replica.verification import Guard
from kwire.transaction import transitions
from kwire.transaction.model import Transaction, TransactionState
from kwire.types import TopicPartition
from tests.support.coordinator.node import CLIENT, FakeLog, join_request, make_node
from tests.support.transaction.world import T0, World


async def test_partition_that_cannot_be_written_for_long_is_tried_once_a_second(
    autojump_clock: object, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """A transaction that takes too long is due again and again, but its abort is tried once."""
    caplog.set_level(logging.WARNING)
    async with trio.open_nursery() as nursery:
        subject = World(nursery)
        await subject.start()
        for name in ("a", "b"):
            producer = await subject.init(name, timeout_ms=20_000)
            await subject.add(producer, T0, name=name)
        subject.log.failure = NotEnoughReplicas()
        await trio.sleep(600)
        series = [each for each in gc.get_objects() if isinstance(each, Series)]
        assert len(series) == 1, "what waits does not grow"
        del series
        attempts = 0
        append = FakeLog.append

        def count_append(
            log: FakeLog, partition: TopicPartition, stored: bytes, guard: Guard | None = None
        ) -> int:
            nonlocal attempts
            attempts += 1
            return append(log, partition, stored, guard)

        monkeypatch.setattr(FakeLog, "append", count_append)
        await trio.sleep(100)
        assert attempts == pytest.approx(100, abs=1)
        assert len([r for r in caplog.records if "postponed" in r.getMessage()]) == 1
        subject.log.failure = None
        await subject.settle(2)
        for name in ("a", "b"):
            assert (await subject.state(name)).state is TransactionState.COMPLETE_ABORT
        nursery.cancel_scope.cancel()


async def test_each_series_is_taken_once_the_partition_can_be_written_again(
    autojump_clock: object,
) -> None:
    """Series without a name, such as those of deleted topics, are all kept, in their order."""
    node = make_node()
    node.service.on_elected(node.groups.partition_of("g"), 0)
    node.log.failure = NotEnoughReplicas()
    taken = []

    async with trio.open_nursery() as nursery:
        await nursery.start(node.service.run)

        def schedule(number: int) -> None:
            def write(moment: Moment) -> Decision:
                taken.append((number, moment.now))
                return Decision(records=(group_tombstone("g"),)) if node.log.failure else NOTHING

            node.service.schedule_for_all(lambda _: (write, write))

        for number in range(3):
            schedule(number)
        await trio.sleep(9.5)
        assert [(number, round(second)) for number, second in taken] == [(0, n) for n in range(10)]
        node.log.failure = None
        await trio.sleep(1)
        assert [number for number, _ in taken[10:]] == [0, 0, 1, 1, 2, 2]
        nursery.cancel_scope.cancel()


async def test_retries_of_a_step_take_no_memory(autojump_clock: object) -> None:
    """A partition may stay below ``min.insync.replicas`` for weeks."""
    node = make_node()
    node.service.on_elected(node.groups.partition_of("g"), 0)

    def refuse(_: Moment) -> Decision:
        raise CoordinatorNotAvailable

    async with trio.open_nursery() as nursery:
        await nursery.start(node.service.run)
        node.service.schedule_for_all(lambda _: (refuse,))
        counts = []
        for _ in range(2):
            await trio.sleep(200)
            gc.collect()
            counts.append(len(gc.get_objects()))
        assert counts[1] - counts[0] < 50
        nursery.cancel_scope.cancel()


async def test_deadlines_of_a_partition_that_cannot_be_written_warn_once(
    autojump_clock: object, caplog: pytest.LogCaptureFixture
) -> None:
    """The members of many groups fail meanwhile."""
    caplog.set_level(logging.WARNING)
    node = make_node(offsets_topic_num_partitions=1)
    node.service.on_elected(0, 0)
    groups = [f"g{number}" for number in range(5)]
    async with trio.open_nursery() as nursery:
        await nursery.start(node.service.run)
        for group in groups:
            await node.groups.join(join_request(group=group), CLIENT)
        node.log.failure = NotEnoughReplicas()
        await trio.sleep(300)
        assert len([r for r in caplog.records if "postponed" in r.getMessage()]) == 1
        node.log.failure = None
        await trio.sleep(300)
        for group in groups:
            assert (await node.groups.describe(group)).group_state == "Empty"
        nursery.cancel_scope.cancel()


def fail_for(name: str) -> Callable[[Transaction, transitions.TransitionContext], Transaction]:
    """Return the fencing of a transaction, with a fault if it is that of this id."""
    fence = transitions.fence

    def fail(transaction: Transaction, change: transitions.TransitionContext) -> Transaction:
        if transaction.transactional_id == name:
            raise ZeroDivisionError
        return fence(transaction, change)

    return fail


@pytest.mark.parametrize("is_too_large", [True, False])
async def test_transaction_that_cannot_be_aborted_holds_up_no_other(
    is_too_large: bool, autojump_clock: object, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Neither if its record is larger than the topic allows now, nor by a fault."""
    async with trio.open_nursery() as nursery:
        subject = World(nursery)
        await subject.start()
        topics = [TopicPartition(f"{n:0200}", 0) for n in range(10)]
        await subject.add(await subject.init("a", timeout_ms=20_000), *topics, name="a")
        if is_too_large:
            subject.log.max_bytes = 1000
        else:
            monkeypatch.setattr(transitions, "fence", fail_for("a"))
        for name, seconds in (("b", 0), ("c", 200)):
            await trio.sleep(seconds)
            producer = await subject.init(name, timeout_ms=20_000)
            await subject.add(producer, T0, name=name)
            await trio.sleep(40)
            assert (await subject.state(name)).state is TransactionState.COMPLETE_ABORT
        assert (await subject.state("a")).state is TransactionState.ONGOING
        subject.log.max_bytes = 10_000
        monkeypatch.undo()
        await trio.sleep(40)
        assert (await subject.state("a")).state is TransactionState.COMPLETE_ABORT
        nursery.cancel_scope.cancel()
