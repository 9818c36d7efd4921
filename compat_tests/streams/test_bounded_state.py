"""A stateful application updates few keys many times; what it stores on the broker stays small.

Each update is a record of the changelog, and each commit one of the offsets topic. Without
compaction, either would grow for as long as the application runs.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from compat_tests.confluent_kafka.clients import create
from compat_tests.harness.broker import Broker
from compat_tests.harness.wait import eventually
from compat_tests.streams.application import WORDS, Input, Instance, Output

pytestmark = [pytest.mark.single, pytest.mark.long]
PARTITIONS = 2
ROUNDS, WRITES, RECORDS = 4, 2, 60_000
SEGMENT_BYTES = 1 << 20
MOST_BYTES = PARTITIONS * 2 * SEGMENT_BYTES
"""In each partition an active segment, and one that waits for the next pass."""
WRITTEN_BYTES = 2 * MOST_BYTES
"""The least that the changelog must have received for the bound to mean anything."""
BROKER_SETTINGS = {
    "log.cleaner.backoff.ms": "200",
    "log.cleaner.min.cleanable.ratio": "0.2",
    "log.segment.bytes": str(SEGMENT_BYTES),
    "offsets.topic.num.partitions": str(PARTITIONS),
    "offsets.topic.segment.bytes": str(SEGMENT_BYTES),
    "transaction.state.log.num.partitions": str(PARTITIONS),
    "transaction.state.log.segment.bytes": str(SEGMENT_BYTES),
}
STREAMS = ("max.poll.records=1000", "num.standby.replicas=0", "commit.interval.ms=50")


def stored_bytes(broker: Broker, topic: str) -> int:
    """Return the size in bytes of all partitions of ``topic`` on disk."""
    return sum(
        file.stat().st_size
        for folder in broker.data.glob(f"{topic}-[0-9]*")
        for file in folder.glob("*.log")
    )


def wait_small(broker: Broker, topic: str) -> None:
    eventually(
        lambda: stored_bytes(broker, topic) <= MOST_BYTES,
        lambda: f"{topic}: {stored_bytes(broker, topic)} bytes",
    )


def test_changelog_stays_small_and_restores_exact_totals(
    own_broker: Broker, unique, tmp_path: Path
) -> None:
    broker = own_broker
    source, target, name = unique("input"), unique("output"), unique("totals")
    create(broker.address, source, PARTITIONS)
    create(broker.address, target, 2)
    instance = Instance(
        broker.address, name, (source, target), tmp_path / "instance", settings=STREAMS
    )
    records = Input(broker.address, source, PARTITIONS)
    results = Output(broker.address, target, unique("reader"))
    changelog = f"{name}-totals-changelog"
    try:
        for number in range(ROUNDS):
            instance.start()
            for _ in range(WRITES):
                records.write(RECORDS)
            results.wait_count(records.written, [instance])
            for topic in (changelog, "__consumer_offsets", "__transaction_state"):
                wait_small(broker, topic)
            instance.kill()
            instance.forget()  # The next round restores the state from what compaction has left.
            if number % 2:
                broker.restart()
    finally:
        instance.kill()
    assert results.values == records.sums
    assert len(results.values) == WORDS
    assert written_bytes(records) >= WRITTEN_BYTES


def written_bytes(records: Input) -> int:
    """Return about how much the changelog received in all, without headers: keys and values."""
    return sum(len(word) + len(value) for word, values in records.sums.items() for value in values)
