"""Records that a real broker wrote to `__consumer_offsets` have the same meaning for kwire."""

import gzip
import json
import os
import tarfile
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from kwire.coordinator.decision import Moment
from kwire.coordinator.shard import Shard
from kwire.group.records import load, partition_for, store
from kwire.group.settings import GroupSettings
from kwire.group.shard import GroupShard
from kwire.records.iterate import batches, records
from kwire.types import TopicPartition

HOME = Path(os.environ.get("KWIRE_GOLDEN", Path(__file__).parent.parent / "vectors")) / "disk"
TOPIC = "__consumer_offsets"


@cache
def logs(name: str) -> dict[int, bytes]:
    """The bytes of each partition, its segments one after the other."""
    found: dict[int, bytes] = {}
    with tarfile.open(HOME / f"{name}.tar.gz") as tar:
        for member in sorted(tar.getmembers(), key=lambda m: m.name):
            *_, directory, file = ("", *member.name.split("/"))
            if directory.startswith(f"{TOPIC}-") and file.endswith(".log"):
                data = tar.extractfile(member)
                assert data is not None
                index = int(directory.rpartition("-")[2])
                found[index] = found.get(index, b"") + data.read()
    return found


def observed(name: str) -> dict[str, Any]:
    with gzip.open(HOME / f"{name}.json.gz") as file:
        stated: dict[str, Any] = json.load(file)["observed"]["groups"]
    return stated


def loaded(index: int, data: bytes) -> GroupShard:
    shard = Shard(TopicPartition(TOPIC, index), 1, GroupShard(new_id=lambda: "x"))
    for _ in shard.replay(data, 0):
        pass
    return shard.machine


def test_groups_of_a_clean_directory(caplog: pytest.LogCaptureFixture) -> None:
    stated = observed("clean")
    data = logs("clean")
    shards = {index: loaded(index, data[index]) for index in data}
    assert len(shards) == 50
    assert not caplog.records
    checked = []
    for group_id, told in stated.items():
        shard = shards[partition_for(group_id, 50)]
        if told["type"] == "Classic":
            group = shard.groups[group_id]
            assert group.state.value == told["state"]
            assert (group.protocol_type or "") == told["protocol"]
        else:
            assert shard.foreign[group_id] == told["type"].lower()
        if told["type"] != "Share":
            assert offsets(shard, group_id) == told["offsets"]
        checked.append(group_id.partition("-")[0])
    assert sorted(checked) == ["classic", "modern", "regex", "share", "simple", "txn"]
    known = {group for shard in shards.values() for group in (*shard.groups, *shard.foreign)}
    assert known == set(stated)


def offsets(shard: GroupShard, group_id: str) -> dict[str, Any]:
    return {
        f"{topic}-{partition}": {
            "offset": committed.offset,
            "leader_epoch": None if committed.leader_epoch < 0 else committed.leader_epoch,
            "metadata": committed.metadata,
        }
        for topic, partitions in shard.offsets.of(group_id).items()
        for partition, committed in partitions.items()
    }


def test_the_static_member_is_known() -> None:
    """It keeps its place when it comes back after the restart."""
    data = logs("clean")
    (group_id,) = (g for g, told in observed("clean").items() if told["state"] == "Stable")
    index = partition_for(group_id, 50)
    shard = loaded(index, data[index])
    group = shard.groups[group_id]
    assert len(group.instances) == 1
    decisions = [step(Moment(5.0, 0)) for step in shard.on_loaded()]
    names = {timer[0] for decision in decisions for timer, _ in decision.timers}  # type: ignore[index]
    assert names == {"session", "expiry"}
    assert all(member.client_host.startswith("/") for member in group.members.values())


@pytest.mark.parametrize("name", ["clean", "killed", "three"])
def test_records_are_written_as_kafka_does(name: str) -> None:
    """Every offset and classic group record comes back byte for byte."""
    seen = {1: 0, 2: 0}
    for data in logs(name).values():
        for pos, header in batches(data):
            if header.is_control:
                continue
            for stored in records(data, pos, header):
                assert stored.key is not None
                kind = int.from_bytes(stored.key[:2], "big")
                record = load(stored.key, stored.value)
                if kind not in seen or record is None:
                    continue
                seen[kind] += 1
                assert store(record._replace(version=None)) == (stored.key, stored.value)
    assert seen[1]
    assert seen[2] or name == "three"


def test_deleted_groups_are_gone() -> None:
    assert GroupSettings().offsets_retention_ms == 7 * 24 * 3600 * 1000
    data = logs("clean")
    for index in data:
        assert not any(name.startswith("gone") for name in loaded(index, data[index]).groups)
