"""Producers that send without a pause, and the check that no acknowledged record is missing.

Rule: an acknowledgement has a partition and an offset; at that offset exactly that message stays
for ever. An unacknowledged message may be missing, or be there once or twice.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any

import attrs
from confluent_kafka import OFFSET_INVALID, Consumer, Producer, TopicPartition

from compat_tests.harness.wait import eventually

BASE = {
    "linger.ms": 2,
    "batch.size": 8000,
    "reconnect.backoff.ms": 20,
    "reconnect.backoff.max.ms": 50,
    "retry.backoff.ms": 20,
    "retry.backoff.max.ms": 100,
    "message.timeout.ms": 120_000,
    "log_level": 0,
}
KINDS: Mapping[str, Mapping[str, Any]] = {
    "idempotent": {"enable.idempotence": True},
    "idempotent-zstd": {"enable.idempotence": True, "compression.type": "zstd"},
    "all-lz4": {"acks": "all", "compression.type": "lz4"},
    "leader": {"acks": 1},
    "leader-gzip": {"acks": 1, "compression.type": "gzip"},
}
"""The settings of each kind of producer."""
PADDING = b"." * 200
RECORD_OVERHEAD = 100
"""An upper bound of the bytes that a record takes on disk beside its value, with batch header."""


@attrs.define
class Load:
    """One producer in a thread; it sends round robin to the partitions of a topic."""

    name: str
    address: str
    topic: str
    partitions: int
    settings: Mapping[str, Any]
    pause: float = 0.0005
    acknowledged: dict[tuple[int, int], bytes] = attrs.field(factory=dict, repr=False)
    times: list[float] = attrs.field(factory=list, repr=False)
    failures: list[str] = attrs.field(factory=list)
    _stop: threading.Event = attrs.field(factory=threading.Event)
    _thread: threading.Thread | None = None

    def start(self) -> None:
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def finish(self) -> None:
        """Send the queued messages and end the thread."""
        self._stop.set()
        assert self._thread is not None
        self._thread.join(150)
        assert not self._thread.is_alive(), f"{self.name} does not end"

    def _run(self) -> None:
        client = Producer({"bootstrap.servers": self.address, **BASE, **self.settings})
        number = 0
        while not self._stop.is_set():
            value = b"%s-%d-" % (self.name.encode(), number)
            if len(client) < 5000:
                client.produce(
                    self.topic,
                    value + PADDING,
                    partition=number % self.partitions,
                    on_delivery=partial(self._on_delivery, value),
                )
                number += 1
            client.poll(0)
            self._stop.wait(self.pause)
        client.flush(120)

    def _on_delivery(self, value: bytes, error: Any, message: Any) -> None:
        if error is not None:
            self.failures.append(str(error))
            return
        self.times.append(time.monotonic())
        offset = message.offset()
        if offset is None:  # The broker knew only that it had the record.
            offset = OFFSET_INVALID
        self.acknowledged[message.partition(), offset] = value


@contextmanager
def loads(address: str, topic: str, partitions: int, pause: float = 0.0005) -> Iterator[list[Load]]:
    """Run one producer of every kind inside the context."""
    running = [
        Load(kind, address, topic, partitions, settings, pause) for kind, settings in KINDS.items()
    ]
    for load in running:
        load.start()
    try:
        yield running
    finally:
        for load in running:
            load.finish()


def wait_for_more(running: Sequence[Load], count: int) -> None:
    """Wait until every producer has ``count`` more acknowledgements."""
    goals = {load.name: len(load.acknowledged) + count for load in running}
    eventually(
        lambda: all(len(load.acknowledged) >= goals[load.name] for load in running),
        f"{count} acknowledgements more of each of {sorted(goals)}",
    )


def first_after(running: Sequence[Load], moment: float) -> float:
    """Return the seconds from ``moment`` to the next acknowledgement."""
    times = [next((t for t in load.times if t > moment), None) for load in running]
    return min(t for t in times if t is not None) - moment


def contents(address: str, topic: str, partitions: int) -> dict[tuple[int, int], bytes]:
    """Return every record of each partition, from start to end offset, without its padding.

    Read again if retention moved a start offset in the meantime.
    """
    client = Consumer(
        {
            "bootstrap.servers": address,
            "group.id": "unused",
            "enable.auto.commit": False,
            "enable.partition.eof": True,
            "auto.offset.reset": "earliest",
            "fetch.wait.max.ms": 100,
            "log_level": 0,
        }
    )
    deadline = time.monotonic() + 120
    try:
        marks, stored = None, {}
        while marks != (now := _watermarks(client, topic, partitions)):
            assert time.monotonic() < deadline, f"not read to the end: {marks}, {now}"
            marks, stored = now, _read(client, topic, now, deadline)
        return stored
    finally:
        client.close()


def starts(address: str, topic: str, partitions: int) -> list[int]:
    """Return the start offset of each partition."""
    client = Consumer({"bootstrap.servers": address, "group.id": "unused", "log_level": 0})
    try:
        return [start for start, _ in _watermarks(client, topic, partitions)]
    finally:
        client.close()


def _watermarks(client: Any, topic: str, partitions: int) -> list[tuple[int, int]]:
    return [
        client.get_watermark_offsets(TopicPartition(topic, number), 30)
        for number in range(partitions)
    ]


def _read(
    client: Any, topic: str, marks: Sequence[tuple[int, int]], deadline: float
) -> dict[tuple[int, int], bytes]:
    client.assign([TopicPartition(topic, number, start) for number, (start, _) in enumerate(marks)])
    ends = {number: end for number, (start, end) in enumerate(marks) if end > start}
    records: dict[tuple[int, int], bytes] = {}
    while ends:
        for message in client.consume(2000, 1.0):
            if message.error() is None:
                value = message.value()
                records[message.partition(), message.offset()] = value.removesuffix(PADDING)
            elif message.offset() >= ends.get(message.partition(), 1 << 62):
                del ends[message.partition()]
        assert time.monotonic() < deadline, f"not read to the end: {ends}"
    return records


@attrs.frozen
class Deletions:
    """The records that may be missing at the beginning of each partition."""

    requested: Sequence[int]
    """The start offset that the client has requested for each partition."""
    retention_bytes: int
    """The bytes that must be left where retention has deleted beyond the requested start."""

    def check(self, starts: Sequence[int], stored: Mapping[tuple[int, int], bytes]) -> None:
        """Fail if a partition starts below the requested offset, or above it without retention."""
        for number, (start, requested) in enumerate(zip(starts, self.requested, strict=True)):
            assert start >= requested, f"partition {number} starts at {start}, not {requested}"
            if start > requested:
                remaining_bytes = sum(
                    len(value) + len(PADDING) + RECORD_OVERHEAD
                    for (at, _), value in stored.items()
                    if at == number
                )
                text = f"partition {number} starts at {start}, asked for was {requested}"
                assert remaining_bytes >= self.retention_bytes, (
                    f"{text}; only {remaining_bytes} bytes are left"
                )


def check(
    running: Sequence[Load],
    address: str,
    topic: str,
    partitions: int,
    *,
    deletions: Deletions | None = None,
) -> int:
    """Check that every acknowledged record is at its offset; return their number.

    ``deletions`` must explain records that are missing before the start of their partition.
    """
    stored = contents(address, topic, partitions)
    first = [0] * partitions
    if deletions is not None:
        first = starts(address, topic, partitions)
        deletions.check(first, stored)
    for number in range(partitions):
        offsets = sorted(offset for at, offset in stored if at == number)
        assert offsets == list(range(first[number], offsets[-1] + 1)), f"a gap in {number}"
    count = 0
    for load in running:
        assert not load.failures, (load.name, load.failures[:3])
        missing = {
            place: (value, stored.get(place))
            for place, value in load.acknowledged.items()
            if stored.get(place) != value
            and place[1] != OFFSET_INVALID
            and place[1] >= first[place[0]]
        }
        assert not missing, (load.name, len(missing), dict(list(missing.items())[:5]))
        count += len(load.acknowledged)
        if "idempotent" in load.name:
            _once_and_in_order(load.name, stored, partitions)
    return count


def _once_and_in_order(name: str, stored: Mapping[tuple[int, int], bytes], partitions: int) -> None:
    own = name.encode() + b"-"
    for partition in range(partitions):
        numbers = [
            int(value.removeprefix(own).rstrip(b"-"))
            for (at, _), value in sorted(stored.items())
            if at == partition and value.startswith(own) and value[len(own) : -1].isdigit()
        ]
        assert numbers == sorted(set(numbers)), (name, partition)
