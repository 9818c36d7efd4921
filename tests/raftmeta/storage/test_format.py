"""Files that the format command writes, against those of Apache Kafka's storage tool."""

from kwire.codec.messages.metadata_records import FeatureLevelRecord
from kwire.raftmeta.raft.control_records import snapshot_voters
from kwire.records.header import headers
from kwire.storage_format.format import (
    Format,
    bootstrap_checkpoint,
    meta_properties,
    metadata_files,
    read_bootstrap,
)
from simulation.raft.quorums import voters_of


def test_features_that_are_zero_are_absent() -> None:
    node_format = Format(
        cluster_id="c",
        node_id=1,
        features={
            "group.version": 1,
            "share.version": 0,
            "metadata.version": 30,
            "kraft.version": 1,
        },
    )
    assert read_bootstrap(bootstrap_checkpoint(node_format, now_ms=5)) == (
        FeatureLevelRecord(name="metadata.version", feature_level=30),
        FeatureLevelRecord(name="group.version", feature_level=1),
    )


def test_configured_voters_need_no_checkpoint() -> None:
    assert set(metadata_files(Format(cluster_id="c", node_id=1), 5)) == {"bootstrap.checkpoint"}


def test_dynamic_voters_are_in_the_checkpoint_at_offset_0() -> None:
    voters = voters_of(1, 2)
    files = metadata_files(Format(cluster_id="c", node_id=1, voters=voters), 5)
    data = files["__cluster_metadata-0/00000000000000000000-0000000000.checkpoint"]
    assert snapshot_voters(data) == (voters, 1)
    assert [(h.base_offset, h.next_offset, h.is_control) for _, h in headers(data)] == [
        (0, 3, True),
        (3, 4, True),
    ]


def test_meta_properties() -> None:
    text = meta_properties(Format(cluster_id="abc", node_id=7), bytes(16)).decode()
    assert [line for line in text.splitlines() if not line.startswith("#")] == [
        "node.id=7",
        "directory.id=AAAAAAAAAAAAAAAAAAAAAA",
        "version=1",
        "cluster.id=abc",
    ]
