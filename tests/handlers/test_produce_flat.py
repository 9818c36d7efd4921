"""Produce in its usual shape: the answer, the log and the metrics are those of the general way."""

from random import Random
from typing import Any, Final, TypeAlias

import attrs
import hypothesis.strategies as st
import pytest
import trio
import trio.testing
from hypothesis import given, settings

from kwire.codec.apis import ListenerType
from kwire.codec.frame import read_response, request_frame
from kwire.errors import UnknownServerError
from kwire.handlers.dispatch import Dispatcher
from kwire.metrics import REQUESTS
from kwire.net.framing import Disconnect
from kwire.net.waiting_answers import Unfinished
from kwire.records.compression import LZ4, ZSTD
from kwire.replica.fetch_waits import FetchWaits
from simulation.replication.links import join_parts
from tests.support.codec.damage import damage
from tests.support.handlers.broker import (
    broker,
    create_topic,
    one_batch,
    read_log,
    topic_id,
)
from tests.support.handlers.produce import request

PRODUCE = 0
Part: TypeAlias = tuple[str, int, bytes | None]
"""A topic, a partition, and the batch for it."""
DAMAGED = one_batch()[:-1] + b"\0"


@attrs.define
class Outcome:
    """The results of some requests, for a client and an operator."""

    answers: list[bytes | str | None]
    logs: list[bytes]
    counted: float
    muted_s: float


async def outcome(
    frames: list[bytes], version: int, *, flat: bool, name: str, settings: dict[str, Any]
) -> Outcome:
    """Send requests to a new broker, whose first topic is ``t``."""
    subject = broker()
    partition = await create_topic(subject, name, **settings)
    synced = [await create_topic(subject, "s", partitions=2, flush_messages=1)]
    synced.append(subject.replicas.partitions.get("s", 1))
    requests = Dispatcher(subject.services, ListenerType.BROKER).for_connection("A", "peer")
    route = await requests.dispatcher.prepare(PRODUCE, version)
    if not flat:
        requests.dispatcher.routes[PRODUCE, version] = attrs.evolve(route, flat=None)
    answers: list[bytes | str | None] = []
    async with trio.open_nursery() as nursery:
        await nursery.start(subject.replicas.run)
        for frame in frames:
            try:
                parts = await requests.answer(memoryview(frame)[4:])
                answers.append(None if parts is None else join_parts(parts))
            except Disconnect as reason:
                answers.append(str(reason))
        nursery.cancel_scope.cancel()
    counted = subject.services.metrics.total(REQUESTS)
    logs = [read_log(each) for each in (partition, *synced)]
    return Outcome(answers, logs, counted, requests.muted_s)


def frame_of(version: int, *records: bytes | None, name: str = "t", **changes: Any) -> bytes:
    """Return a request with a batch for each partition of a topic."""
    parts = [(name, index, each) for index, each in enumerate(records)]
    return frame_of_parts(version, parts, **changes)


def frame_of_parts(version: int, parts: list[Part], **changes: Any) -> bytes:
    """Return a request with these batches; names are ids from version 13 onwards."""
    message = request(*parts, **changes)
    for topic in message.topic_data:
        topic.topic_id = topic_id(topic.name)
    return request_frame(PRODUCE, version, 7, "c", message)


def sequence(number: int) -> bytes:
    return one_batch(producer_id=7, producer_epoch=0, base_sequence=number)


CASES: dict[str, tuple[list[tuple[Any, ...]], dict[str, Any], dict[str, Any]]] = {
    "usual": ([(one_batch(),), (one_batch(b"a", b"b"),)], {}, {}),
    "acks=1": ([(one_batch(),)], {}, {"acks": 1}),
    "acks=0": ([(one_batch(),)], {}, {"acks": 0}),
    "acks=0 and an error": ([(DAMAGED,)], {}, {"acks": 0}),
    "acks=7": ([(one_batch(),)], {}, {"acks": 7}),
    "damaged": ([(DAMAGED,), (one_batch(),)], {}, {}),
    "no records": ([(None,), (b"",)], {}, {}),
    "unknown partition": ([(one_batch(), one_batch())], {}, {}),
    "sequence": ([(sequence(n),) for n in (0, 1, 1, 5, 2)], {}, {}),
    "append time": ([(one_batch(),)], {"log_append_time": True}, {}),
    "too large": ([(one_batch(bytes(2000)),)], {"max_message_bytes": 1000}, {}),
    "compacted without a key": ([(one_batch(key=None),)], {"cleanup_compact": True}, {}),
    "recompressed": ([(one_batch(bytes(500)),)], {"compression_type": "gzip"}, {}),
    "flushed first": ([(one_batch(),), (one_batch(),)], {"flush_messages": 1}, {}),
    "follower": ([(one_batch(),)], {"replicas": (1, 2)}, {"timeout_ms": 10}),
    "transactional": ([(one_batch(transactional=True, producer_id=1),)], {}, {}),
    "internal topic": ([(one_batch(),)], {}, {"name": "__consumer_offsets"}),
    "other leader": ([(one_batch(),)], {"replicas": (1, 2), "leader": 2}, {"acks": 1}),
}


@pytest.mark.parametrize("version", [7, 8, 9, 12, 13])
@pytest.mark.parametrize("case", CASES)
async def test_usual_request_has_the_outcome_of_the_general_way(
    case: str, version: int, autojump_clock: trio.testing.MockClock
) -> None:
    requests, settings, changes = CASES[case]
    frames = [frame_of(version, *records, **changes) for records in requests]
    name = changes.get("name", "t")
    flat, general = [
        await outcome(frames, version, flat=flat, name=name, settings=settings)
        for flat in (True, False)
    ]
    assert flat == general


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("version", [7, 8, 9, 12, 13])
async def test_damaged_request_has_the_outcome_of_the_general_way(
    version: int, seed: int, autojump_clock: trio.testing.MockClock
) -> None:
    """Odd but valid requests are among them: null texts, tagged fields, other sizes."""
    rng = Random(seed)
    whole = [frame_of(version, one_batch(), acks=1), frame_of(version, sequence(0), acks=1)]
    frames = [b"size" + damage(rng, rng.choice(whole)[4:]) for _ in range(250)]
    frames = [frame for frame in frames if frame[4:8] == whole[0][4:8]]
    flat, general = [
        await outcome(frames, version, flat=flat, name="t", settings={}) for flat in (True, False)
    ]
    assert flat == general
    assert len(set(flat.answers)) > 10


TOPICS: Final[tuple[dict[str, Any], ...]] = (
    {},
    {"log_append_time": True},
    {"replicas": (1, 2)},
    {"replicas": (1, 2), "leader": 2},
)


def batches(sequence_number: int) -> st.SearchStrategy[bytes | None]:
    """Return batches of which a request may contain several: most of them are appended."""
    return st.sampled_from(
        [
            one_batch(),
            one_batch(b"a", b"b"),
            one_batch(bytes(3000), compression=ZSTD),
            sequence(sequence_number),
            sequence(sequence_number + 3),
            DAMAGED,
            None,
            b"",
            one_batch(transactional=True, producer_id=1),
            one_batch(bytes(70_000)),
            one_batch(bytes(70_000), compression=LZ4),
        ]
    )


def requests_of(number: int) -> st.SearchStrategy[list[Part]]:
    """Return the batches of one request; the partition t-1 and the topic x do not exist."""
    place = st.sampled_from([("t", 0), ("t", 0), ("t", 1), ("s", 0), ("s", 1), ("x", 0)])
    part = st.tuples(place, batches(number)).map(lambda drawn: (*drawn[0], drawn[1]))
    return st.lists(part, min_size=1, max_size=6)


@given(
    st.sampled_from([7, 8, 9, 12, 13]),
    st.tuples(*map(requests_of, range(3))),
    st.sampled_from([-1, 1, 0]),
    st.sampled_from(TOPICS),
)
@settings(max_examples=60)
def test_usual_request_for_several_partitions_has_the_outcome_of_the_general_way(
    version: int, sent: tuple[list[Part], ...], acks: int, topic: dict[str, Any]
) -> None:
    frames = [frame_of_parts(version, parts, acks=acks, timeout_ms=10) for parts in sent]

    async def outcomes() -> list[Outcome]:
        return [
            await outcome(frames, version, flat=flat, name="t", settings=topic)
            for flat in (True, False)
        ]

    clock = trio.testing.MockClock(autojump_threshold=0)
    flat, general = trio.run(outcomes, clock=clock)
    assert flat == general


async def test_request_for_several_partitions_is_answered_at_once() -> None:
    """Its frame is larger than one that is decoded in slices."""
    subject = broker()
    await create_topic(subject, partitions=6)
    requests = Dispatcher(subject.services, ListenerType.BROKER).for_connection("A", "peer")
    await requests.dispatcher.prepare(PRODUCE, 13)
    frame = frame_of(13, *[one_batch(bytes(16_000))] * 6, acks=1)
    parts = requests.answer_now(memoryview(frame)[4:])
    assert isinstance(parts, list)
    _, response = read_response(PRODUCE, 13, join_parts(parts)[4:])
    answers = response.responses[0].partition_responses
    assert [(each.index, each.error_code, each.base_offset) for each in answers] == [
        (index, 0, 0) for index in range(6)
    ]


async def test_batch_that_has_to_be_synced_first_is_not_acknowledged_at_once() -> None:
    subject = broker()
    partition = await create_topic(subject, flush_messages=1)
    requests = Dispatcher(subject.services, ListenerType.BROKER).for_connection("A", "peer")
    await requests.dispatcher.prepare(PRODUCE, 9)
    answer = requests.answer_now(memoryview(frame_of(9, one_batch(), acks=1))[4:])
    assert isinstance(answer, Unfinished)
    async with trio.open_nursery() as nursery:
        await nursery.start(subject.replicas.run)
        _, response = read_response(PRODUCE, 9, join_parts(await answer.finish())[4:])
        nursery.cancel_scope.cancel()
    (produced,) = response.responses[0].partition_responses
    assert (produced.error_code, produced.base_offset, partition.log.end_offset) == (0, 0, 1)


async def test_bug_after_the_append_does_not_repeat_it(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def fail(*arguments: Any, ends_transaction: bool) -> None:
        raise ZeroDivisionError("a bug")

    subject = broker()
    partition = await create_topic(subject)
    requests = Dispatcher(subject.services, ListenerType.BROKER).for_connection("A", "peer")
    monkeypatch.setattr(FetchWaits, "on_readable", fail)
    parts = await requests.answer(memoryview(frame_of(9, one_batch()))[4:])
    assert parts is not None
    _, response = read_response(PRODUCE, 9, join_parts(parts)[4:])
    (answer,) = response.responses[0].partition_responses
    assert answer.error_code == UnknownServerError.code
    assert partition.log.end_offset == 1
    assert "a bug" in caplog.text
