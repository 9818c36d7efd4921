"""Series of steps: what is left to do while a partition cannot be written."""

import logging

import pytest
import trio
import trio.testing

from kwire.coordinator.decision import NOTHING, Decision, Moment
from kwire.errors import NotEnoughReplicas
from kwire.group.records import group_tombstone
from kwire.replica.verification import Guard
from kwire.transaction.model import State
from kwire.types import TopicPartition
from tests.support.coordinator.node import FakeLog, make_node
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
        assert len([r for r in caplog.records if "put off" in r.getMessage()]) == 1
        subject.log.failure = None
        await subject.settle(2)
        for name in ("a", "b"):
            assert (await subject.state(name)).state is State.COMPLETE_ABORT
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
