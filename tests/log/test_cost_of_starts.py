"""The cost of opening a log, in files opened and bytes of memory."""

import gc
import tracemalloc
from pathlib import Path

import attrs
import pytest

from kwire.log.config import LogConfig
from kwire.log.disk import RealDisk
from kwire.log.formats import names
from kwire.log.partition_log import PartitionLog
from kwire.log.recovery import StoredOffsets, open_log
from kwire.types import TopicPartition
from tests.support.log.batches import TIME_MS, append

CONFIG = LogConfig(segment_bytes=1000)
INDEXED = LogConfig(segment_bytes=1000, index_interval_bytes=100)


class CountingDisk(RealDisk):
    """A disk that records which files are opened or removed."""

    def __init__(self, root: Path) -> None:
        super().__init__(str(root))
        self.opened: list[str] = []
        self.removed: list[str] = []

    def descriptor(self, path: str, flags: int) -> int:
        self.opened.append(path)
        return super().descriptor(path, flags)

    def remove(self, path: str) -> None:
        self.removed.append(path)
        super().remove(path)


def open_in(
    disk: RealDisk, offsets: StoredOffsets, name: str = "t-0", config: LogConfig = CONFIG
) -> PartitionLog:
    """Open a log; its directory is created if it is missing."""
    disk.make_directory(name)
    partition = TopicPartition("t", 0)
    return open_log(disk, name, partition, now_ms=TIME_MS, config=config, offsets=offsets)


def offsets_of(log: PartitionLog, *, clean: bool = False) -> StoredOffsets:
    """Return the offsets that the checkpoints of a flushed log have."""
    return StoredOffsets(clean=clean, recovery_point=log.end_offset, high_watermark=log.end_offset)


def make_log(
    disk: RealDisk, batches: int, name: str = "t-0", config: LogConfig = CONFIG
) -> PartitionLog:
    """Return a log with these batches, all flushed."""
    log = open_in(disk, StoredOffsets(), name, config)
    for number in range(batches):
        append(log, [b"%d" % number] * 5)
    log.flush_state.flush()
    return log


@pytest.mark.parametrize("clean", [False, True], ids=["killed", "stopped in order"])
def test_start_opens_no_file_of_older_segments(tmp_path: Path, clean: bool) -> None:
    """A log of terabytes is ready as soon as a small one."""
    disk = CountingDisk(tmp_path)
    log = make_log(disk, 200, config=INDEXED)
    assert len(log.segments) > 15
    if clean:
        log.flush_state.write_all_indexes()
        log.flush_state.flush()
    log.segments.release()
    disk.opened.clear()
    again = open_in(disk, offsets_of(log, clean=clean), config=INDEXED)
    assert again.end_offset == log.end_offset
    last_base = log.segments[-2].base_offset
    stems = {path.rpartition("/")[2][:20] for path in disk.opened}
    assert {stem for stem in stems if stem.isdigit() and int(stem) < last_base} == set()


def test_start_after_a_kill_replaces_snapshots_without_removing_them(tmp_path: Path) -> None:
    """Removing a file costs much more than writing it again."""
    disk = CountingDisk(tmp_path)
    log = make_log(disk, 3)
    log.segments.release()
    open_in(disk, offsets_of(log)).segments.release()
    path = f"t-0/{names.stem(log.end_offset)}{names.SNAPSHOT}"
    snapshot = disk.read(path)
    disk.removed.clear()
    again = open_in(disk, offsets_of(log))
    assert again.snapshots.offsets == [log.end_offset]
    assert disk.read(path) == snapshot
    assert not disk.removed


def test_start_after_a_kill_drops_snapshots_of_lost_batches(tmp_path: Path) -> None:
    disk = CountingDisk(tmp_path)
    log = make_log(disk, 60)
    log.roll(TIME_MS)
    log.flush_state.flush()
    assert len(log.snapshots.offsets) > 3
    last = log.segments[-2]
    size, end = last.size - 1, last.base_offset
    log.segments.release()
    with (tmp_path / last.file.path).open("r+b") as file:
        file.truncate(size)
    again = open_in(disk, attrs.evolve(offsets_of(log), recovery_point=0, high_watermark=0))
    assert end < again.end_offset < log.end_offset
    snapshots = {e.name for e in disk.entries("t-0") if e.name.endswith(names.SNAPSHOT)}
    assert snapshots == {names.stem(offset) + names.SNAPSHOT for offset in again.snapshots.offsets}
    assert again.snapshots.offsets[-1] == again.end_offset


def test_small_log_is_opened_with_few_calls_after_a_stop(tmp_path: Path) -> None:
    disk = CountingDisk(tmp_path)
    log = make_log(disk, 3)
    log.snapshots.take(log.end_offset)
    log.flush_state.write_all_indexes()
    log.flush_state.flush()
    log.segments.release()
    disk.opened.clear()
    again = open_in(disk, offsets_of(log, clean=True))
    assert again.end_offset == log.end_offset
    kinds = [path.rpartition(".")[2] for path in disk.opened]
    assert kinds.count("log") == 1
    assert kinds.count("index") == 2
    assert kinds.count("timeindex") == 1
    assert len(kinds) <= 6


def test_idle_log_takes_little_memory(tmp_path: Path) -> None:
    """A broker may have tens of thousands of them."""
    disk = RealDisk(str(tmp_path))
    count, logs = 50, list[PartitionLog]()
    for number in range(count):
        log = make_log(disk, 1, f"t-{number}")
        log.flush_state.write_all_indexes()
        log.flush_state.flush()
        log.segments.release()
    offsets = offsets_of(log, clean=True)
    open_in(disk, offsets, "t-0").segments.release()
    gc.collect()
    tracemalloc.start()
    try:
        for number in range(count):
            logs.append(open_in(disk, offsets, f"t-{number}"))
            logs[-1].segments.release()
        gc.collect()
        size = tracemalloc.get_traced_memory()[0]
    finally:
        tracemalloc.stop()
    assert size / count < 4000
