"""The replay of a partition: the last record of each key gives what all records would give."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from typing import NamedTuple

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kwire.codec.messages.offset_records import (
    GroupMetadataKey,
    GroupMetadataValue,
    OffsetCommitKey,
    OffsetCommitValue,
)
from kwire.coordinator import replay as replay_module
from kwire.coordinator.decision import Record
from kwire.coordinator.replay import Replay
from kwire.group.records import store
from kwire.group.settings import GroupSettings
from kwire.group.shard import GroupShard
from kwire.records.build import New, batch
from kwire.records.control import end_txn_marker
from kwire.records.header import NO_PRODUCER
from kwire.records.iterate import batches
from kwire.types import CONSUMER_OFFSETS, ZERO_UUID, TopicPartition
from tests.support.speedups.implementations import implementation

PARTITION = TopicPartition(CONSUMER_OFFSETS, 0)
PRODUCERS = (7, 8)


class Write(NamedTuple):
    """One batch: commits (None is a tombstone) or records of groups, or a marker."""

    records: tuple[tuple[str, int, int | None], ...] = ()
    """Group, partition (-1: the group's own record) and offset."""
    producer_id: int = NO_PRODUCER
    compression: int = 0
    commits: bool | None = None
    """For a marker, whether it commits."""


def new_record(group: str, partition: int, offset: int | None) -> New:
    if partition < 0:
        value = None if offset is None else GroupMetadataValue(
            protocol_type="consumer",
            generation=1 + offset,
            protocol=None,
            leader=None,
            members=[],
        )  # fmt: skip
        return New(*store(Record(GroupMetadataKey(group=group), value)))
    key = OffsetCommitKey(group=group, topic="t", partition=partition)
    if offset is None:
        return New(*store(Record(key, None)))
    commit = OffsetCommitValue(
        offset=offset,
        leader_epoch=-1,
        metadata="",
        commit_timestamp=1,
        topic_id=b"i" * 16 if offset % 3 else ZERO_UUID,  # Records of Kafka 4.0 have no id.
    )
    return New(*store(Record(key, commit)))


def encode(writes: list[Write]) -> bytes:
    data, end = b"", 0
    for write in writes:
        if write.commits is not None:
            data += end_txn_marker(
                commit=write.commits,
                coordinator_epoch=0,
                producer_id=write.producer_id,
                producer_epoch=0,
                timestamp_ms=1,
                base_offset=end,
            )
            end += 1
            continue
        data += batch(
            [new_record(*record) for record in write.records],
            timestamp_ms=1,
            base_offset=end,
            compression=write.compression,
            producer_id=write.producer_id,
            producer_epoch=0 if write.producer_id >= 0 else -1,
            transactional=write.producer_id >= 0,
        )
        end += len(write.records)
    return data


def new_shard() -> GroupShard:
    group_settings = GroupSettings()
    return GroupShard(new_id=lambda: "", settings=lambda: group_settings)


def state(shard: GroupShard) -> object:
    """Return the committed offsets and the groups, with their generations.

    A group that only ever committed offsets, and has none left, may be there or not: a compacted
    log does not tell either.
    """
    with_offsets = shard.offsets.groups()
    offsets = {
        (group, topic, partition): shard.offsets.get(group, topic, partition)
        for group in with_offsets
        for topic, partitions in shard.offsets.of(group).items()
        for partition in partitions
    }
    names = [
        name for name, group in shard.groups.items() if group.generation or name in with_offsets
    ]
    return offsets, {name: shard.groups[name].generation for name in names}


def one_by_one(writes: list[Write]) -> object:
    """Apply every record in turn."""
    shard = new_shard()
    for write in writes:
        if write.commits is not None:
            shard.end_transaction(write.producer_id, committed=write.commits)
        for record in write.records:
            key, value, *_ = new_record(*record)
            decoded = shard.decode(key or b"", value)
            assert decoded is not None
            shard.apply(decoded, write.producer_id)
    return state(shard)


groups = st.sampled_from(["a", "b"])
producers = st.sampled_from(PRODUCERS)
maybe_offset = st.none() | st.integers(0, 99)
record_lists = st.lists(
    st.tuples(groups, st.integers(-1, 3), maybe_offset), min_size=1, max_size=5
).map(tuple)
transactional_lists = st.lists(
    st.tuples(groups, st.integers(0, 3), st.integers(0, 99)), min_size=1, max_size=5
).map(tuple)
write_lists = st.lists(
    st.one_of(
        record_lists.map(Write),
        record_lists.map(lambda some: Write(some, compression=1)),
        st.tuples(transactional_lists, producers).map(lambda pair: Write(*pair)),
        st.tuples(producers, st.booleans()).map(lambda end: Write((), end[0], commits=end[1])),
    ),
    max_size=30,
).map(lambda writes: [*writes, *(Write(producer_id=p, commits=True) for p in PRODUCERS)])


@pytest.fixture(params=["python", "c"])
def code(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    walk = implementation(request.param).latest_records
    monkeypatch.setattr(replay_module, "latest_records", walk)


@pytest.fixture(params=[10_000, 2])
def most_keys(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(replay_module, "_LATEST_MAX", request.param)


def run(replay: Replay[GroupShard], data: bytes, offset: int = 0) -> int:
    for reached in replay.read(data, offset):
        assert reached >= offset
        offset = reached
    for _ in replay.finish():
        pass
    return offset


def run_in_pages(replay: Replay[GroupShard], data: bytes, page_bytes: int) -> None:
    """Replay pages that begin with the next batch, and mostly end in the middle of one."""
    offset = 0
    for pos, header in batches(data):
        if header.base_offset >= offset:
            size = max(page_bytes, header.size)
            offset = [offset, *replay.read(data[pos : pos + size], offset)][-1]
    for _ in replay.finish():
        pass


@pytest.mark.usefixtures("code", "most_keys")
def test_last_records_give_the_state_of_all_records() -> None:
    @settings(max_examples=80)
    @given(write_lists, st.integers(100, 1500))
    def check(writes: list[Write], page_bytes: int) -> None:
        whole, in_pages = (Replay(PARTITION, new_shard()) for _ in range(2))
        run(whole, encode(writes))
        run_in_pages(in_pages, encode(writes), page_bytes)
        assert state(whole.machine) == state(in_pages.machine) == one_by_one(writes)

    check()


def commits(count: int) -> list[Write]:
    return [Write((("a", number % 3, number),)) for number in range(count)]


@pytest.mark.usefixtures("code")
def test_replay_continues_in_the_middle_of_a_page() -> None:
    """A page begins with the batch that holds the offset; later pages go on behind it."""
    data = encode([Write((("a", 0, 1), ("a", 1, 2))), *commits(10)])
    replay = Replay(PARTITION, new_shard())
    assert run(replay, data[: len(data) // 2]) < 12
    assert run(replay, data, 5) == 12
    assert state(replay.machine) == one_by_one([Write((("a", 0, 1), ("a", 1, 2))), *commits(10)])


@pytest.mark.usefixtures("code")
def test_damaged_batch_is_skipped_and_the_next_ones_count(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.WARNING)
    first, second, last = [encode([write]) for write in commits(3)]
    data = bytearray(first + second + last)
    at, last_at = len(first), len(first) + len(second)
    data[at : at + 8] = (1).to_bytes(8, "big")
    data[at + 61] ^= 0x40  # the length of the batch's record
    data[last_at : last_at + 8] = (2).to_bytes(8, "big")
    replay = Replay(PARTITION, new_shard())
    assert run(replay, bytes(data)) == 3
    offsets = replay.machine.offsets
    assert [offsets.get("a", "t", p) is not None for p in range(3)] == [True, False, True]
    assert "batch skipped" in caplog.text
    assert "offset=1 " in caplog.text


class Counting:
    """A machine that counts the records that it is given."""

    def __init__(self) -> None:
        self.applied = 0
        self.decode: Callable[[bytes, bytes | None], Record | None] = new_shard().decode

    def apply_stored(self, key: bytes, value: bytes | None) -> bool:
        return False

    def apply(self, record: Record, producer_id: int = NO_PRODUCER) -> None:
        del record, producer_id
        self.applied += 1


@pytest.mark.usefixtures("code")
def test_work_of_a_replay_is_bounded_by_the_live_keys() -> None:
    machine = Counting()
    replay: Replay[Counting] = Replay(PARTITION, machine)  # type: ignore[type-var]
    run(replay, encode(commits(5000)))  # type: ignore[arg-type]
    assert machine.applied == 3


@pytest.mark.usefixtures("code")
def test_end_of_a_page_does_not_apply_the_records_before_it() -> None:
    machine = Counting()
    replay: Replay[Counting] = Replay(PARTITION, machine)  # type: ignore[type-var]
    run_in_pages(replay, encode(commits(5000)), 10_001)  # type: ignore[arg-type]
    assert machine.applied == 3


@pytest.mark.usefixtures("code")
def test_other_tasks_may_run_after_a_few_batches() -> None:
    data = encode(commits(5000))
    replay = Replay(PARTITION, new_shard())

    def yields() -> Iterator[int]:
        yield from replay.read(data, 0)

    assert sum(1 for _ in yields()) >= len(data) // (64 << 10)


@pytest.mark.usefixtures("code")
def test_group_that_commits_again_after_its_deletion_exists() -> None:
    writes = [Write((("a", 0, 1),)), Write((("a", -1, None),)), Write((("a", 0, 2),))]
    replay = Replay(PARTITION, new_shard())
    run(replay, encode(writes))
    assert state(replay.machine) == one_by_one(writes)
    assert list(replay.machine.groups) == ["a"]
