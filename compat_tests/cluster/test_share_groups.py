"""A share group whose leaders and coordinators are killed."""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

from confluent_kafka import Producer

from compat_tests.cluster.nodes import Cluster
from compat_tests.cluster.topics import create, leader_of
from compat_tests.harness.jvm import Jvm
from compat_tests.harness.wait import eventually
from compat_tests.share.members import configure_group

RECORDS = 1_000
KILLED_AT = 200
TOPIC = "shared"
GROUP = "sharers"
REPLICATED = {
    "offsets_topic_replication_factor": "3",
    "share_coordinator_state_topic_replication_factor": "3",
    "share_coordinator_state_topic_min_isr": "2",
    "group_share_min_record_lock_duration_ms": "1000",
}


def test_accepted_records_are_not_delivered_again_after_kills(
    make: Callable[..., Cluster], jvm: Jvm, tmp_path: Path
) -> None:
    cluster = make(3, **REPLICATED)
    cluster.start(features=())
    create(cluster, TOPIC)
    eventually(lambda: leader_of(cluster, TOPIC) > 0, "the topic has a leader")
    address = cluster.nodes[1].address
    configure_group(
        address, GROUP, share_auto_offset_reset="earliest", share_record_lock_duration_ms="5000"
    )
    producer = Producer({"bootstrap.servers": cluster.bootstrap, "acks": "all"})
    for number in range(RECORDS):
        producer.produce(TOPIC, f"value-{number}")
    assert producer.flush(60) == 0
    results: list[dict[str, Any]] = []
    progress = tmp_path / "accepted"
    progress.write_text("0")

    def share() -> None:
        arguments = ("slowly", cluster.bootstrap, TOPIC, GROUP, str(RECORDS), str(progress))
        results.append(jvm.scenario("Shares", *arguments))

    sharing = threading.Thread(target=share)
    sharing.start()
    eventually(lambda: int(progress.read_text() or 0) >= KILLED_AT, "records are accepted")
    killed = cluster.nodes[leader_of(cluster, TOPIC)]
    killed.kill()
    eventually(
        lambda: leader_of(cluster, TOPIC) not in (-1, killed.id), "another leader is elected"
    )
    sharing.join(120)
    assert results, cluster.tails()
    (result,) = results
    assert result["accepted"] + result["undecided"] == RECORDS, result
    assert (result["lag"], result["deliveredAgain"]) == (0, [])
