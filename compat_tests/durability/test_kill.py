"""Kills with SIGKILL under load: no acknowledged record is lost, and producers go on at once."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import time
from functools import partial

import pytest

from compat_tests.confluent_kafka.clients import admin, consumer, create, poll
from compat_tests.durability.load import Deletions, check, first_after, loads, wait_for_more
from compat_tests.harness.broker import ROOT, make_broker
from compat_tests.harness.wait import collect

PARTITIONS = 4
ROUNDS = int(os.environ.get("KWIRE_KILL_ROUNDS", "3"))


def test_every_acknowledged_record_is_where_it_was_said_to_be(own_broker, topic, group):
    """Acknowledged records survive kills, with small segments so that some fall into rolls."""
    address = own_broker.address
    create(address, topic, PARTITIONS, internal_segment_bytes="60000", index_interval_bytes="500")
    waits = []
    with loads(address, topic, PARTITIONS) as running:
        for _ in range(ROUNDS):
            wait_for_more(running, 150)
            with consumer(address, group) as reader:
                reader.subscribe([topic])
                collect(partial(poll, reader), 100)
                reader.commit(asynchronous=False)
                places = _committed_offsets(reader)
            wait_for_more(running, 50)
            own_broker.kill()
            killed = time.monotonic()
            own_broker.start()
            started = time.monotonic()
            wait_for_more(running, 50)
            waits.append(first_after(running, killed))
            assert first_after(running, started) < 30, "producers go on at once"
            with consumer(address, group) as reader:
                reader.subscribe([topic])
                collect(partial(poll, reader), 1)
                assert _committed_offsets(reader) == places
    print("seconds from kill -9 and restart to the first acknowledgement:", waits)
    assert check(running, address, topic, PARTITIONS) > ROUNDS * 200 * len(running)


@pytest.mark.long
def test_kills_at_any_moment_of_starting_and_serving(own_broker, topic):
    """Acknowledged records survive a crash loop in which some starts are killed too."""
    address = own_broker.address
    create(address, topic, PARTITIONS, internal_segment_bytes="20000", index_interval_bytes="500")
    moments = random.Random(ROUNDS)
    with loads(address, topic, PARTITIONS) as running:
        for _ in range(2 * ROUNDS):
            wait_for_more(running, 20)
            time.sleep(moments.random() / 5)  # The random moment of the kill; nothing is awaited.
            own_broker.kill()
            for _ in range(2):
                _die_starting(own_broker, moments.random() / 2)
            own_broker.start()
    assert check(running, address, topic, PARTITIONS) > 0


@pytest.mark.parametrize("how", ["SIGTERM", "SIGSTOP"])
def test_a_stop_or_a_pause_under_load(broker_kind, own_broker, topic, how):
    """A clean stop finishes under load; a paused broker continues when it is resumed."""
    address = own_broker.address
    create(address, topic, PARTITIONS, internal_segment_bytes="60000")
    stops = []
    with loads(address, topic, PARTITIONS) as running:
        for _ in range(ROUNDS):
            wait_for_more(running, 100)
            begun = time.monotonic()
            if how == "SIGTERM":
                own_broker.stop()
                stops.append(time.monotonic() - begun)
                # A JVM that gets SIGTERM ends with 143.
                assert own_broker.process.returncode == (143 if broker_kind == "kafka" else 0)
                assert (own_broker.data / ".kafka_cleanshutdown").exists()
                own_broker.start()
            else:
                own_broker.process.send_signal(signal.SIGSTOP)
                time.sleep(2)  # Longer than an answer to these producers takes.
                own_broker.process.send_signal(signal.SIGCONT)
        wait_for_more(running, 100)
    print("seconds of a clean stop under load:", stops)
    assert check(running, address, topic, PARTITIONS) > ROUNDS * 100 * len(running)


@pytest.mark.long
def test_kills_during_retention_and_deletions_of_records(broker_kind, tmp_path, topic):
    """Deleted records stay deleted and all others are there, with kills during the deletions."""
    settings = {"log.retention.check.interval.ms": "50", "log.segment.delete.delay.ms": "100"}
    own = make_broker(broker_kind, tmp_path / "broker", settings)
    try:
        address = own.address
        create(address, topic, PARTITIONS, internal_segment_bytes="20000", retention_bytes="90000")
        starts = requested = [0] * PARTITIONS
        with loads(address, topic, PARTITIONS) as running:
            for round in range(2 * ROUNDS):
                wait_for_more(running, 300)
                if round % 2:
                    starts = requested = _delete_records(address, topic)
                own.kill()
                own.start()
                now = _starts(address, topic)
                assert all(new >= old for new, old in zip(now, starts, strict=True)), (starts, now)
                starts = now
        assert min(starts) > 0
        deletions = Deletions(requested, retention_bytes=90_000)
        assert check(running, address, topic, PARTITIONS, deletions=deletions) > 0
    finally:
        own.close()


def _die_starting(broker, seconds):
    """Start the broker and kill it ``seconds`` later, at any stage of its start."""
    command = [str(ROOT / "scripts" / "kwire"), "serve", "--config", "server.properties"]
    with (broker.directory / "server.log").open("ab") as log:
        process = subprocess.Popen(
            command, cwd=broker.directory, stdout=subprocess.DEVNULL, stderr=log
        )
    time.sleep(seconds)
    process.kill()
    process.wait()


def _committed_offsets(reader):
    places = reader.committed(reader.assignment(), 30)
    return {(p.topic, p.partition): p.offset for p in places}


def _watermarks(address, topic):
    from confluent_kafka import TopicPartition

    with consumer(address, "unused") as reader:
        return [
            reader.get_watermark_offsets(TopicPartition(topic, number), 30)
            for number in range(PARTITIONS)
        ]


def _starts(address, topic):
    return [start for start, _ in _watermarks(address, topic)]


def _delete_records(address, topic):
    """Delete the first half of each partition's records; return the requested start offsets."""
    from confluent_kafka import TopicPartition

    places = [
        TopicPartition(topic, number, (start + end) // 2)
        for number, (start, end) in enumerate(_watermarks(address, topic))
    ]
    client = admin(address)
    for future in client.delete_records(places).values():
        future.result(30)
    return [place.offset for place in places]
