"""The encoding of commits without message objects, compared with that of single records."""

from typing import Final

from hypothesis import example, given
from hypothesis import strategies as st

from kwire.codec.messages.offset_commit import OffsetCommitRequest
from kwire.coordinator.draft import Draft
from kwire.group.commit_records import (
    CommittedOffset,
    add_commits,
    add_requested,
    expiring_record,
    offset_record,
    parse_commit,
)
from kwire.group.offsets import GroupChange, pack
from kwire.group.records import load, offset_tombstone, store
from kwire.records.build import New, batch
from kwire.types import ZERO_UUID

NOW_MS: Final = 1_700_000_000_000
INT32: Final = st.integers(-(2**31), 2**31 - 1)
NAMES: Final = st.text(max_size=20) | st.sampled_from(["n" * 127, "n" * 249, "\u20ac" * 60])
COMMITS: Final = st.tuples(
    st.integers(0, 3) | INT32,
    st.integers(0, 100) | st.integers(-(2**63), 2**63 - 1),
    st.just(-1) | INT32,
    st.sampled_from([None, "", "", "m", "\u00e9", "m" * 40, "m" * 127, "m" * 4096]) | st.text(),
)
TOPICS: Final = st.tuples(
    NAMES, st.just(ZERO_UUID) | st.binary(min_size=16, max_size=16), st.lists(COMMITS, max_size=4)
)
COUNTS: Final = st.sampled_from([0, 0, 1, 62, 63, 64, 8_190, 8_191, 8_192, 1_048_575])
"""The number of records before the commits, which determines the sizes of their offset deltas."""


@given(NAMES, st.lists(TOPICS, max_size=3), COUNTS, st.integers(0, 2**62))
@example(group="g", topics=[("t", b"i" * 16, [(0, 5, 1, "")] * 3)], count=62, now_ms=NOW_MS)
def test_commits_have_the_bytes_and_the_effect_of_their_records(
    group: str, topics: list[tuple[str, bytes, list[CommittedOffset]]], count: int, now_ms: int
) -> None:
    usual, general = [Draft(now_ms, GroupChange(group), count=count) for _ in range(2)]
    for name, topic_id, offsets in topics:
        add_commits(usual, (name, topic_id), offsets)
        committed = general.change.committed.setdefault(name, {})
        for offset in offsets:
            record = offset_record(group, (name, topic_id), offset, now_ms)
            general.add(*store(record))
            committed[offset[0]] = pack(record.value)
    assert (usual.payload, usual.count) == (general.payload, general.count)
    assert usual.change.committed == general.change.committed


@given(st.lists(COMMITS, max_size=4), st.sampled_from([-1, 0, 60_000]))
def test_requested_commits_are_added_unless_their_metadata_are_too_long(
    offsets: list[CommittedOffset], retention_ms: int
) -> None:
    shape = OffsetCommitRequest.OffsetCommitRequestTopic
    topic = shape(
        name="t",
        topic_id=b"i" * 16,
        partitions=[
            shape.OffsetCommitRequestPartition(
                partition_index=partition,
                committed_offset=offset,
                committed_leader_epoch=leader_epoch,
                committed_metadata=metadata,
            )
            for partition, offset, leader_epoch, metadata in offsets
        ],
    )
    request = OffsetCommitRequest(
        group_id="g", member_id="", retention_time_ms=retention_ms, topics=[topic]
    )
    draft = Draft(NOW_MS, GroupChange("g"))
    results = add_requested(draft, request, topic, topic.partitions, metadata_bytes_max=40)
    expected = Draft(NOW_MS, GroupChange("g"))
    codes = []
    for offset in offsets:
        is_too_long = len(offset[3] or "") > 40
        codes.append((offset[0], 12 if is_too_long else 0))
        if is_too_long:
            continue
        if retention_ms < 0:
            record = offset_record("g", ("t", b"i" * 16), offset, NOW_MS)
        else:
            record = expiring_record(request, ("t", b"i" * 16), offset, NOW_MS)
        expected.add(*store(record)).committed.setdefault("t", {})[offset[0]] = pack(record.value)
    assert [(each.partition_index, each.error_code) for each in results] == codes
    assert draft.payload == expected.payload
    assert draft.change.committed.get("t", {}) == expected.change.committed.get("t", {})


def test_draft_of_a_transaction_is_a_transactional_batch() -> None:
    draft = Draft(NOW_MS, GroupChange("g"))
    add_commits(draft, ("t", b"i" * 16), [(0, 5, 1, ""), (1, 6, 1, "m")])
    records = [
        New(*store(offset_record("g", ("t", b"i" * 16), offset, NOW_MS)))
        for offset in [(0, 5, 1, ""), (1, 6, 1, "m")]
    ]
    assert draft.build_batch((7, 3)) == batch(
        records, timestamp_ms=NOW_MS, producer_id=7, producer_epoch=3, transactional=True
    )
    assert draft.build_batch() == batch(records, timestamp_ms=NOW_MS)


@given(NAMES, NAMES, COMMITS, st.just(ZERO_UUID) | st.binary(min_size=16, max_size=16))
@example(group="g", topic="t", offset=(3, 5, 1, ""), topic_id=b"i" * 16)
def test_stored_commit_is_read_without_objects_if_it_has_no_metadata(
    group: str, topic: str, offset: CommittedOffset, topic_id: bytes
) -> None:
    record = offset_record(group, (topic, topic_id), offset, NOW_MS)
    is_usual = not offset[3] and topic_id != ZERO_UUID
    expected = (group, topic, offset[0], pack(record.value)) if is_usual else None
    assert parse_commit(*store(record)) == expected
    assert parse_commit(*store(offset_tombstone(group, topic, offset[0]))) is None


@given(st.binary(max_size=4), st.data())
def test_damaged_commit_is_left_to_the_general_way(noise: bytes, data: st.DataObject) -> None:
    record = offset_record("group", ("topic", b"i" * 16), (3, 5, 1, ""), NOW_MS)
    key, value = store(record)
    assert value is not None
    parts = [bytearray(key), bytearray(value)]
    part = data.draw(st.sampled_from(parts))
    at = data.draw(st.integers(0, len(part)))
    part[at : at + data.draw(st.integers(0, 4))] = noise
    parsed = parse_commit(bytes(parts[0]), bytes(parts[1]))
    if parsed is not None:
        loaded = load(bytes(parts[0]), bytes(parts[1]))
        assert loaded is not None
        place = loaded.key.group, loaded.key.topic, loaded.key.partition
        assert parsed == (*place, pack(loaded.value))
