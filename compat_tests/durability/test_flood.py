"""A broker whose connections take all available file descriptors."""

from __future__ import annotations

import os
import socket
import time
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest
from confluent_kafka import Consumer, TopicPartition

from compat_tests.confluent_kafka.clients import admin, consumer, create, deliver, poll, producer
from compat_tests.harness.broker import Broker, make_broker
from compat_tests.harness.wait import eventually
from kwire.net.acceptor import REPORT_S

DESCRIPTORS = 256
PARTITIONS = 100
"""Partitions of the topic; with few descriptors, a process cannot keep all their files open."""


@pytest.fixture
def poor_broker(broker_kind: str, tmp_path: Path) -> Iterator[Broker]:
    if broker_kind == "kafka":
        pytest.skip("needs more descriptors than this to start")
    limit = ("sh", "-c", f'ulimit -n {DESCRIPTORS}; exec "$@"', "sh")
    broker = make_broker(broker_kind, tmp_path / "broker", prefix=limit)
    try:
        yield broker
    finally:
        broker.close()


def test_flood_of_connections_leaves_served_clients_their_files(poor_broker, topic):
    """Without descriptors, accepting pauses and served connections live (invariant 90)."""
    address = poor_broker.address
    create(address, topic, PARTITIONS)
    client = producer(address, acks="all", linger_ms=0)
    everywhere = [{"topic": topic, "partition": n, "value": b"%d" % n} for n in range(PARTITIONS)]
    assert len(deliver(client, everywhere)) == PARTITIONS
    with consumer(address, "no-group") as reader, ExitStack() as flood:
        beginning = [TopicPartition(topic, number, 0) for number in range(PARTITIONS)]
        reader.assign(beginning)
        eventually(lambda: poll(reader), "the reader is served")
        host, port = address.split(":")
        began = time.monotonic()
        for _ in range(2 * DESCRIPTORS):
            flood.enter_context(socket.create_connection((host, int(port)), 30))
        pid = poor_broker.process.pid
        eventually(lambda: "accept paused" in _log(poor_broker), "accepting pauses")
        assert len(os.listdir(f"/proc/{pid}/fd")) < DESCRIPTORS
        for _ in range(10):
            delivered = deliver(client, everywhere)
            reader.assign(beginning)  # One fetch then reads more files than descriptors are left.
            _wait_read(reader, {(m.partition(), m.offset()) for m in delivered})
        lines = _log(poor_broker).splitlines()
        assert not [line for line in lines if "offline" in line or "ERROR" in line]
        pauses = [line for line in lines if "accept paused" in line]
        assert len(pauses) <= 1 + (time.monotonic() - began) / REPORT_S, "it does not spin"
    eventually(lambda: topic in admin(address).list_topics(timeout=60).topics, "others come in")
    create(address, f"{topic}-later", 4)


def _wait_read(reader: Consumer, last: set[tuple[int, int]]) -> None:
    """Wait until a consumer gets the records at these partitions and offsets."""
    records: set[tuple[int, int]] = set()

    def is_complete() -> bool:
        records.update((m.partition(), m.offset()) for m in poll(reader))
        return last <= records

    eventually(is_complete, "what was sent is read")


def _log(broker: Broker) -> str:
    return (broker.directory / "server.log").read_text()
