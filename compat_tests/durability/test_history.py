"""Faults while clients write and read; their joined history has no anomaly.

`compat_tests/durability/history.py` defines the anomalies. `KWIRE_HISTORY_FAULTS=40` makes the
run longer, `KWIRE_HISTORY_SEED` sets the seed.
"""

from __future__ import annotations

import logging
import os
import random
import signal
import time
from pathlib import Path

import pytest

from compat_tests.confluent_kafka.clients import create
from compat_tests.durability.history import History, anomalies
from compat_tests.durability.recording import TOO_LARGE, Run
from compat_tests.durability.sessions import (
    NewSession,
    SessionEvent,
    SessionRecorder,
    SkippedSequence,
    producer_sessions,
)
from compat_tests.harness.broker import Broker

PARTITIONS = 3
FAULTS = int(os.environ.get("KWIRE_HISTORY_FAULTS", "4"))
SEED = int(os.environ.get("KWIRE_HISTORY_SEED", "1"))


def run_with_faults(broker, topic: str, kinds: list[str]) -> History:
    """Record the observations of all clients while these faults happen to the broker in turn."""
    create(
        broker.address,
        topic,
        PARTITIONS,
        internal_segment_bytes="40000",
        index_interval_bytes="500",
        max_message_bytes=str(TOO_LARGE // 2),
    )
    run = Run(broker.address, topic, PARTITIONS)
    run.start()
    chance = random.Random(SEED)
    run.wait_for_more(100)
    for number in range(FAULTS):
        FAULT[kinds[number % len(kinds)]](broker, chance)
        run.wait_for_more(chance.randrange(50, 200))
    healed = time.monotonic()
    run.wait_for_more(50)
    history = run.finish(healed)
    history.sessions = {
        (topic, partition): producer_sessions(broker.data / f"{topic}-{partition}")
        for partition in range(PARTITIONS)
    }
    assert run.errors() == []
    return history


def check(history: History) -> None:
    texts_by_check = anomalies(history)
    assert not texts_by_check, "\n".join(
        f"{name}: {len(texts)}, such as {texts[0]}" for name, texts in texts_by_check.items()
    )


def kill(broker, chance) -> None:
    broker.kill()
    broker.start()


def pause(broker, chance) -> None:
    broker.process.send_signal(signal.SIGSTOP)
    time.sleep(1.5)  # The length of the pause; nothing is awaited.
    broker.process.send_signal(signal.SIGCONT)


def stop(broker, chance) -> None:
    broker.stop()
    assert broker.process.returncode in EXIT_CODES[broker.kind]
    assert marker(broker).exists()
    broker.start()
    assert not marker(broker).exists()


def stop_twice(broker, chance) -> None:
    """Send a second signal at a random moment of the stop, and start again."""
    broker.process.send_signal(signal.SIGTERM)
    time.sleep(chance.random() / 10)
    broker.stop()
    broker.start()


def kill_while_stopping(broker, chance) -> None:
    broker.process.send_signal(signal.SIGTERM)
    time.sleep(chance.random() / 10)
    broker.kill()
    broker.start()


def marker(broker: Broker) -> Path:
    return broker.data / ".kafka_cleanshutdown"


EXIT_CODES = {"kwire": {0}, "kafka": {0, 143}}
FAULT = {
    "kill": kill,
    "pause": pause,
    "stop": stop,
    "stop twice": stop_twice,
    "kill while stopping": kill_while_stopping,
}


@pytest.mark.long
def test_clients_see_no_anomaly(own_broker, topic):
    """Kills, pauses and restarts while several producers, consumers and two groups run.

    Invariants 1, 2, 3, 4 (refused records), 7, 8, 9, 10, 11 and 12; transactions are not served.
    """
    history = run_with_faults(own_broker, topic, ["kill", "pause", "stop", "kill"])
    outcomes = [send.outcome for send in history.sends]
    print({name: outcomes.count(name) for name in set(outcomes)}, "sends")
    print(len(history.polls), "polls", len(history.commits), "commits", len(history.calls), "calls")
    check(history)
    assert outcomes.count("ok") > 300 * FAULTS
    assert outcomes.count("failed") > 0
    assert {commit.outcome for commit in history.commits} >= {"ok"}
    assert {poll.client for poll in history.polls} >= {"assigned", "auto", "member-1", "member-2"}
    assert any(read.offset for read in history.committed)


@pytest.mark.long
def test_stop_may_be_cut_short_at_any_time(own_broker, topic):
    """A stop drains, leaves a clean marker, and causes no rebalance (invariant 109).

    A second signal or a kill during the stop loses no record either.
    """
    kinds = ["stop", "stop twice", "stop", "kill while stopping"]
    history = run_with_faults(own_broker, topic, kinds)
    check(history)
    assert {poll.session for poll in history.polls if poll.client == "auto"} == {1}


def test_skipped_sequence_in_a_producers_log_is_recorded() -> None:
    """The line is librdkafka 2.16's, after it had sent two batches to a leader without room."""
    events: list[SessionEvent] = []
    logger = logging.Logger("rdkafka")
    logger.addHandler(SessionRecorder("writer", events.append))
    begin = "ERRSEQ [rdkafka#producer-2] [thrd:127.0.0.1:29663/1]: 127.0.0.1:29663/1: "
    logger.debug(
        f"{begin}ProduceRequest for t [0] with 1 message(s) failed due to skipped sequence numbers"
        " (PID{Id:0,Epoch:0}, base seq 4 > next seq 3) caused by previous failed request"
        " (KAFKA_STORAGE_ERROR, actions Refresh,Retry,MsgNotPersisted, base seq 3..3,"
        " base msgid 4, 0ms ago): recovering and retrying"
    )
    logger.debug(
        "DRAIN [rdkafka#producer-2] [thrd:main]: Beginning partition drain in state Assigned for"
        " PID{Id:0,Epoch:0} epoch bump for 1 partition(s) with in-flight requests: skipped"
        " sequence numbers"
    )
    logger.debug("DRAIN [rdkafka#producer-2] [thrd:main]: All partitions drained")
    assert events == [
        SkippedSequence("writer", "KAFKA_STORAGE_ERROR"),
        NewSession("writer", "skipped sequence numbers"),
    ]
