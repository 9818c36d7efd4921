"""Kafka's DumpLogSegments over every file of a kwire directory: no complaint."""

from __future__ import annotations

from pathlib import Path

import pytest

from compat_tests.confluent_kafka.clients import admin, create
from compat_tests.harness.wait import eventually
from compat_tests.interchange import filling
from compat_tests.interchange.node import prepare

TOOL = "org.apache.kafka.tools.DumpLogSegments"
COMPLAINTS = (
    "ismatch",
    "Exception",
    "isvalid: false",
    "isValid: false",
    "not found",
    "could not",
    "Could not",
    "corrupt",
    "Found timestamp",
    "Indexed offset",
    "invalid bytes",
)
INTERNAL = {
    "__consumer_offsets": "--offsets-decoder",
    "__transaction_state": "--transaction-log-decoder",
    "__cluster_metadata": "--cluster-metadata-decoder",
}


@pytest.fixture(params=["stop", "kill"])
def closed_node(request, tmp_path):
    """A stopped or killed node with several metadata snapshots and a varied load."""
    node = prepare(
        tmp_path / "node",
        dynamic=request.param == "stop",
        overrides={
            "metadata.log.max.record.bytes.between.snapshots": "4000",
            "internal.metadata.log.segment.bytes": "20000",
        },
    )
    try:
        node.start()
        filling.fill(node.address)
        metadata = node.data / "__cluster_metadata-0"
        for number in range(40):
            create(node.address, f"more-{number}", 5)
        eventually(lambda: len(list(metadata.glob("*.checkpoint"))) == 2, "two snapshots")
        getattr(node, request.param)()
        yield node
        node.start()
        assert len(admin(node.address).list_topics(timeout=30).topics) == 47
    finally:
        node.close()


def test_every_file_of_a_directory(closed_node, jvm):
    partitions = [path for path in closed_node.data.iterdir() if path.is_dir()]
    assert len(partitions) > 200
    files: dict[str, list[Path]] = {}
    for partition in partitions:
        topic = partition.name.rpartition("-")[0]
        for path in sorted(partition.iterdir()):
            if path.suffix in (".log", ".checkpoint"):
                files.setdefault(INTERNAL.get(topic, "--deep-iteration"), []).append(path)
            elif path.suffix in (".index", ".timeindex", ".txnindex", ".snapshot"):
                files.setdefault("plain", []).append(path)
                if path.suffix in (".index", ".timeindex"):
                    files.setdefault("--index-sanity-check", []).append(path)
    assert {"--offsets-decoder", "--cluster-metadata-decoder", "plain"} <= files.keys()
    for option, paths in files.items():
        output = _dump(jvm, paths, *([] if option == "plain" else [option]))
        complaints = [
            line for line in output.splitlines() if any(word in line for word in COMPLAINTS)
        ]
        assert complaints == [], option
    metadata = _dump(jvm, files["--cluster-metadata-decoder"], "--cluster-metadata-decoder")
    # A third one is there for a moment, before the oldest is removed.
    count = sum(path.suffix == ".checkpoint" for path in files["--cluster-metadata-decoder"])
    assert metadata.count("SnapshotHeader") == metadata.count("SnapshotFooter") == count >= 2
    assert "more-39" in metadata
    offsets = _dump(jvm, files["--offsets-decoder"], "--offsets-decoder")
    assert '"group":"members"' in offsets
    assert '"metadata":"by hand' in offsets


def _dump(jvm, paths: list[Path], *options: str) -> str:
    output = ""
    for first in range(0, len(paths), 200):
        names = ",".join(map(str, paths[first : first + 200]))
        ran = jvm.tool(TOOL, *options, "--files", names)
        output += ran.ok() + ran.err
    return output
