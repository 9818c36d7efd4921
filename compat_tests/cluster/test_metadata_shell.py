"""The tool kafka-metadata-shell with a node's snapshots and its log."""

from __future__ import annotations

from pathlib import Path

import pytest

from compat_tests.cluster.tools import CONFIGS, TOPICS, by_broker, directory_id, shell
from compat_tests.cluster.topics import wait_known
from compat_tests.harness.wait import eventually
from kwire.codec.messages.metadata_records import PartitionRecord
from kwire.raftmeta.storage.records import read_batches


@pytest.fixture(params=["checkpoint", "log"])
def metadata_file(request, jvm, make):
    """A stopped node and its newest snapshot, or its log if it has written no snapshot."""
    often = {"metadata_log_max_record_bytes_between_snapshots": "100"}
    cluster = make(1, **(often if request.param == "checkpoint" else {}))
    cluster.start()
    how = by_broker(cluster)
    named = ("--topic", "kept", "--partitions", "2", "--config", "retention.ms=1234")
    jvm.tool(TOPICS, *how, "--create", *named)
    jvm.tool(TOPICS, *how, "--create", "--topic", "gone")
    wait_known(cluster, "kept", "gone")
    jvm.tool(TOPICS, *how, "--delete", "--topic", "gone")
    brokers = ("--entity-type", "brokers", "--entity-default")
    jvm.tool(CONFIGS, *how, "--alter", *brokers, "--add-config", "log.retention.ms=77").ok()
    user = ("--entity-type", "users", "--entity-name", "u")
    jvm.tool(CONFIGS, *how, "--alter", *user, "--add-config", "producer_byte_rate=1000").ok()
    node = cluster.nodes[1]

    def stop() -> str | None:
        """Stop the node; return its file, or None if that lacks what the stop has changed."""
        node.stop()
        newest = max((node.directory / "data/__cluster_metadata-0").glob(f"*.{request.param}"))
        if request.param == "log" or has_eligible_replica(newest):
            return str(newest)
        node.launch()
        cluster.wait_complete()
        return None

    return node, eventually(stop, "a file with the last records")


def has_eligible_replica(snapshot: Path) -> bool:
    """Return whether the snapshot was taken after its node had stopped in order (KIP-966)."""
    batches = read_batches(memoryview(snapshot.read_bytes()))
    partitions = (r for b in batches for r in b.records if isinstance(r, PartitionRecord))
    return any(partition.eligible_leader_replicas for partition in partitions)


NEWEST = "elr=[1]"
"""Part of the last record: the replica became eligible when its node stopped (KIP-966)."""


def read_until(file: str, *command: str, until: str) -> str:
    """Run a shell command until ``until`` is in its answer, and return the answer.

    The shell sometimes answers before it has read all records.
    """

    def attempt() -> str:
        output = shell("--snapshot", file, *command)
        return output if until in output else ""

    return eventually(attempt, f"{command} says {until!r}")


def test_ls_cat_find_tree(metadata_file):
    node, file = metadata_file
    tree = read_until(file, "tree", "/image/topics/byName", until=NEWEST)
    lines = [line.strip() for line in tree.splitlines()]
    assert lines[0] == "kept:"
    assert "gone" not in tree
    partition = lines[lines.index("0:") + 1]
    for part in (
        "replicas=[1]",
        f"directories=[{directory_id(node)}]",
        "isr=[]",
        NEWEST,
        "leaderRecoveryState=RECOVERED",
    ):
        assert part in partition
    assert partition in read_until(file, "cat", "/image/topics/byName/kept/0", until=partition)
    topic = lines[lines.index("id:") + 1]
    paths = read_until(file, "find", "/image/topics", until="byName/kept").splitlines()
    assert f"/image/topics/byId/{topic}/1" in paths
    assert "/image/topics/byName/kept/0" in paths
    eventually(
        lambda: shell("--snapshot", file, "ls", "/image/topics/byName").split() == ["kept"],
        "only one topic is left",
    )


def test_the_whole_image(metadata_file):
    _, file = metadata_file
    tree = read_until(file, "tree", "/image", until=NEWEST).splitlines()
    tops = [line.rstrip(":") for line in tree if line and not line.startswith(" ")]
    assert tops == [
        "acls",
        "clientQuotas",
        "cluster",
        "configs",
        "delegationToken",
        "features",
        "producerIds",
        "provenance",
        "scram",
        "topics",
    ]
    lines = [line.strip() for line in tree]
    assert lines[lines.index("log.retention.ms:") + 1] == "77"
    assert lines[lines.index("retention.ms:") + 1] == "1234"
    assert lines[lines.index("producer_byte_rate:") + 1] == "1000.0"
    assert lines[lines.index("metadataVersion:") + 1] == "Optional[4.3-IV0]"
    assert any(line.startswith("BrokerRegistration(id=1,") for line in lines)
    assert any(line.startswith("ControllerRegistration(id=1,") for line in lines)


def test_wrong_paths(metadata_file):
    _, file = metadata_file
    assert "no such file or directory" in read_until(file, "ls", "/nope", until="nope")
    assert "Is a directory" in read_until(file, "cat", "/image/topics", until="topics")
    assert "invalid choice: 'frob'" in read_until(file, "frob", until="frob")


def test_a_running_node_is_left_alone(make):
    cluster = make(1)
    cluster.start()
    log = next((cluster.nodes[1].directory / "data/__cluster_metadata-0").glob("*.log"))
    assert "Unable to lock" in shell("--snapshot", str(log), "ls", "/")
