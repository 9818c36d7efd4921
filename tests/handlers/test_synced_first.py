"""Topics with ``flush.messages``: unsynced records are neither read nor acknowledged."""

import errno
import math
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from functools import partial
from typing import Any

import attrs
import pytest
import trio
from trio.testing import MockClock, wait_all_tasks_blocked

from kwire import errors
from kwire.codec.messages.list_offsets import ListOffsetsRequest
from kwire.log.config import LogConfig
from kwire.raftmeta.broker.session_lease import SessionLease
from kwire.records import header
from kwire.replica.partition import Partition, ProduceResult
from kwire.types import CONSUMER_OFFSETS
from tests.support.handlers.broker import NOW_MS, Broker, broker, create_topic, one_batch
from tests.support.handlers.fetch import at, fetch, values
from tests.support.handlers.group_node import group_node
from tests.support.handlers.produce import produce


@attrs.define
class Disk:
    """A disk whose fsyncs each wait until the test releases them."""

    let_go: trio.Event = attrs.field(factory=trio.Event)
    waiting: int = 0
    error: OSError | None = None

    async def __call__(self, call: Callable[[], None]) -> None:
        self.waiting += 1
        try:
            await self.let_go.wait()
        finally:
            self.waiting -= 1
        if self.error is not None:
            raise self.error
        call()


@asynccontextmanager
async def hold_fsyncs() -> AsyncIterator[tuple[Broker, Disk]]:
    """Run a broker whose fsyncs wait until the test releases them."""
    subject = broker()
    disk = subject.logs.threads.stand_in = Disk()
    async with trio.open_nursery() as nursery:
        await nursery.start(subject.replicas.run)
        try:
            yield subject, disk
        finally:
            disk.let_go.set()
            nursery.cancel_scope.cancel()


async def latest(subject: Broker) -> int:
    topic = ListOffsetsRequest.ListOffsetsTopic
    requested_topic = topic(
        name="t", partitions=[topic.ListOffsetsPartition(partition_index=0, timestamp=-1)]
    )
    answer = await subject.call(ListOffsetsRequest(replica_id=-1, topics=[requested_topic]), 7)
    return int(answer.topics[0].partitions[0].offset)


@pytest.mark.parametrize("acks", [1, -1])
async def test_consumer_does_not_read_unsynced_records(
    acks: int, autojump_clock: MockClock
) -> None:
    """Invariant 13: the high watermark and a waiting consumer stay below them, as in Kafka."""
    async with hold_fsyncs() as (subject, disk), trio.open_nursery() as nursery:
        partition = await create_topic(subject, flush_messages=1)
        answers: list[Any] = []
        polls: list[Any] = []

        async def send() -> None:
            answers.extend(await produce(subject, ("t", 0, one_batch(b"v")), acks=acks))

        async def poll() -> None:
            polls.extend(await fetch(subject, at("t"), max_wait_ms=60_000))

        nursery.start_soon(poll)
        await wait_all_tasks_blocked()
        nursery.start_soon(send)
        await wait_all_tasks_blocked()
        assert disk.waiting == 1
        assert (answers, polls, partition.high_watermark) == ([], [], 0)
        assert await latest(subject) == 0
        disk.let_go.set()
        await wait_all_tasks_blocked()
        assert [a.error_code for a in answers] == [0]
        assert [values(p) for p in polls] == [[(0, b"v")]]
        assert (partition.high_watermark, partition.log.flush_state.recovery_point) == (1, 1)


async def test_follower_reads_unsynced_records() -> None:
    async with hold_fsyncs() as (subject, disk), trio.open_nursery() as nursery:
        await create_topic(subject, flush_messages=1, replicas=(1, 2))
        nursery.start_soon(partial(produce, subject, ("t", 0, one_batch(b"v")), acks=1))
        await wait_all_tasks_blocked()
        (data,) = await fetch(subject, at("t"), replica_id=2)
        assert values(data) == [(0, b"v")]
        # The follower has the record, the leader's disk does not: it is not committed.
        (data,) = await fetch(subject, at("t", 1), replica_id=2)
        assert data.high_watermark == 0
        disk.let_go.set()


async def test_one_fsync_serves_all_waiting_flushes(autojump_clock: MockClock) -> None:
    async with hold_fsyncs() as (subject, disk), trio.open_nursery() as nursery:
        partition = await create_topic(subject, flush_messages=1)
        for _ in range(20):
            nursery.start_soon(produce, subject, ("t", 0, one_batch()))
        await wait_all_tasks_blocked()
        assert partition.log.end_offset == 20
        subject.disk.calls.clear()
        disk.let_go.set()
        await wait_all_tasks_blocked()
        assert partition.high_watermark == 20
        synced = [p for kind, p in subject.disk.calls if kind == "sync" and p.endswith(".log")]
        assert 1 <= len(synced) <= 2


async def test_logs_of_one_request_are_synced_at_the_same_time() -> None:
    async with hold_fsyncs() as (subject, disk), trio.open_nursery() as nursery:
        partitions = [await create_topic(subject, name, flush_messages=1) for name in "abc"]
        answers: list[Any] = []

        async def send() -> None:
            batches = [(p.topic, 0, one_batch()) for p in partitions]
            answers.extend(await produce(subject, *batches))

        nursery.start_soon(send)
        await wait_all_tasks_blocked()
        assert disk.waiting == 3
        disk.let_go.set()
        await wait_all_tasks_blocked()
        assert [a.error_code for a in answers] == [0, 0, 0]


@pytest.mark.parametrize("acks", [1, -1])
async def test_batch_truncated_during_the_fsync_is_not_acknowledged(acks: int) -> None:
    """Invariants 1 and 9: the leadership is lost and regained while the batch is synced."""
    async with hold_fsyncs() as (subject, disk), trio.open_nursery() as nursery:
        partition = await create_topic(subject, flush_messages=1, replicas=(1, 2), isr=(1,))
        answers: list[Any] = []

        async def send() -> None:
            answers.extend(await produce(subject, ("t", 0, one_batch(b"lost")), acks=acks))

        nursery.start_soon(send)
        await wait_all_tasks_blocked()
        await subject.lead_again("t", leader=2)
        nursery.start_soon(subject.logs.truncate, partition.log, 0)
        disk.let_go.set()
        await wait_all_tasks_blocked()
        assert partition.log.end_offset == 0
        other = bytearray(one_batch(b"of another leader"))
        other[12:16] = (1).to_bytes(4, "big")
        partition.log.append_follower(bytes(other))
        await subject.lead_again("t", leader=1)
        await wait_all_tasks_blocked()
        assert [a.error_code for a in answers] == [errors.NotLeaderOrFollower.code]
        assert partition.high_watermark == 1


async def test_regained_leadership_does_not_commit_unsynced_records() -> None:
    """A leadership that is lost and regained does not make a batch durable (invariant 13)."""
    async with hold_fsyncs() as (subject, disk), trio.open_nursery() as nursery:
        partition = await create_topic(subject, flush_messages=1, replicas=(1, 2), isr=(1,))
        nursery.start_soon(produce, subject, ("t", 0, one_batch()))
        await wait_all_tasks_blocked()
        await subject.lead_again("t", leader=2)
        await subject.lead_again("t", leader=1)
        assert partition.high_watermark == 0
        disk.let_go.set()
        await wait_all_tasks_blocked()
        assert partition.high_watermark == 1


async def test_append_waits_only_when_flush_messages_is_reached() -> None:
    async with hold_fsyncs() as (subject, disk), trio.open_nursery() as nursery:
        partition = await create_topic(subject, flush_messages=3)
        await produce(subject, ("t", 0, one_batch(b"a", b"b")))
        assert partition.high_watermark == 2
        nursery.start_soon(produce, subject, ("t", 0, one_batch()))
        await wait_all_tasks_blocked()
        assert (disk.waiting, partition.high_watermark) == (1, 2)
        subject.configs["t"] = LogConfig(flush_messages=100)
        await reconfigure(subject)
        assert partition.high_watermark == 3
        disk.let_go.set()


async def test_producer_is_answered_after_another_flush_made_its_sync_unnecessary() -> None:
    """A flush ends between the append that requires a sync and that sync's first step."""
    subject = broker()
    partition = await create_topic(subject, flush_messages=2)
    answers: list[Any] = []

    def append() -> ProduceResult:
        batch = one_batch()
        return subject.replicas.append(partition, batch, header.parse(batch), 1, NOW_MS)

    async def append_at_the_end_of_the_flush(call: Callable[[], None]) -> None:
        call()
        answers.append(append())

    async with trio.open_nursery() as nursery:
        await nursery.start(subject.replicas.run)
        append()
        subject.logs.threads.stand_in = append_at_the_end_of_the_flush
        await subject.logs.flush(partition.log)
        assert not answers[0].is_stored
        with trio.fail_after(10):
            await subject.replicas.wait_acknowledged(partition, answers[0], 1, math.inf)
        assert partition.high_watermark == 2
        nursery.cancel_scope.cancel()


async def reconfigure(subject: Broker) -> None:
    from kwire.codec.messages import metadata_records as r

    await subject.publish(
        r.ConfigRecord(resource_type=2, resource_name="t", name="flush.messages", value="")
    )


async def test_failed_fsync_is_not_acknowledged(autojump_clock: MockClock) -> None:
    """Invariant 89; the directory is offline, and every waiter gets an error."""
    async with hold_fsyncs() as (subject, disk), trio.open_nursery() as nursery:
        partition = await create_topic(subject, flush_messages=1)
        answers: list[Any] = []

        async def send(acks: int) -> None:
            answers.extend(await produce(subject, ("t", 0, one_batch()), acks=acks))

        for acks in (1, -1):
            nursery.start_soon(send, acks)
        await wait_all_tasks_blocked()
        subject.disk.failed = disk.error = OSError(errno.EIO, "broken")
        disk.let_go.set()
        await trio.sleep(60)
        assert [a.error_code for a in answers] == [errors.KafkaStorageError.code] * 2
        assert partition.high_watermark == 0


async def test_fsync_without_a_descriptor_is_retried(
    autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The producer gets an error; the appended records become readable once they are synced."""
    async with hold_fsyncs() as (subject, disk), trio.open_nursery() as nursery:
        partition = await create_topic(subject, flush_messages=1)
        answers: list[Any] = []

        async def full(*_: Any) -> None:
            raise errors.KafkaStorageError("too many open files")

        async def send() -> None:
            answers.extend(await produce(subject, ("t", 0, one_batch())))

        with monkeypatch.context() as patched:
            patched.setattr(type(subject.logs), "flush", full)
            nursery.start_soon(send)
            await wait_all_tasks_blocked()
            assert [a.error_code for a in answers] == [errors.KafkaStorageError.code]
        disk.let_go.set()
        await trio.sleep(5)
        assert partition.high_watermark == 1


async def test_offset_commits_are_synced() -> None:
    """``log.flush.interval.messages`` holds for what coordinators write, too."""
    async with group_node() as node:
        for partition in node.broker.replicas.partitions:
            if partition.topic == CONSUMER_OFFSETS:
                partition.configure(LogConfig(flush_messages=1))
        assert await node.commit({"t": {0: 5}}) == {"t": {0: 0}}
        (used,) = used_partitions(node.broker)
        assert used.log.flush_state.recovery_point == used.log.end_offset


async def test_offset_commit_is_answered_after_its_fsync() -> None:
    async with group_node() as node, trio.open_nursery() as nursery:
        await nursery.start(node.broker.replicas.run)
        disk = node.broker.logs.threads.stand_in = Disk()
        for partition in node.broker.replicas.partitions:
            if partition.topic == CONSUMER_OFFSETS:
                partition.configure(LogConfig(flush_messages=1))
        answers: list[Any] = []

        async def commit() -> None:
            answers.append(await node.commit({"t": {0: 5}}))

        nursery.start_soon(commit)
        await wait_all_tasks_blocked()
        assert (answers, disk.waiting) == ([], 1)
        disk.let_go.set()
        await wait_all_tasks_blocked()
        assert answers == [{"t": {0: 0}}]
        nursery.cancel_scope.cancel()


def used_partitions(subject: Broker) -> list[Partition]:
    partitions = subject.replicas.partitions
    return [p for p in partitions if p.topic == CONSUMER_OFFSETS and p.log.end_offset]


@pytest.mark.parametrize("call", ["load_first_timestamp", "extend"])
async def test_partition_without_a_descriptor_fails_alone(
    call: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Invariant 99: without a free descriptor; what was appended before is acknowledged."""
    subject = broker()
    first, bad, last = [await create_topic(subject, name) for name in ("first", "bad", "last")]
    for partition in (first, bad, last):
        await produce(subject, (partition.topic, 0, one_batch()))
    segment = bad.log.segments.active
    subject_of_call = segment.space if call == "extend" else segment
    real = getattr(type(subject_of_call), call)

    def without_descriptor(self: Any, *args: Any) -> Any:
        if self is subject_of_call:
            raise OSError(errno.EMFILE, "too many open files")
        return real(self, *args)

    monkeypatch.setattr(type(subject_of_call), call, without_descriptor)
    bad.log.segments.active.first_timestamp = -1
    bad.log.segments.active.space.end = 0
    answers = await produce(subject, *((name, 0, one_batch()) for name in ("first", "bad", "last")))
    assert [a.error_code for a in answers] == [0, errors.KafkaStorageError.code, 0]
    assert [p.log.end_offset for p in (first, bad, last)] == [2, 1, 2]
    monkeypatch.undo()
    (answer,) = await produce(subject, ("bad", 0, one_batch(timestamp_ms=NOW_MS)))
    assert (answer.error_code, answer.base_offset) == (0, 1)


@pytest.mark.parametrize("acks", [1, -1])
async def test_batch_that_is_synced_after_the_lease_is_not_acknowledged(
    acks: int, autojump_clock: MockClock
) -> None:
    """Invariant 34: the broker was paused while its disk synced the batch."""
    async with hold_fsyncs() as (subject, disk), trio.open_nursery() as nursery:
        await create_topic(subject, flush_messages=1)
        answers: list[Any] = []

        async def send() -> None:
            answers.extend(await produce(subject, ("t", 0, one_batch(b"v")), acks=acks))

        lease = subject.replicas.lease = SessionLease(9.0)
        nursery.start_soon(send)
        await wait_all_tasks_blocked()
        assert not answers
        lease.end = subject.replicas.now()
        disk.let_go.set()
        await wait_all_tasks_blocked()
        assert [answer.error_code for answer in answers] == [errors.NotLeaderOrFollower.code]
