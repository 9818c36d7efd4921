"""Records that Apache Kafka wrote to `__consumer_offsets` have the same meaning for kwire."""

import gzip
import json
import os
import tarfile
from collections.abc import Iterator, Mapping
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from kwire.coordinator.decision import Moment
from kwire.coordinator.partitioning import partition_for
from kwire.group.consumer.settings import ConsumerSettings
from kwire.group.consumer.topics import group_hash
from kwire.group.offsets import Committed, Packed
from kwire.group.records import load, store
from kwire.group.settings import GroupSettings
from kwire.group.shard import GroupShard
from kwire.group.share.settings import ShareSettings
from kwire.records.iterate import batches, records
from kwire.types import TopicPartition
from tests.support.coordinator.replay import replay_into
from tests.support.group.topics import FakeTopics

HOME = Path(os.environ.get("KWIRE_GOLDEN", Path(__file__).parent.parent / "vectors")) / "disk"
TOPIC = "__consumer_offsets"


@cache
def logs(name: str) -> dict[int, bytes]:
    """Return the bytes of each partition, its segments one after the other."""
    partitions: dict[int, bytes] = {}
    with tarfile.open(HOME / f"{name}.tar.gz") as tar:
        for member in sorted(tar.getmembers(), key=lambda m: m.name):
            *_, directory, file = ("", *member.name.split("/"))
            if directory.startswith(f"{TOPIC}-") and file.endswith(".log"):
                data = tar.extractfile(member)
                assert data is not None
                index = int(directory.rpartition("-")[2])
                partitions[index] = partitions.get(index, b"") + data.read()
    return partitions


def kafka_groups(name: str) -> dict[str, Any]:
    """Return the groups by id as Apache Kafka described them."""
    with gzip.open(HOME / f"{name}.json.gz") as file:
        groups: dict[str, Any] = json.load(file)["observed"]["groups"]
    return groups


def load_shard(index: int, data: bytes) -> GroupShard:
    shard = GroupShard(
        new_id=lambda: "x",
        topics=FakeTopics,
        consumer_settings=lambda _: ConsumerSettings(),
        share_settings=lambda _: ShareSettings(),
    )
    return replay_into(TopicPartition(TOPIC, index), data, shard)


def test_groups_that_kafka_wrote_have_the_same_state(caplog: pytest.LogCaptureFixture) -> None:
    expected_groups = kafka_groups("clean")
    data = logs("clean")
    shards = {index: load_shard(index, data[index]) for index in data}
    assert len(shards) == 50
    assert not caplog.records
    prefixes = []
    for group_id, expected in expected_groups.items():
        shard = shards[partition_for(group_id, 50)]
        if expected["type"] == "Classic":
            group = shard.groups[group_id]
            assert group.state.value == expected["state"]
            assert (group.protocol_type or "") == expected["protocol"]
        elif expected["type"] == "Consumer":
            consumer = shard.consumer_group(group_id)
            assert consumer is not None
            assert consumer.state.value == expected["state"]
        else:
            share = shard.share_group(group_id)
            assert share is not None
            assert share.state.value == expected["state"]
        if expected["type"] != "Share":
            assert offsets(shard, group_id) == expected["offsets"]
        prefixes.append(group_id.partition("-")[0])
    assert sorted(prefixes) == ["classic", "modern", "regex", "share", "simple", "txn"]
    group_ids = {
        group
        for shard in shards.values()
        for group in (*shard.groups, *shard.consumer.groups, *shard.share.groups)
    }
    assert group_ids == set(expected_groups)


def offsets(shard: GroupShard, group_id: str) -> dict[str, Any]:
    return {
        f"{topic}-{partition}": {
            "offset": committed.offset,
            "leader_epoch": None if committed.leader_epoch < 0 else committed.leader_epoch,
            "metadata": committed.metadata,
        }
        for topic, partitions in shard.offsets.of(group_id).items()
        for partition, committed in unpack_all(partitions)
    }


def unpack_all(partitions: Mapping[int, Packed]) -> Iterator[tuple[int, Committed]]:
    return ((partition, Committed.unpack(packed)) for partition, packed in partitions.items())


def test_static_member_that_kafka_wrote_has_a_session_after_the_load() -> None:
    """Its session starts with the load, so it keeps its assignment when it returns in time."""
    data = logs("clean")
    groups = kafka_groups("clean")
    (group_id,) = (g for g, group in groups.items() if group["state"] == "Stable")
    index = partition_for(group_id, 50)
    shard = load_shard(index, data[index])
    group = shard.groups[group_id]
    assert len(group.instances) == 1
    decisions = [step(Moment(5.0, 0)) for step in shard.on_loaded()]
    names = {timer[0] for decision in decisions for timer, _ in decision.timers}  # type: ignore[index]
    assert names == {"session", "expiry"}
    assert all(member.client_host.startswith("/") for member in group.members.values())


@pytest.mark.parametrize("name", ["clean", "killed", "three"])
def test_offset_and_group_records_are_encoded_as_by_kafka(name: str) -> None:
    """Each offset and each group record, decoded and encoded, has Kafka's bytes."""
    counts = dict.fromkeys((*range(1, 4), *range(5, 9), *range(10, 17)), 0)
    for data in logs(name).values():
        for pos, header in batches(data):
            if header.is_control:
                continue
            for stored in records(data, pos, header):
                assert stored.key is not None
                kind = int.from_bytes(stored.key[:2], "big")
                record = load(stored.key, stored.value)
                if kind not in counts or record is None:
                    continue
                counts[kind] += 1
                assert store(record._replace(version=None)) == (stored.key, stored.value)
    assert counts[1]
    assert name == "three" or all(counts.values())


def test_hash_of_the_topics_of_a_consumer_group_is_kafkas() -> None:
    """A group that comes from Kafka is not rebalanced, because its topics have the same hash."""
    data = logs("killed")
    shards = [load_shard(index, data[index]) for index in data]
    groups = {each.group_id: each for shard in shards for each in shard.consumer.groups.values()}
    group = groups["modern-2u"]
    (member,) = group.members.values()
    ((topic, partitions),) = member.assigned.items()
    (name,) = group.topics
    topics = FakeTopics({name: len(partitions)}, ids={name: topic})
    assert group_hash(topics, [name]) == group.metadata_hash
    assert group.state.value == "Stable"


def test_groups_that_kafka_deleted_are_not_loaded() -> None:
    assert GroupSettings().offsets_retention_ms == 7 * 24 * 3600 * 1000
    data = logs("clean")
    for index in data:
        assert not any(name.startswith("gone") for name in load_shard(index, data[index]).groups)
