"""The indexes of an active segment: their memory, their files, and the first append to them."""

import errno
import sys
from pathlib import Path
from random import Random

import attrs
import pytest

from kwire.errors import KafkaStorageError
from kwire.log.config import LogConfig
from kwire.log.disk import RealDisk
from kwire.log.formats import names
from kwire.log.partition_log import PartitionLog, create
from kwire.log.segments.indexes import SegmentIndexes
from simulation.disk import SimDisk, SimFile
from tests.support.log.batches import TIME_MS, append, content, encode
from tests.support.log.indexes import are_offsets_plausible, are_times_plausible
from tests.support.log.restart import PARTITION, reopen

CONFIG = LogConfig(index_interval_bytes=0, retention_ms=-1)
COMPACTED = attrs.evolve(CONFIG, cleanup_delete=False, cleanup_compact=True)
STEM = "t-0/" + names.stem(0)
INDEX, TIMES = STEM + names.INDEX, STEM + names.TIME_INDEX
MEMORY_MAX = 16 << 10
"""Bytes that the indexes of one active segment may take: 48 MB for 3,000 partitions."""


def new_log(disk: SimDisk | RealDisk, config: LogConfig = CONFIG) -> PartitionLog:
    disk.make_directory("t-0")
    return create(disk, "t-0", PARTITION, now_ms=TIME_MS, config=config)


def batch(offset: int) -> bytes:
    return encode([b"v"], base_offset=offset, timestamp_ms=TIME_MS + offset)


def fill(log: PartitionLog, count: int) -> None:
    """Append batches that each get an entry in both indexes."""
    for first in range(log.end_offset, log.end_offset + count, 100):
        log.append_follower(b"".join(map(batch, range(first, first + 100))))


def sizes_in_memory(indexes: SegmentIndexes) -> int:
    assert indexes.offsets is not None
    assert indexes.times is not None
    return sys.getsizeof(indexes.offsets.tail) + sys.getsizeof(indexes.times.tail)


def files_of(disk: SimDisk) -> set[str]:
    return {entry.name for entry in disk.entries("t-0") if "index" in entry.name}


def check(log: PartitionLog) -> None:
    """Check that each offset is found by the index, without the positions kept of late."""
    for segment in log.segments:
        del segment._recent_next[:], segment._recent_position[:]
    for offset in range(log.log_start, log.end_offset, 37):
        with log.read(offset, 1, end_offset=log.end_offset) as region:
            assert region.read() == batch(offset)


def test_memory_for_the_indexes_does_not_grow_with_their_entries(tmp_path: Path) -> None:
    """A full segment of a GiB has 200,000 entries if its batches have a kilobyte."""
    disk = RealDisk(str(tmp_path))
    log = new_log(disk)
    indexes, largest = log.segments.active.indexes, 0
    for _ in range(100):
        fill(log, 200)
        largest = max(largest, sizes_in_memory(indexes))
    assert len(log.segments) == 1
    assert indexes.data()[0][-8:-4] == (log.end_offset - 1).to_bytes(4, "big")
    assert largest <= MEMORY_MAX
    check(log)


@pytest.mark.parametrize("ends", ["roll", "stop"])
def test_index_files_are_those_of_a_log_with_all_entries_in_memory(
    ends: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Apache Kafka reads them, and there are no others beside them."""

    def files(disk: SimDisk) -> dict[str, bytes]:
        log = new_log(disk)
        fill(log, 1_700)
        if ends == "roll":
            log.roll(TIME_MS)
            log.flush_state.flush()
        else:
            log.close()
        return {name: disk.read(f"t-0/{name}") for name in files_of(disk)}

    spilled = files(SimDisk())
    monkeypatch.setattr(SegmentIndexes, "spill", lambda indexes: None)
    assert spilled == files(SimDisk())
    assert are_offsets_plausible(spilled[names.stem(0) + names.INDEX], 1 << 30)
    assert are_times_plausible(spilled[names.stem(0) + names.TIME_INDEX])


def test_segment_has_no_index_by_that_name_before_it_is_synced() -> None:
    """Invariant 83: a start takes a gap behind a segment with an index for compaction's."""
    disk = SimDisk()
    log = new_log(disk, COMPACTED)
    fill(log, 100)
    log.flush_state.flush()
    point = log.flush_state.recovery_point
    fill(log, 1_500)
    lost = log.end_offset - 1
    log.roll(TIME_MS)
    fill(log, 100)
    assert names.stem(0) + names.INDEX not in files_of(disk)
    assert names.stem(0) + names.INDEX + names.GROWING in files_of(disk)

    disk = disk.after_kill()
    disk.open(STEM + names.LOG).truncate(len(disk.read(STEM + names.LOG)) - len(batch(lost)))
    again = reopen(disk, COMPACTED, recovery_point=point)
    assert again.end_offset == lost
    again.roll(TIME_MS)
    again.flush_state.flush()
    assert files_of(disk) == {names.stem(0) + names.INDEX, names.stem(0) + names.TIME_INDEX}
    assert are_offsets_plausible(disk.read(INDEX), again.segments[0].size)


@pytest.mark.parametrize("seed", range(20))
def test_loss_of_power_between_the_steps_of_a_flush_leaves_a_sound_log(seed: int) -> None:
    """Invariants 78 and 79."""
    disk, random = SimDisk(), Random(seed)
    log = new_log(disk)
    fill(log, 1_700)
    log.flush_state.flush()
    point = log.flush_state.stored_recovery_point(log.end_offset)
    log.roll(TIME_MS)
    fill(log, 100)
    disk.fail_at("*", OSError(errno.EMFILE, "too many"), after=random.randrange(14))
    with pytest.raises(KafkaStorageError):
        log.flush_state.flush()
    again = reopen(disk.power_loss(random), CONFIG, recovery_point=point)
    assert again.end_offset >= 1_700
    check(again)


@pytest.mark.parametrize("failing", ["write", "open", "rename"])
def test_flush_that_failed_is_repeated_or_the_segment_is_appended_to_again(failing: str) -> None:
    """The offset index has its own name by then, and the time index does not."""
    for is_cut in (False, True):
        disk = SimDisk()
        log = new_log(disk)
        fill(log, 1_700)
        log.roll(TIME_MS)
        disk.fail_at(failing, OSError(errno.EMFILE, "too many"), path=names.TIME_INDEX)
        with pytest.raises(KafkaStorageError):
            log.flush_state.flush()
        stem = names.stem(0)
        assert files_of(disk) == {stem + names.INDEX, stem + names.TIME_INDEX + names.GROWING}
        check(log)
        if is_cut:
            log.truncate_to(1_600)
            fill(log, 1_000)
            check(log)
            log.roll(TIME_MS)
        log.flush_state.flush()
        check(log)
        index = disk.read(INDEX)
        assert files_of(disk) == {stem + names.INDEX, stem + names.TIME_INDEX}
        # The first batch of a file, or after a cut, has no entry.
        assert len(index) == 8 * (log.segments[1].base_offset - 1 - is_cut)
        assert are_offsets_plausible(index, log.segments[0].size)


def index_bytes_read(count: int, monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Return what the first append after a clean restart reads of the indexes of ``count``."""
    disk = SimDisk()
    log = new_log(disk)
    fill(log, count)
    log.flush_state.flush()
    log.close()
    log = reopen(disk.after_kill(), CONFIG, clean=True, recovery_point=log.end_offset)
    sizes: list[int] = []
    read = SimFile.read

    def count_bytes(file: SimFile, position: int, size: int) -> bytes:
        data = read(file, position, size)
        if "index" in file.path:
            sizes.append(len(data))
        return data

    with monkeypatch.context() as patch:
        patch.setattr(SimFile, "read", count_bytes)
        patch.setattr(SimDisk, "read", lambda disk, path: pytest.fail(f"{path} is read as a whole"))
        append(log, [b"v"], timestamp_ms=TIME_MS + count)
        append(log, [b"v"], timestamp_ms=TIME_MS + count + 1)
    check(log)
    return sizes


def test_first_append_after_a_restart_reads_one_entry(monkeypatch: pytest.MonkeyPatch) -> None:
    """A full segment of a GiB, with batches of a kilobyte, has 4 MB of entries."""
    few, many = (index_bytes_read(count, monkeypatch) for count in (100, 5_000))
    assert few == many
    assert sum(many) <= 3 * 12


def test_entries_stay_in_memory_while_the_disk_is_slow_or_refuses_them() -> None:
    """Invariants 88, 90 and 91: an append fails for want of room for records only."""
    disk = SimDisk()
    log = new_log(disk)
    indexes = log.segments.active.indexes
    disk.slow = True
    fill(log, 1_000)
    assert not [path for kind, path in disk.calls if "index" in path]
    disk.slow = False
    for error in (errno.EMFILE, errno.ENOSPC):
        disk.fail_at("create", OSError(error, "refused"), path="index", times=9)
        fill(log, 1_000)
        assert log.end_offset % 1_000 == 0
        disk.mend()
        disk.full = False
    check(log)
    fill(log, 4_000)
    assert sizes_in_memory(indexes) <= MEMORY_MAX
    check(log)


def test_broken_disk_refuses_the_append_that_moves_entries() -> None:
    """Invariant 89: it would be lost with the directory."""
    disk = SimDisk()
    log = new_log(disk)
    disk.fail_at("write", OSError(errno.EIO, "broken"), path="index")
    with pytest.raises(KafkaStorageError):
        fill(log, 1_000)
    assert disk.failed is not None


def test_damage_to_the_file_of_an_active_index_is_noticed() -> None:
    """Invariant 79."""
    disk = SimDisk()
    log = new_log(disk)
    fill(log, 1_700)
    data = disk.inode(INDEX + names.GROWING).data
    assert len(data) > 8_000
    data[7::8] = bytes(byte ^ 7 for byte in data[7::8])
    check(log)
    fill(log, 1_000)
    check(log)
    log.roll(TIME_MS)
    log.flush_state.flush()
    assert are_offsets_plausible(disk.read(INDEX), log.segments[0].size)
    assert files_of(disk) == {names.stem(0) + names.INDEX, names.stem(0) + names.TIME_INDEX}


@pytest.mark.parametrize("kind", [names.INDEX, names.TIME_INDEX])
def test_file_of_an_active_index_that_vanishes_costs_no_record(kind: str) -> None:
    disk = SimDisk()
    log = new_log(disk)
    fill(log, 1_700)
    disk.remove(STEM + kind + names.GROWING)
    check(log)
    fill(log, 1_000)
    log.truncate_to(2_600)
    log.roll(TIME_MS)
    log.flush_state.flush()
    check(log)
    log = reopen(disk.after_kill(), CONFIG, recovery_point=log.end_offset)
    assert len(content(log)) == 2_600


def test_segment_that_is_removed_takes_the_files_of_its_indexes_along() -> None:
    disk = SimDisk()
    log = new_log(disk)
    fill(log, 1_700)
    segment = log.segments[0]
    log.roll(TIME_MS)
    fill(log, 100)
    paths = log.drop_segments(1)
    assert not [name for name in files_of(disk) if name.endswith(names.GROWING)]
    assert segment.indexes.floor(5) == (5, 5 * len(batch(0)))
    for path in paths:
        disk.remove(path)
    assert not [name for name in files_of(disk) if name.startswith(names.stem(0))]
