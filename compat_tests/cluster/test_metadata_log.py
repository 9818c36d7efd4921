"""The metadata log's settings of segments, snapshots and retention; Kafka's dump of its files."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from compat_tests.cluster.nodes import Cluster
from compat_tests.cluster.tools import DUMP_LOG, TOPICS, replication
from compat_tests.harness.jvm import Jvm
from compat_tests.harness.wait import eventually
from kwire.codec.messages.create_topics import CreateTopicsRequest

CLEANING_SECONDS = 200
"""The time for a cleaning: Apache Kafka checks once a minute, and deletes a minute later."""


def metadata(cluster: Cluster, node_id: int = 1) -> Path:
    return cluster.nodes[node_id].directory / "data/__cluster_metadata-0"


def names(cluster: Cluster, suffix: str, node_id: int = 1) -> list[str]:
    return sorted(path.name for path in metadata(cluster, node_id).glob(f"*.{suffix}"))


def create(cluster: Cluster, *topics: str) -> None:
    """Create topics of one partition through a living broker."""
    creatable = CreateTopicsRequest.CreatableTopic
    request = CreateTopicsRequest(
        topics=[creatable(name=name, num_partitions=1, replication_factor=1) for name in topics],
        timeout_ms=30_000,
    )
    living = next(node for node in cluster.brokers if node.alive)
    with living.client() as client:
        answer = client.call(request, 7)
    assert {topic.error_code for topic in answer.topics} == {0}


def test_snapshots_after_bytes_and_time(make):
    """A snapshot is written after enough bytes or enough time, and not before."""
    cluster = make(1, metadata_log_max_record_bytes_between_snapshots="20000")
    cluster.start()
    create(cluster, "first")
    assert names(cluster, "checkpoint") == []
    create(cluster, *(f"many-{n}" for n in range(300)))
    eventually(lambda: names(cluster, "checkpoint"), "enough bytes")
    timed = make(1, metadata_log_max_snapshot_interval_ms="1000")
    timed.start()
    eventually(lambda: names(timed, "checkpoint"), "enough time")


def test_segments(make):
    """A segment rolls at its maximum size; the records of older segments stay readable."""
    cluster = make(1, internal_metadata_log_segment_bytes="20000")
    cluster.start()
    for batch in range(3):
        create(cluster, *(f"topic-{batch}-{n}" for n in range(100)))
    assert len(names(cluster, "log")) > 1
    node = cluster.nodes[1]
    node.stop()
    node.launch()
    cluster.wait_complete()
    create(cluster, "one-more")


def test_a_segment_grows_old(make):
    cluster = make(1, metadata_log_segment_ms="100")
    cluster.start()
    numbers = iter(range(10_000))

    def has_second_segment() -> bool:
        create(cluster, f"topic-{next(numbers)}")
        return len(names(cluster, "log")) > 1

    eventually(has_second_segment, "a second segment")


def test_what_is_not_needed_is_deleted(jvm, make):
    """With the smallest retention, the log before the newest snapshot goes; nodes still join."""
    cluster = make(
        3,
        metadata_log_max_record_bytes_between_snapshots="5000",
        metadata_max_retention_bytes="1",
        internal_metadata_log_segment_bytes="20000",
        internal_metadata_delete_delay_millis="100",
    )
    cluster.start()
    behind = next(node for node in cluster.controllers if node is not cluster.active())
    behind.stop()
    topics = [f"topic-{n}" for n in range(500)]
    for start in range(0, 500, 50):
        create(cluster, *topics[start : start + 50])
    for node in cluster.controllers:
        if node is not behind:

            def is_cleaned(node_id: int = node.id) -> bool:
                logs = names(cluster, "log", node_id)
                return len(names(cluster, "checkpoint", node_id)) == 1 and not logs[0].startswith(
                    "0" * 20
                )

            eventually(is_cleaned, f"{node.id}: {names(cluster, 'log', node.id)}", CLEANING_SECONDS)
    behind.launch()
    cluster.wait_complete()
    assert names(cluster, "checkpoint", behind.id), "it was given a snapshot"
    assert sorted(replication(jvm, cluster).values()) == ["Follower", "Follower", "Leader"]
    listed = jvm.tool(TOPICS, "--bootstrap-server", behind.address, "--list").out
    assert set(topics) <= set(listed.split())


@pytest.mark.parametrize("suffix", ["log", "checkpoint"])
def test_dump(jvm, make, suffix):
    """kafka-dump-log reads log and snapshot as metadata records."""
    often = {"metadata_log_max_record_bytes_between_snapshots": "100"}
    cluster = make(1, **(often if suffix == "checkpoint" else {}))
    cluster.start()
    create(cluster, "dumped")

    def is_written() -> bool:
        written = names(cluster, suffix)
        return bool(written) and b"dumped" in (metadata(cluster) / written[-1]).read_bytes()

    eventually(is_written, "something to read")
    cluster.nodes[1].stop()
    path = str(metadata(cluster) / names(cluster, suffix)[-1])
    output = jvm.tool(DUMP_LOG, "--cluster-metadata-decoder", "--files", path).ok()
    kinds = set(re.findall(r'"type":"(\w+)"', output))
    assert {"FEATURE_LEVEL_RECORD", "REGISTER_BROKER_RECORD", "TOPIC_RECORD"} <= kinds
    assert '"name":"dumped"' in output
    control = ["LeaderChange"] if suffix == "log" else ["SnapshotHeader", "SnapshotFooter"]
    assert all(name in output for name in control)
    assert "isvalid: false" not in output
    assert "skipping" not in output.lower()


@pytest.mark.parametrize("interval", ["20", "0"])
def test_idle(jvm: Jvm, make, interval):
    """An idle active controller writes no-op records, unless the setting turns them off."""
    cluster = make(3, metadata_max_idle_interval_ms=interval)
    cluster.start()
    active = cluster.active()
    path = str(metadata(cluster, active.id) / names(cluster, "log", active.id)[-1])

    def no_op_count() -> int:
        output = jvm.tool(DUMP_LOG, "--cluster-metadata-decoder", "--files", path).ok()
        return output.count('"type":"NO_OP_RECORD"')

    if interval == "0":
        assert no_op_count() == 0
    else:
        eventually(lambda: no_op_count() > 20, "records without content")
