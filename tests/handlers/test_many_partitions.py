"""Requests for a thousand partitions: other tasks run during them, and no append is missed."""

from collections.abc import Awaitable, Callable
from typing import Any

import pytest
import trio
import trio.testing
from trio.testing import MockClock

from kwire.codec.messages.fetch import FetchRequest
from kwire.drive import give_way
from kwire.replica.partition import Partition
from tests.support.handlers.broker import Broker, broker, create_topic, one_batch, topic_id, write
from tests.support.handlers.fetch import FetchPartition, Topic, at, request
from tests.support.handlers.produce import produce

MANY = 1000


async def large() -> Broker:
    subject = broker()
    await subject.create("t", partitions=MANY)
    return subject


def fetch_all(**changes: Any) -> FetchRequest:
    partitions = [
        FetchPartition(partition=n, fetch_offset=0, partition_max_bytes=1 << 20)
        for n in range(MANY)
    ]
    topic = Topic(topic="t", topic_id=topic_id("t"), partitions=partitions)
    return request(topic, **changes)


async def turns(work: Callable[[], Awaitable[Any]]) -> int:
    """Count the turns that another task has during ``work``."""
    count = 0

    async def others() -> None:
        nonlocal count
        while True:
            await trio.lowlevel.checkpoint()
            count += 1

    async with trio.open_nursery() as nursery:
        nursery.start_soon(others)
        await work()
        nursery.cancel_scope.cancel()
    return count


async def test_other_tasks_run_during_a_large_produce() -> None:
    subject = await large()
    batches = [("t", n, one_batch()) for n in range(MANY)]
    answers: list[Any] = []

    async def work() -> None:
        answers.extend(await produce(subject, *batches))

    assert await turns(work) >= 10
    assert [a.error_code for a in answers] == [0] * MANY


async def test_other_tasks_run_during_a_produce_of_large_batches() -> None:
    """Invariant 10: the cost of a batch depends on its bytes.

    The records are not checked: the check of such batches, in threads, gives other tasks turns too.
    """
    subject = await large()
    subject.replicas.checks_records = False
    batches = [("t", n, one_batch(bytes(900_000))) for n in range(16)]

    async def work() -> None:
        assert [a.error_code for a in await produce(subject, *batches)] == [0] * 16

    assert await turns(work) >= 4


async def test_other_tasks_run_during_a_large_fetch() -> None:
    subject = await large()
    assert await turns(lambda: subject.call(fetch_all(), 12)) >= 10


async def test_record_appended_during_the_read_ends_the_wait(
    autojump_clock: MockClock, monkeypatch: Any
) -> None:
    """Invariant 18: it is appended after its partition was read and before the fetch waits."""
    subject = await large()
    first = subject.replicas.partitions.get("t", 0)

    async def append_meanwhile() -> None:
        if not first.log.end_offset:
            write(subject, first, b"v")
        await give_way()

    monkeypatch.setattr("kwire.replica.fetching.give_way", append_meanwhile)
    started = trio.current_time()
    answer = await subject.call(fetch_all(max_wait_ms=60_000), 12)
    assert trio.current_time() == started
    assert answer.responses[0].partitions[0].high_watermark == 1


@pytest.mark.parametrize("partition", [0, MANY - 1])
async def test_record_appended_while_the_wait_begins_ends_it(
    partition: int, autojump_clock: MockClock, monkeypatch: Any
) -> None:
    """Invariant 18: the fetch has begun to wait for the first partition, not yet for the last."""
    subject = await large()
    reading_turns = -(-MANY // 64)
    turn = 0

    async def append_meanwhile() -> None:
        nonlocal turn
        turn += 1
        if turn == reading_turns + 2:
            write(subject, subject.replicas.partitions.get("t", partition), b"v")
        await give_way()

    monkeypatch.setattr("kwire.replica.fetching.give_way", append_meanwhile)
    started = trio.current_time()
    answer = await subject.call(fetch_all(max_wait_ms=60_000), 12)
    assert trio.current_time() == started
    sizes = [len(p.records or b"") for p in answer.responses[0].partitions]
    assert [n for n, size in enumerate(sizes) if size] == [partition]


async def test_fetch_that_is_woken_reads_only_what_has_changed(
    autojump_clock: MockClock, monkeypatch: Any
) -> None:
    """Invariant 10: the cost of a long poll without a session depends on what has changed."""
    subject = await large()
    read, reads = Partition.read, []

    def note(self: Partition, *arguments: Any, **more: Any) -> Any:
        reads.append(self.partition)
        return read(self, *arguments, **more)

    monkeypatch.setattr(Partition, "read", note)
    answers: list[Any] = []

    async def work() -> None:
        answers.append(await subject.call(fetch_all(max_wait_ms=60_000), 12))

    async with trio.open_nursery() as nursery:
        nursery.start_soon(work)
        await trio.testing.wait_all_tasks_blocked()
        assert len(reads) == MANY
        reads.clear()
        write(subject, subject.replicas.partitions.get("t", 7), b"v")
    assert reads == [7]
    sizes = [len(p.records or b"") for p in answers[0].responses[0].partitions]
    assert [n for n, size in enumerate(sizes) if size] == [7]


async def test_log_start_that_moves_during_a_long_poll_is_answered(
    autojump_clock: MockClock,
) -> None:
    subject = broker()
    partition = await create_topic(subject)
    write(subject, partition, b"a")
    answers: list[Any] = []

    async def work() -> None:
        answers.append(await subject.call(request(at("t", 1), max_wait_ms=60_000), 12))

    async with trio.open_nursery() as nursery:
        nursery.start_soon(work)
        await trio.testing.wait_all_tasks_blocked()
        subject.replicas.delete_before(partition, 1)
    assert answers[0].responses[0].partitions[0].log_start_offset == 1


async def test_large_fetch_that_is_cancelled_while_its_wait_begins_leaves_no_wait(
    monkeypatch: Any,
) -> None:
    subject = await large()
    scope = trio.CancelScope()

    async def cancel_late() -> None:
        if len(subject.replicas.fetch_waits):
            scope.cancel()
        await give_way()

    monkeypatch.setattr("kwire.replica.fetching.give_way", cancel_late)
    with scope:
        await subject.call(fetch_all(max_wait_ms=60_000), 12)
    assert scope.cancelled_caught
    assert len(subject.replicas.fetch_waits) == 0


async def test_only_changed_partitions_are_read_again_before_the_wait(
    autojump_clock: MockClock, monkeypatch: Any
) -> None:
    """Invariant 18: each partition is read once, and those that changed meanwhile twice."""
    subject = await large()
    changed = [subject.replicas.partitions.get("t", n) for n in (0, 3)]
    reads: list[Partition] = []
    read = Partition.read

    async def append_meanwhile() -> None:
        for partition in changed:
            if not partition.log.end_offset:
                write(subject, partition, b"v")
        await give_way()

    def count(partition: Partition, *arguments: Any, **options: Any) -> Any:
        reads.append(partition)
        return read(partition, *arguments, **options)

    monkeypatch.setattr("kwire.replica.fetching.give_way", append_meanwhile)
    monkeypatch.setattr(Partition, "read", count)
    answer = await subject.call(fetch_all(max_wait_ms=60_000), 12)
    assert len(reads) == MANY + 2
    assert reads[MANY:] == changed
    sizes = [len(p.records or b"") for p in answer.responses[0].partitions]
    assert [n for n, size in enumerate(sizes) if size] == [0, 3]


@pytest.mark.parametrize("has_session", [False, True])
async def test_other_tasks_run_while_changed_partitions_are_read_again(
    has_session: bool, autojump_clock: MockClock, monkeypatch: Any
) -> None:
    """Records in all partitions come after each was read, and before the fetch waits."""
    subject = await large()
    partitions = [subject.replicas.partitions.get("t", n) for n in range(MANY)]
    session_id = 0
    if has_session:
        opened = await subject.call(fetch_all(session_epoch=0), 12)
        session_id = opened.session_id
        assert session_id
    counts = [0]
    change = iter([False] * (MANY // 64) + [True])

    async def append_meanwhile() -> None:
        if next(change, False):
            for partition in partitions:
                write(subject, partition, b"v")
            counts[0] = 0
        counts[0] += 1
        await give_way()

    monkeypatch.setattr("kwire.replica.fetching.give_way", append_meanwhile)
    fetch_request = fetch_all(
        max_wait_ms=60_000, session_id=session_id, session_epoch=1 if has_session else -1
    )
    answer = await subject.call(fetch_request, 12)
    assert counts[0] >= MANY // 64
    sizes = [len(p.records or b"") for p in answer.responses[0].partitions]
    assert sum(map(bool, sizes)) == MANY
