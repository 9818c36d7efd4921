"""Many subscribers of one partition: a record wakes all, and other clients are served between."""

import errno
import gc
import weakref
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from functools import partial
from random import Random
from typing import Any, cast

import pytest
import trio
from trio.testing import MockClock, wait_all_tasks_blocked

from kwire.codec.apis import ListenerType
from kwire.codec.frame import read_response, request_frame
from kwire.codec.messages import metadata_records as r
from kwire.codec.messages.fetch import FetchRequest, FetchResponse
from kwire.errors import NotLeaderOrFollower, OffsetOutOfRange
from kwire.handlers.dispatch import ConnectionRequests, Dispatcher
from kwire.handlers.shared.client_quotas import FETCHED
from kwire.log.segments.segment import Segment
from kwire.replica.fetch_waits import FetchWait, FetchWaits
from kwire.replica.partition import FetchIsolation, Partition
from simulation.disk import SimFile
from tests.support.handlers.broker import Broker, broker, create_topic, one_batch, topic_id, write
from tests.support.handlers.bytecodes import Tracer
from tests.support.handlers.fetch import at, fetch, values
from tests.support.handlers.produce import produce
from tests.support.handlers.produce import request as produce_request

SUBSCRIBERS = 300


class _Place:
    """A partition without followers that nobody has read."""

    leader = None
    read_count = 0


async def test_other_tasks_run_while_many_subscribers_are_answered() -> None:
    """The producer's acknowledgement leaves first; no turn answers more than a few of them."""
    subject = broker()
    await create_topic(subject)
    events: list[str] = []
    answers: list[Any] = []
    async with trio.open_nursery() as nursery:
        await nursery.start(subject.replicas.run)

        async def subscribe() -> None:
            (answer,) = await fetch(subject, at("t"), max_wait_ms=60_000)
            answers.append(values(answer))
            events.append("delivery")

        async def others() -> None:
            while len(answers) < SUBSCRIBERS:
                await trio.lowlevel.checkpoint()
                events.append("turn")

        for _ in range(SUBSCRIBERS):
            nursery.start_soon(subscribe)
        await wait_all_tasks_blocked()
        nursery.start_soon(others)
        await produce(subject, ("t", 0, one_batch(b"v")))
        events.append("acknowledgement")
        await wait_all_tasks_blocked()
        nursery.cancel_scope.cancel()
    assert answers == [[(0, b"v")]] * SUBSCRIBERS
    assert events.index("acknowledgement") <= 32
    between = " ".join(events).split("turn")
    assert max(part.count("delivery") for part in between) <= 32


async def test_records_appended_while_subscribers_are_woken_are_delivered() -> None:
    subject = broker()
    await create_topic(subject)
    last: list[int] = []
    async with trio.open_nursery() as nursery:
        await nursery.start(subject.replicas.run)

        async def subscribe() -> None:
            offset = 0
            while offset < 5:
                (answer,) = await fetch(subject, at("t", offset), max_wait_ms=60_000)
                for offset, _ in values(answer):
                    assert offset >= 0
                offset = values(answer)[-1][0] + 1
            last.append(offset)

        for _ in range(SUBSCRIBERS):
            nursery.start_soon(subscribe)
        await wait_all_tasks_blocked()
        for number in range(5):
            await produce(subject, ("t", 0, one_batch(b"%d" % number)))
        await wait_all_tasks_blocked()
        nursery.cancel_scope.cancel()
    assert last == [5] * SUBSCRIBERS


@asynccontextmanager
async def running() -> AsyncIterator[Broker]:
    """Run the replicas of a broker that has a topic."""
    subject = broker()
    await create_topic(subject)
    async with trio.open_nursery() as nursery:
        await nursery.start(subject.replicas.run)
        yield subject
        nursery.cancel_scope.cancel()


def fetch_request(version: int, **fields: Any) -> FetchRequest:
    """Return a long poll for the topic, in the shape of a version."""
    topic = {"topic": "t"} if version < 13 else {"topic_id": topic_id("t")}
    partition = FetchRequest.FetchTopic.FetchPartition(
        partition=0, fetch_offset=0, partition_max_bytes=1 << 20
    )
    chosen: dict[str, Any] = {"max_wait_ms": 60_000, "min_bytes": 1, "max_bytes": 1 << 20}
    return FetchRequest(
        topics=[FetchRequest.FetchTopic(**topic, partitions=[partition])], **(chosen | fields)
    )


async def answer(
    requests: ConnectionRequests, version: int, number: int, request: FetchRequest
) -> bytes:
    """Return the frame that a client reads, without its size."""
    parts = await requests.answer(
        memoryview(request_frame(1, version, number, f"c{number}", request))[4:]
    )
    assert parts is not None
    data = b"".join(part.read() if hasattr(part, "position") else part for part in parts)
    for part in parts:
        if hasattr(part, "close"):
            part.close()
    assert int.from_bytes(data[:4], "big") == len(data) - 4
    return data[4:]


async def test_answers_by_name_and_by_id_are_not_shared() -> None:
    """The partitions of some fetches are named, those of others have ids; answers repeat either."""
    versions = (7, 12, 13, 17)
    answers: dict[int, bytes] = {}
    async with running() as subject, trio.open_nursery() as nursery:
        dispatcher = Dispatcher(subject.services, ListenerType.BROKER)

        async def ask(version: int) -> None:
            client = dispatcher.for_connection("PLAINTEXT", "h")
            answers[version] = await answer(client, version, 1, fetch_request(version))

        for version in versions:
            nursery.start_soon(ask, version)
        await wait_all_tasks_blocked()
        await produce(subject, ("t", 0, one_batch(b"v")))
        await wait_all_tasks_blocked()
        nursery.cancel_scope.cancel()
    topics = [
        read_response(1, version, memoryview(answers[version]))[1].responses[0]
        for version in versions
    ]
    assert [(topic.topic, topic.topic_id) for topic in topics] == [
        ("t", bytes(16)),
        ("t", bytes(16)),
        ("", topic_id("t")),
        ("", topic_id("t")),
    ]


async def test_shared_answer_equals_the_answer_to_one_subscriber() -> None:
    """In every version, for every kind of reader; correlation and session ids are its own."""
    kinds: list[tuple[int, dict[str, Any]]] = [
        (version, {"isolation_level": isolation, "session_epoch": epoch, "max_bytes": max_bytes})
        for version in range(4, 19)
        for isolation in (0, 1)
        for epoch in (-1, 0)
        for max_bytes in (1, 1 << 20)
    ]
    frames: dict[int, bytes] = {}
    async with running() as subject, trio.open_nursery() as nursery:
        dispatcher = Dispatcher(subject.services, ListenerType.BROKER)

        async def subscribe(number: int) -> None:
            version, fields = kinds[number]
            requests = dispatcher.for_connection("PLAINTEXT", "h")
            request = fetch_request(version, **fields)
            frames[number] = await answer(requests, version, number, request)

        for number in range(len(kinds)):
            nursery.start_soon(subscribe, number)
        await wait_all_tasks_blocked()
        for value in (b"v", b"w"):  # some requests have room for one of them
            await produce(subject, ("t", 0, one_batch(value)))
        assert not frames
        await wait_all_tasks_blocked()
        alone = dispatcher.for_connection("PLAINTEXT", "h")
        sessions: set[int] = set()
        for number, (version, fields) in enumerate(kinds):
            shared: FetchResponse
            expected: FetchResponse
            correlation, shared = read_response(1, version, memoryview(frames[number]))
            assert correlation == number
            single = await answer(alone, version, number, fetch_request(version, **fields))
            _, expected = read_response(1, version, memoryview(single))
            opens = version >= 7 and fields["session_epoch"] == 0
            assert (shared.session_id != 0) == opens
            assert shared.session_id not in sessions
            sessions |= {shared.session_id} if opens else set()
            expected.session_id = shared.session_id
            assert shared == expected
            assert shared.responses[0].partitions[0].records
        nursery.cancel_scope.cancel()


async def test_throttle_time_is_not_shared() -> None:
    """Invariant 104: a client beyond its quota learns so; those with equal requests do not."""
    throttled: list[bool] = []
    async with running() as subject, trio.open_nursery() as nursery:
        entity = r.ClientQuotaRecord.EntityData(entity_type="client-id", entity_name="c0")
        quota = r.ClientQuotaRecord(entity=[entity], key=FETCHED, value=1, remove=False)
        await subject.publish(quota)
        dispatcher = Dispatcher(subject.services, ListenerType.BROKER)
        frames: dict[int, bytes] = {}

        async def subscribe(number: int) -> None:
            requests = dispatcher.for_connection("PLAINTEXT", "h")
            request = fetch_request(12, max_bytes=10, session_epoch=-1)
            frames[number] = await answer(requests, 12, number, request)

        for number in range(4):
            nursery.start_soon(subscribe, number)
        await wait_all_tasks_blocked()
        await produce(subject, ("t", 0, one_batch(b"v")))
        await wait_all_tasks_blocked()
        for number in range(4):
            _, response = read_response(1, 12, memoryview(frames[number]))
            throttled.append(response.throttle_time_ms > 0)
            assert response.responses[0].partitions[0].records
        nursery.cancel_scope.cancel()
    assert throttled == [True, False, False, False]


async def test_equal_fetches_share_one_read(monkeypatch: pytest.MonkeyPatch) -> None:
    reads = 0
    read = Partition.read

    def count_read(self: Partition, *args: Any, **fields: Any) -> Any:
        nonlocal reads
        reads += 1
        return read(self, *args, **fields)

    async with running() as subject, trio.open_nursery() as nursery:
        answers: list[Any] = []

        async def subscribe() -> None:
            (data,) = await fetch(subject, at("t"), max_wait_ms=60_000)
            answers.append(values(data))

        for _ in range(SUBSCRIBERS):
            nursery.start_soon(subscribe)
        await wait_all_tasks_blocked()
        monkeypatch.setattr(Partition, "read", count_read)
        await produce(subject, ("t", 0, one_batch(b"v")))
        await wait_all_tasks_blocked()
        assert answers == [[(0, b"v")]] * SUBSCRIBERS
        assert reads == 1


async def test_equal_fetches_of_records_at_hand_share_one_read(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """If many consumers read a partition between two appends, they share the reads after it."""
    reads: list[int] = []
    read = Partition.read

    def count_read(self: Partition, offset: int, *args: Any, **fields: Any) -> Any:
        reads.append(offset)
        return read(self, offset, *args, **fields)

    async def read_all(subject: Broker, offset: int) -> list[Any]:
        fetches = [await fetch(subject, at("t", offset)) for _ in range(20)]
        return [values(data) for (data,) in fetches]

    async with running() as subject:
        monkeypatch.setattr(Partition, "read", count_read)
        await produce(subject, ("t", 0, one_batch(b"v")))
        assert await read_all(subject, 0) == [[(0, b"v")]] * 20
        assert reads == [0] * 20
        await produce(subject, ("t", 0, one_batch(b"w")))
        reads.clear()
        assert await read_all(subject, 0) == [[(0, b"v"), (1, b"w")]] * 20
        assert await read_all(subject, 1) == [[(1, b"w")]] * 20
        assert reads == [0, 1]
        await produce(subject, ("t", 0, one_batch(b"x")))
        await fetch(subject, at("t", 2))
        reads.clear()
        await produce(subject, ("t", 0, one_batch(b"y")))
        assert await read_all(subject, 2) == [[(2, b"x"), (3, b"y")]] * 20
        assert reads == [2] * 20, "one consumer read between these appends"


async def test_answer_is_sent_unshared_after_a_disk_error(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Invariant 100: a disk error during the check for sharing leaves no file pinned."""

    def fail(*_: object) -> bool:
        raise OSError(errno.EIO, "input/output error")

    answers: list[Any] = []
    async with running() as subject, trio.open_nursery() as nursery:

        async def subscribe() -> None:
            answers.extend(await fetch(subject, at("t"), max_wait_ms=60_000))

        for _ in range(2):
            nursery.start_soon(subscribe)
        await wait_all_tasks_blocked()
        monkeypatch.setattr(Segment, "is_warm", fail)
        await produce(subject, ("t", 0, one_batch(b"v")))
        await wait_all_tasks_blocked()
        file = subject.replicas.partitions.get("t", 0).log.segments.active.file
        assert isinstance(file, SimFile)
        assert [values(data) for data in answers] == [[(0, b"v")]] * 2
        assert file.pins == 0


async def lose_leadership(subject: Broker) -> None:
    await subject.lead_again("t", leader=2)


async def delete_records(subject: Broker) -> None:
    subject.replicas.delete_before(subject.replicas.partitions.get("t", 0), 1)


@pytest.mark.parametrize(
    ("change", "code"),
    [(lose_leadership, NotLeaderOrFollower.code), (delete_records, OffsetOutOfRange.code)],
)
async def test_subscriber_woken_after_a_change_gets_its_error(
    change: Callable[[Broker], Any], code: int
) -> None:
    """Invariant 24: the shared answer of earlier subscribers is not used after a change."""
    codes: list[int] = []
    async with running() as subject, trio.open_nursery() as nursery:

        async def subscribe() -> None:
            (data,) = await fetch(subject, at("t"), version=10, max_wait_ms=60_000)
            codes.append(data.error_code)

        for _ in range(SUBSCRIBERS):
            nursery.start_soon(subscribe)
        await wait_all_tasks_blocked()
        await produce(subject, ("t", 0, one_batch(b"v")))
        while not codes:
            await trio.lowlevel.checkpoint()
        before = len(codes)
        await change(subject)
        await wait_all_tasks_blocked()
    assert len(codes) == SUBSCRIBERS
    assert set(codes[:before]) == {0}
    assert set(codes[before + 32 :]) == {code}


async def test_long_polls_end_at_their_max_wait(autojump_clock: MockClock) -> None:
    ended: dict[int, float] = {}
    with trio.fail_after(100):
        async with running() as subject, trio.open_nursery() as nursery:

            async def poll(wait_ms: int) -> None:
                assert values((await fetch(subject, at("t"), max_wait_ms=wait_ms))[0]) == []
                ended[wait_ms] = trio.current_time() - began

            began = trio.current_time()
            for wait_ms in (3000, 500, 1000, 2000):
                nursery.start_soon(poll, wait_ms)
            await trio.sleep(0.7)
            nursery.start_soon(poll, 100)
    assert ended == pytest.approx({3000: 3, 500: 0.5, 1000: 1, 2000: 2, 100: 0.8})


async def test_long_polls_end_with_the_service() -> None:
    """After a stop no task is left that could end them later."""
    subject = broker()
    await create_topic(subject)
    answers: list[Any] = []

    async def poll() -> None:
        answers.append(values((await fetch(subject, at("t"), max_wait_ms=60_000))[0]))

    async with trio.open_nursery() as outer:
        async with trio.open_nursery() as nursery:
            await nursery.start(subject.replicas.run)
            for _ in range(40):
                outer.start_soon(poll)
            await wait_all_tasks_blocked()
            assert not answers
            nursery.cancel_scope.cancel()
        await wait_all_tasks_blocked()
        outer.cancel_scope.cancel()
    assert answers == [[]] * 40


async def cost_of_acknowledgement(subscribers: int) -> int:
    """Return the bytecodes from a Produce request to its answer, while subscribers wait."""
    async with running() as subject, trio.open_nursery() as nursery:
        for _ in range(subscribers):
            nursery.start_soon(partial(fetch, subject, at("t"), max_wait_ms=60_000))
        await wait_all_tasks_blocked()
        dispatcher = Dispatcher(subject.services, ListenerType.BROKER)
        await dispatcher.prepare(0, 9)
        requests = dispatcher.for_connection("PLAINTEXT", "h")
        message = produce_request(("t", 0, one_batch()), acks=1)
        frame = memoryview(request_frame(0, 9, 7, "c", message))[4:]
        tracer = Tracer()
        with tracer.counting():
            assert isinstance(requests.answer_now(frame), list)
        assert len(subject.replicas.fetch_waits) == subscribers
        await wait_all_tasks_blocked()
        assert len(subject.replicas.fetch_waits) == 0
        nursery.cancel_scope.cancel()
    return tracer.count


async def test_fetches_are_freed_once_they_are_answered() -> None:
    """The task that counts bytes for many of them refers to none while it waits for more."""
    waits, key = FetchWaits(trio.current_time), cast("Partition", _Place())
    async with trio.open_nursery() as nursery:
        await nursery.start(waits.run)
        fetches = [waits.begin(1, FetchIsolation.HIGH_WATERMARK) for _ in range(20)]
        for number in range(len(fetches)):
            waits.add(fetches[number], [key])
        waits.on_readable(key, (FetchIsolation.HIGH_WATERMARK,), 10, ends_transaction=False)
        assert not fetches[0].is_over
        await wait_all_tasks_blocked()
        assert all(each.is_over for each in fetches)
        first, place = weakref.ref(fetches[0]), weakref.ref(key)
        while fetches:
            waits.end(fetches.pop())
        del key
        gc.collect()
        assert first() is None
        assert place() is None
        nursery.cancel_scope.cancel()


async def test_acknowledgement_leaves_before_the_subscribers_are_visited() -> None:
    counts = [await cost_of_acknowledgement(subscribers) for subscribers in (20, 200)]
    assert counts[1] < counts[0] * 1.1


@pytest.mark.parametrize("seed", range(5))
async def test_commit_is_acknowledged_before_subscribers_are_answered(
    seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No subscriber has been visited by then, in whatever order trio runs woken tasks."""
    monkeypatch.setattr(trio._core._run, "_r", Random(seed))
    subject = broker()
    partition = await create_topic(subject, replicas=(1, 2))
    events: list[str] = []
    async with trio.open_nursery() as nursery:
        await nursery.start(subject.replicas.run)

        async def subscribe() -> None:
            await fetch(subject, at("t"), max_wait_ms=60_000)
            events.append("delivery")

        async def send() -> None:
            await produce(subject, ("t", 0, one_batch()), acks=-1)
            events.append(f"acknowledgement, {len(subject.replicas.fetch_waits)} wait")

        for _ in range(40):
            nursery.start_soon(subscribe)
        await wait_all_tasks_blocked()
        nursery.start_soon(send)
        await wait_all_tasks_blocked()
        assert not events
        subject.replicas.on_follower_fetched(partition, 2, offset=1, log_start=0, broker_epoch=-1)
        await wait_all_tasks_blocked()
        nursery.cancel_scope.cancel()
    assert events == ["acknowledgement, 40 wait", *["delivery"] * 40]


async def test_follower_is_woken_by_the_append_itself() -> None:
    """The acknowledgement waits for it."""
    subject = broker()
    partition = await create_topic(subject, replicas=(1, 2))
    waits = subject.replicas.fetch_waits
    consumers = [waits.begin(1, FetchIsolation.HIGH_WATERMARK) for _ in range(40)]
    follower = waits.begin(1, FetchIsolation.LOG_END)
    for wait in (*consumers, follower):
        waits.add(wait, [partition])
    async with trio.open_nursery() as nursery:
        await nursery.start(subject.replicas.run)
        await wait_all_tasks_blocked()
        write(subject, partition, b"v")
        assert follower.is_over
        assert not any(wait.is_over for wait in consumers)
        nursery.cancel_scope.cancel()


async def test_new_role_wakes_followers_before_consumers() -> None:
    """They fetch in the new epoch at once, also where tasks wait for all of them."""
    subject = broker()
    partition = await create_topic(subject, replicas=(1, 2))
    waits = subject.replicas.fetch_waits
    consumers = [waits.begin(1, FetchIsolation.HIGH_WATERMARK) for _ in range(400)]
    follower = waits.begin(1, FetchIsolation.LOG_END)
    woken: list[FetchIsolation] = []

    async def wait(fetch_wait: FetchWait) -> None:
        fetch_wait.waiter.begin(trio.current_time() + 60)
        await fetch_wait.waiter.wait()
        woken.append(fetch_wait.isolation)

    async with trio.open_nursery() as nursery:
        await nursery.start(subject.replicas.run)
        for fetch_wait in (*consumers, follower):
            waits.add(fetch_wait, [partition])
            nursery.start_soon(wait, fetch_wait)
        await wait_all_tasks_blocked()
        waits.on_changed(partition)
        assert follower.waiter.is_over
        assert not any(each.waiter.is_over for each in consumers)
        await wait_all_tasks_blocked()
        nursery.cancel_scope.cancel()
    assert woken == [FetchIsolation.LOG_END, *[FetchIsolation.HIGH_WATERMARK] * 400]
    assert follower.is_outdated
