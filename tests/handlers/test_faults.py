"""Produce and Fetch while disks fail or are slow, and while leaders come and go."""

import errno
from array import array
from collections.abc import Callable
from typing import Any

import attrs
import pytest
import trio
import trio.testing

from kwire import errors
from kwire.replica.partition import Partition
from simulation.disk import PLENTY, SimFile
from tests.support.handlers.broker import Broker, broker, create_topic, one_batch, write
from tests.support.handlers.fetch import at, fetch, request, values
from tests.support.handlers.produce import produce
from tests.support.handlers.produce import request as produce_request
from tests.support.log.threads import at_once


def from_disk(partition: Partition) -> None:
    """Make the next read look its position up in the file."""
    segment = partition.log.segments.active
    segment._recent_next, segment._recent_position = array("q"), array("q")


class TestReading:
    """Fetches from a disk that cannot be read."""

    async def two(self) -> tuple[Broker, Partition, Partition]:
        subject = broker()
        good, bad = await create_topic(subject, "good"), await create_topic(subject, "bad")
        write(subject, good, b"a")
        write(subject, bad, b"b")
        from_disk(bad)
        return subject, good, bad

    async def test_partition_that_cannot_be_read_fails_alone(self):
        subject, good, bad = await self.two()
        subject.disk.fail_at("read", OSError(errno.EIO, "broken"), path="bad-0")
        first, second = await fetch(subject, at("good"), at("bad"))
        assert values(first) == [(0, b"a")]
        assert second.error_code == errors.KafkaStorageError.code
        assert [p.log.segments.active.file.pins for p in (good, bad)] == [0, 0]  # type: ignore[attr-defined]

    async def test_without_a_descriptor_the_answer_has_the_records_that_it_could_open(self):
        """Invariant 90: the rest comes with the next fetch, and the wait for it is no error."""
        subject, good, bad = await self.two()
        error = OSError(errno.EMFILE, "too many open files")
        subject.disk.fail_at("read", error, path="bad-0")
        first, second = await fetch(subject, at("good"), at("bad"), min_bytes=1000, max_wait_ms=1)
        assert (values(first), second.error_code) == ([(0, b"a")], 0)
        assert (second.records, second.high_watermark) == (b"", 1)
        assert [p.log.segments.active.file.pins for p in (good, bad)] == [0, 0]  # type: ignore[attr-defined]
        (again,) = await fetch(subject, at("bad"))
        assert values(again) == [(0, b"b")]

    async def test_read_that_gets_no_descriptor_at_all_is_refused(self):
        subject, _, _ = await self.two()
        error = OSError(errno.EMFILE, "too many open files")
        subject.disk.fail_at("read", error, path="bad-0")
        first, second = await fetch(subject, at("bad"), at("good"))
        assert first.error_code == errors.KafkaStorageError.code
        assert values(second) == [(0, b"a")]

    async def test_bug_leaves_no_file_pinned(self):
        subject, good, _ = await self.two()
        subject.disk.fail_at("read", ZeroDivisionError("a bug"), path="bad-0")
        answer = await subject.call(request(at("good"), at("bad")), 12)
        assert answer.error_code == errors.UnknownServerError.code
        file = good.log.segments.active.file
        assert isinstance(file, SimFile)
        assert file.pins == 0


async def test_unknown_partition_does_not_end_the_wait(autojump_clock: Any):
    """Kafka waits, too; else a consumer of a deleted and a quiet topic would poll without pause."""
    subject = broker()
    await create_topic(subject)
    start = trio.current_time()
    first, second = await fetch(subject, at("nope"), at("t"), max_wait_ms=500)
    assert (first.error_code, second.error_code) == (errors.UnknownTopicOrPartition.code, 0)
    assert trio.current_time() - start == pytest.approx(0.5)


async def test_truncated_batch_is_not_acknowledged(autojump_clock: Any):
    """Invariant 1: a leadership is lost and regained while another partition is waited for."""
    subject = broker()
    first = await subject.create("a", replicas=(1, 2))
    second = await subject.create("b", replicas=(1, 2))
    assert first is not None
    assert second is not None

    def fetch_as_follower(partition: Partition) -> None:
        subject.replicas.on_follower_fetched(partition, 2, offset=1, log_start=0, broker_epoch=1)

    async def others() -> None:
        await trio.sleep(0.1)
        await subject.lead_again("b", leader=2)
        second.log.truncate_to(0)
        other = bytearray(one_batch(b"of another leader"))
        other[12:16] = (1).to_bytes(4, "big")
        second.log.append_follower(bytes(other))
        await subject.lead_again("b", leader=1)
        fetch_as_follower(second)
        assert second.high_watermark == 1
        fetch_as_follower(first)

    async with trio.open_nursery() as nursery:
        nursery.start_soon(others)
        answers = await produce(subject, ("a", 0, one_batch()), ("b", 0, one_batch()))
    assert [a.error_code for a in answers] == [0, errors.NotLeaderOrFollower.code]


@attrs.define
class Gate:
    """Threads that start their calls when the test opens the gate."""

    opened: trio.Event = attrs.field(factory=trio.Event)

    async def __call__(self, call: Callable[[], None]) -> None:
        await self.opened.wait()
        call()


@pytest.mark.parametrize("acks", [0, 1, -1])
@pytest.mark.parametrize("flush_messages", [1, 1000])
async def test_producer_waits_for_a_slow_disk(autojump_clock: Any, acks: int, flush_messages: int):
    """Else unwritten batches would pile up without a bound; the timeout is only for replicas."""
    subject = broker()
    gate = subject.logs.threads.stand_in = Gate()
    partition = await create_topic(subject, flush_messages=flush_messages)
    answered = trio.Event()

    async def send() -> None:
        batch = ("t", 0, one_batch())
        answer = await subject.call(produce_request(batch, acks=acks, timeout_ms=0), 9)
        if acks:
            assert answer.responses[0].partition_responses[0].error_code == 0
        answered.set()

    async with trio.open_nursery() as nursery:
        await nursery.start(subject.logs.run)
        subject.disk.slow = True
        nursery.start_soon(send)
        await trio.sleep(60)
        assert not answered.is_set()
        assert partition.log.writer.written_offset == 0
        gate.opened.set()
        await answered.wait()
        assert partition.log.writer.written_offset == 1
        assert partition.log.flush_state.recovery_point == (1 if flush_messages == 1 else 0)
        nursery.cancel_scope.cancel()


async def test_duplicates_of_queued_records_are_acknowledged_once_there_is_room(
    autojump_clock: trio.testing.MockClock,
):
    """Invariants 3, 12 and 88: an idempotent producer repeats its batch, which appends nothing."""
    subject = broker()
    subject.logs.threads.stand_in = at_once
    partition = await create_topic(subject)
    batch = one_batch(producer_id=5, producer_epoch=0, base_sequence=0)
    answered = trio.Event()
    sent_count = 0

    async def send_until_answered() -> None:
        nonlocal sent_count
        while not answered.is_set():
            sent_count += 1
            with trio.move_on_after(10):  # The client closes the connection, and makes another.
                request = produce_request(("t", 0, batch), acks=-1)
                answer = await subject.call(request, 9)
                assert answer.responses[0].partition_responses[0].error_code == 0
                answered.set()

    async with trio.open_nursery() as nursery:
        await nursery.start(subject.logs.run)
        subject.disk.slow = True
        subject.disk.fail_at("write", OSError(errno.ENOSPC, "no space left"), path=".log")
        subject.disk.capacity = sum(inode.room for inode in subject.disk.files.values())
        nursery.start_soon(send_until_answered)
        await trio.sleep(60)
        assert sent_count > 5
        assert not answered.is_set()
        subject.disk.capacity = PLENTY
        with trio.fail_after(30):
            await answered.wait()
        nursery.cancel_scope.cancel()
    assert partition.log.end_offset == partition.log.writer.written_offset == 1
