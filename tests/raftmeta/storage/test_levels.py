"""Records of a cluster at an older metadata.version can be read by software of that level."""

from pathlib import Path
from typing import Any

import pytest
import trio

from kwire.codec.messages import metadata_records as r
from kwire.codec.messages.update_features import UpdateFeaturesRequest
from kwire.node.server import Server
from kwire.raftmeta.metadata.image import MetadataImage
from kwire.raftmeta.raft.log_state import SnapshotId
from kwire.raftmeta.raft.voters import VoterSet
from kwire.raftmeta.storage.levels import NEWEST, at_level, version_at
from kwire.raftmeta.storage.records import SnapshotReader, pack, snapshot_chunks, unpack
from kwire.records import iterate
from kwire.records.header import headers
from kwire.storage_format.directories import format_node
from kwire.storage_format.releases import metadata_level
from kwire.testing.wire import TrioWireClient
from tests.support.server.nodes import config, create, running, topics

DIRECTORY = b"d" * 16
TOPIC = b"t" * 16


def registration() -> Any:
    return r.RegisterBrokerRecord(
        broker_id=1,
        incarnation_id=b"i" * 16,
        broker_epoch=5,
        rack=None,
        log_dirs=[DIRECTORY],
        cordoned_log_dirs=[],
    )


def partition() -> Any:
    return r.PartitionRecord(
        partition_id=0,
        topic_id=TOPIC,
        replicas=[1],
        isr=[1],
        leader=1,
        leader_epoch=0,
        partition_epoch=0,
        directories=[DIRECTORY],
        eligible_leader_replicas=[],
        last_known_elr=[],
    )


@pytest.mark.parametrize(
    ("level", "broker", "part"),
    [(7, 1, 0), (8, 2, 0), (16, 2, 0), (17, 3, 1), (22, 3, 1), (23, 3, 2), (29, 3, 2), (30, 4, 2)],
)
def test_versions_by_level(level: int, broker: int, part: int) -> None:
    """Record versions are those of MetadataVersion in Apache Kafka 4.3.1."""
    assert version_at(registration(), level) == broker
    assert version_at(partition(), level) == part
    assert version_at(r.PartitionChangeRecord(topic_id=TOPIC), level) == part


@pytest.mark.parametrize("level", range(7, NEWEST + 1))
def test_record_of_a_level_is_read_unchanged(level: int) -> None:
    records = at_level(
        [registration(), partition(), r.TopicRecord(name="t", topic_id=TOPIC)], level
    )
    assert tuple(unpack(pack(record, level)) for record in records) == records


def test_fields_that_a_level_lacks_are_left_out() -> None:
    (before,) = at_level([registration()], 16)
    assert (before.log_dirs, before.cordoned_log_dirs) == ([], None)
    (before,) = at_level([partition()], 22)
    assert before.directories == [DIRECTORY]
    assert (before.eligible_leader_replicas, before.last_known_elr) == (None, None)


def test_record_of_an_older_level_is_a_copy() -> None:
    record = registration()
    at_level([record], 7)
    assert record.log_dirs == [DIRECTORY]


def test_snapshot_is_written_at_the_level() -> None:
    chunks = snapshot_chunks(
        SnapshotId(3, 1),
        [[registration(), partition()]],
        voters=VoterSet(),
        kraft_version=0,
        last_timestamp_ms=0,
        now_ms=0,
        level=21,
    )
    broker, part = SnapshotReader(SnapshotId(3, 1), b"".join(chunks)).records()
    assert isinstance(broker, r.RegisterBrokerRecord)
    assert isinstance(part, r.PartitionRecord)
    assert (broker.log_dirs, broker.cordoned_log_dirs) == ([DIRECTORY], None)
    assert part.eligible_leader_replicas is None


def versions_in(log: Path) -> dict[str, set[int]]:
    """Return the versions of all metadata records of a log, by their kind."""
    versions: dict[str, set[int]] = {}
    data = memoryview(log.read_bytes())
    for pos, header in headers(data):
        for record in () if header.is_control else iterate.records(data, pos, header):
            value = bytes(record.value or b"")
            kind = type(unpack(value)).__name__.removesuffix("Record")
            versions.setdefault(kind, set()).add(value[2])
    return versions


@pytest.mark.slow
async def test_cluster_of_an_older_release_writes_its_versions(tmp_path: Path) -> None:
    features = {"metadata.version": metadata_level("3.9")}
    cluster_id = "MkU3OEVBNTcwNTJENDM2Qg"
    assert list(format_node(config(tmp_path), cluster_id, False, features=features))
    async with running(tmp_path) as node:
        assert await create(node, "t", 2) == 0
        controller = node.core.controller.state.image
        published = node.core.publisher.image
        assert controller.topics == published.topics
        assert controller.brokers == published.brokers
    versions = versions_in(tmp_path / "__cluster_metadata-0" / "00000000000000000000.log")
    assert versions["RegisterBroker"] == {3}
    assert versions["Partition"] == {1}
    async with running(tmp_path) as node:
        assert await topics(node) == {"t"}


@pytest.mark.slow
async def test_upgraded_node_registers_what_its_old_level_lacked(tmp_path: Path) -> None:
    """Apache Kafka cannot write a snapshot that has a controller's registration before 3.7-IV0.

    From 3.7-IV2 onwards, a broker registers its log directories and reports those of its replicas.
    The controller needs both to elect other leaders when a directory fails.
    """
    folders = tmp_path / "a", tmp_path / "b"
    settings = {"log_dirs": ",".join(map(str, folders))}
    features = {"metadata.version": metadata_level("3.5")}
    formatted = config(tmp_path, **settings)
    assert list(format_node(formatted, "MkU3OEVBNTcwNTJENDM2Qg", False, features=features))
    async with running(tmp_path, **settings) as node:
        assert await create(node, "old", 4) == 0
        kinds = versions_in(folders[0] / "__cluster_metadata-0" / f"{0:020}.log").keys()
        assert not {"RegisterController", "BeginTransaction", "EndTransaction"} & kinds
        assert not node.core.publisher.image.brokers[1].log_dirs
        assert await upgrade(node, metadata_level("4.0")) == 0
        with trio.fail_after(30):
            await node.core.publisher.wait_for(
                lambda image: bool(image.brokers[1].log_dirs) and 1 in image.controllers
            )
            await node.core.publisher.wait_for(knows_all_directories)
        broker = node.core.publisher.image.brokers[1]
        assert not broker.fenced
        epoch = broker.epoch
        assert await create(node, "t") == 0
    async with running(tmp_path, **settings) as node:
        assert node.core.publisher.image.brokers[1].epoch > epoch, "only a restart changes it"


def knows_all_directories(image: MetadataImage) -> bool:
    """Return whether the metadata have the directory of each partition of the old topic."""
    topic = image.topic("old")
    assert topic is not None
    directories = image.brokers[1].log_dirs
    return all(partition.directory(1) in directories for partition in topic.partitions.values())


async def upgrade(node: Server, level: int) -> int:
    """Raise the metadata.version; return the error code."""
    update = UpdateFeaturesRequest.FeatureUpdateKey(
        feature="metadata.version", max_version_level=level, upgrade_type=1
    )
    async with await TrioWireClient.connect(*node.address) as client:
        request = UpdateFeaturesRequest(feature_updates=[update], timeout_ms=10_000)
        response = await client.call(request, 2)
    code: int = response.error_code
    return code
