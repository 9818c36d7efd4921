"""Faults while clients write and read; what they saw together has no anomaly.

`compat_tests/durability/history.py` says what is looked for. `KWIRE_HISTORY_FAULTS=40` makes the
run longer, `KWIRE_HISTORY_SEED` makes it another one.
"""

from __future__ import annotations

import os
import random
import signal
import time

import pytest

from compat_tests.confluent_kafka.clients import create
from compat_tests.durability.history import History, anomalies
from compat_tests.durability.recording import TOO_LARGE, Run

PARTITIONS = 3
FAULTS = int(os.environ.get("KWIRE_HISTORY_FAULTS", "4"))
SEED = int(os.environ.get("KWIRE_HISTORY_SEED", "1"))


@pytest.fixture
def history(own_broker, topic) -> History:
    """What all clients saw of one run with kills, restarts and pauses."""
    create(
        own_broker.address,
        topic,
        PARTITIONS,
        internal_segment_bytes="40000",
        index_interval_bytes="500",
        max_message_bytes=str(TOO_LARGE // 2),
    )
    run = Run(own_broker.address, topic, PARTITIONS)
    run.start()
    faults = random.Random(SEED)
    kinds = ["kill", "pause", "stop", "kill"]
    run.wait_for_more(100)
    for number in range(FAULTS):
        fault(own_broker, kinds[number % len(kinds)])
        run.wait_for_more(faults.randrange(50, 200))
    healed = time.monotonic()
    run.wait_for_more(50)
    history = run.finish(healed)
    assert run.errors() == []
    return history


def fault(broker, kind: str) -> None:
    if kind == "pause":
        broker.process.send_signal(signal.SIGSTOP)
        time.sleep(1.5)  # not for anything to happen: how long it stands still
        broker.process.send_signal(signal.SIGCONT)
    else:
        getattr(broker, kind)()
        broker.start()


def test_clients_see_no_anomaly(history):
    """Kills, pauses and restarts while several producers, consumers and two groups run.

    Invariants 1, 2, 3, 4 (refused records), 7, 8, 9, 10, 11 and 12; transactions are not served.
    """
    outcomes = [send.outcome for send in history.sends]
    print({name: outcomes.count(name) for name in set(outcomes)}, "sends")
    print(len(history.polls), "polls", len(history.commits), "commits", len(history.calls), "calls")
    assert anomalies(history) == {}
    assert outcomes.count("ok") > 300 * FAULTS
    assert outcomes.count("failed") > 0
    assert {commit.outcome for commit in history.commits} >= {"ok"}
    assert len({(poll.client, poll.session) for poll in history.polls}) > 6  # rebalances
    assert any(read.offset for read in history.committed)
