"""Kafka Connect keeps its configuration, positions and states in three compacted topics.

Each flush of positions, each change of a configuration and each change of a state is a record of
one of these topics. A worker must find the latest of each after compaction has removed the rest.
"""

from __future__ import annotations

import time
from pathlib import Path

import pytest
from confluent_kafka import TopicPartition

from compat_tests.confluent_kafka.clients import consumer, is_end
from compat_tests.harness.broker import Broker
from compat_tests.harness.wait import eventually
from compat_tests.java_old.connect import STORES, UNCOMMITTED, Worker, append, lines, values

pytestmark = [pytest.mark.single, pytest.mark.long]
ROLL_MS = 1000
RUNNING = ("RUNNING", "RUNNING")
ROUNDS, CHANGES, LINES = 3, 60, 3000
MOST_RECORDS = 40
"""Records that a store may hold: the keys of two connectors, and what came since the last pass."""


BROKER_SETTINGS = {
    "log.cleaner.backoff.ms": "200",
    "log.cleaner.min.cleanable.ratio": "0.01",
    "log.roll.ms": str(ROLL_MS),
    "num.partitions": "1",
}


def records_left(broker: Broker, topic: str) -> tuple[int, int]:
    """Return the number of records that a consumer reads, and of offsets that were written."""
    count = 0
    with consumer(broker.address, "counter", enable_partition_eof=True) as client:
        client.assign([TopicPartition(topic, 0, 0)])
        while True:
            for message in client.consume(500, 0.2):
                if is_end(message):
                    return count, message.offset()
                assert message.error() is None, message.error()
                count += 1


def wait_few_records(broker: Broker, topic: str) -> None:
    eventually(
        lambda: records_left(broker, topic)[0] <= MOST_RECORDS,
        lambda: f"{topic}: {records_left(broker, topic)}",
    )


def wait_running(worker: Worker, name: str) -> None:
    eventually(lambda: worker.state(name) == RUNNING, f"{name} runs")


def change_often(worker: Worker, source: Path, sink: Path, written: list[str]) -> None:
    """Append lines while the sink is paused and resumed; wait until the sink has all lines."""
    for name in ("source", "sink"):
        wait_running(worker, name)
    for change in range(CHANGES):
        more = [f"line {len(written) + index}" for index in range(LINES // CHANGES)]
        append(source, "".join(f"{line}\n" for line in more))
        written += more
        worker.ask("PUT", f"/connectors/sink/{'pause' if change % 2 else 'resume'}")
        time.sleep(0.05)  # So that more than one flush of positions is written.
    worker.ask("PUT", "/connectors/sink/resume")
    eventually(lambda: set(lines(sink)) >= set(written), "all lines")


def test_worker_finds_connectors_and_positions_after_compaction(
    own_broker: Broker, tmp_path: Path
) -> None:
    broker = own_broker
    one_partition = {f"{store}_storage_partitions": "1" for store in STORES if store != "config"}
    worker = Worker(broker.address, tmp_path, offset_flush_interval_ms="20", **one_partition)
    source, sink = tmp_path / "in.txt", tmp_path / "out.txt"
    source.touch()
    written: list[str] = []
    configs = {
        "source": {"connector.class": "FileStreamSource", "file": str(source), "topic": "lines"},
        "sink": {"connector.class": "FileStreamSink", "file": str(sink), "topics": "lines"},
    }
    for number in range(ROUNDS):
        with worker.running():
            if number == 0:
                for name, config in configs.items():
                    worker.ask("PUT", f"/connectors/{name}/config", config)
            change_often(worker, source, sink, written)
        # The sink may write lines again after a pause; the source continues at its position.
        assert values(broker.address, "lines", UNCOMMITTED) == written
        for store in STORES:
            wait_few_records(broker, f"{worker.name}-{store}")
        broker.restart()
    for store in ("config", "status"):  # A file's position is written once a second at most.
        _, end = records_left(broker, f"{worker.name}-{store}")
        assert end > 3 * MOST_RECORDS, f"{store}: {end} offsets prove nothing"
