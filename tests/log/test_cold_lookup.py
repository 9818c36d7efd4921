"""Lookups that do not wait for the disk, and the reads of threads for them."""

import errno
import os

import attrs
import pytest

from kwire.log import timestamp_search
from kwire.log.cold_lookups import WouldWait
from kwire.log.config import LogConfig
from kwire.log.disk import File, RealDisk
from kwire.log.formats import names, offset_index, time_index
from kwire.log.partition_log import PartitionLog, create
from kwire.log.segments import segment as segment_module
from kwire.log.segments.segment import UNKNOWN_TIMESTAMP, Segment
from kwire.records.header import Buffer, parse
from kwire.types import TopicPartition
from simulation.disk import SimDisk
from tests.support.log.batches import TIME_MS, append, max_timestamp

CONFIG = LogConfig(segment_bytes=2000, index_interval_bytes=100)


def log_of_segments(disk: SimDisk) -> PartitionLog:
    """Return a log of several segments whose indexes are on disk."""
    disk.make_directory("t-0")
    log = create(disk, "t-0", TopicPartition("t", 0), now_ms=TIME_MS, config=CONFIG)
    for number in range(90):
        append(log, [b"%d" % number], timestamp_ms=TIME_MS + number)
    log.flush_state.flush()
    assert len(log.segments) > 3
    return log


def base_offset(log: PartitionLog, offset: int, *, wait: bool) -> int:
    with log.read(offset, 1, end_offset=log.end_offset, wait=wait) as region:
        return parse(region.read()).base_offset


def test_cold_lookup_raises_instead_of_waiting_for_the_disk() -> None:
    """Invariant 91: it reads no file, and succeeds after a thread has run its job."""
    disk = SimDisk()
    log = log_of_segments(disk)
    for offset in range(log.segments.active.base_offset):
        disk.cached = False
        calls = len(disk.calls)
        with pytest.raises(WouldWait) as cold:
            base_offset(log, offset, wait=False)
        assert not [path for kind, path in disk.calls[calls:] if kind == "read"]
        cold.value.job()
        assert [path for kind, path in disk.calls[calls:] if kind == "read"]
        disk.cached = True
        assert base_offset(log, offset, wait=False) == offset


@pytest.mark.parametrize("wait", [False, True])
@pytest.mark.parametrize("suffix", [names.INDEX, names.TIME_INDEX])
def test_segment_without_its_index_file_is_read_from_its_start(suffix: str, wait: bool) -> None:
    """Invariant 79: the file was removed while the broker runs; the next start rebuilds it."""
    disk = SimDisk()
    log = log_of_segments(disk)
    segment = log.segments[1]
    segment.largest_timestamp()
    disk.remove(segment.files.path(suffix))
    for offset in range(segment.base_offset, log.segments[2].base_offset):
        assert base_offset(log, offset, wait=wait) == offset
        record = timestamp_search.run(timestamp_search.first_at_least(log, TIME_MS + offset))
        assert record == timestamp_search.OffsetAndTimestamp(offset, TIME_MS + offset)
    assert disk.failed is None


def test_lookup_at_the_log_end_does_not_wait() -> None:
    disk = SimDisk()
    log = log_of_segments(disk)
    disk.cached = False
    for offset in range(log.segments.active.base_offset, log.end_offset):
        assert log.segments.active.locate(offset, wait=False) is not None


def test_cold_lookup_in_the_active_segment_reads_only_its_batches() -> None:
    """Its index is in memory and may change meanwhile, so a thread reads only the batches."""
    disk = SimDisk()
    log = log_of_segments(disk)
    log.segments.active._recent_next = log.segments.active._recent_next[:0]
    log.segments.active._recent_position = log.segments.active._recent_position[:0]
    offset = log.end_offset - 2
    disk.cached = False
    with pytest.raises(WouldWait) as cold:
        base_offset(log, offset, wait=False)
    calls = len(disk.calls)
    cold.value.job()
    paths = {path for kind, path in disk.calls[calls:] if kind == "read"}
    assert paths == {log.segments.active.file.path}
    disk.cached = True
    assert base_offset(log, offset, wait=False) == offset


@pytest.mark.parametrize("change", ["removed", "cut"])
def test_segment_removed_during_a_cold_read_leaves_no_file_open(change: str) -> None:
    """The thread may get an error or not; it leaves no file open."""
    disk = SimDisk()
    log = log_of_segments(disk)
    disk.cached = False
    with pytest.raises(WouldWait) as cold:
        base_offset(log, 1, wait=False)
    if change == "removed":
        log.drop_segments(1)
        with pytest.raises(FileNotFoundError):
            cold.value.job()
    else:
        log.truncate_to(1)
        cold.value.job()
    log.segments.release()
    assert not disk.opened


def test_cached_read_of_a_real_file_returns_only_cached_bytes(
    tmp_path, monkeypatch: pytest.MonkeyPatch
) -> None:
    disk = RealDisk(str(tmp_path))
    file = disk.open("a", create=True)
    file.write([b"0123456789"], 0)
    if file.read_cached(0, 1) is None:
        assert not disk.can_probe
        pytest.skip("this file system does not say what is cached")
    assert [file.read_cached(*at) for at in ((0, 4), (8, 4), (10, 4))] == [b"0123", b"89", b""]
    monkeypatch.setattr(os, "preadv", lambda fd, parts, position, flags: 2)
    assert file.read_cached(0, 4) is None, "the next page is not cached"

    def refuse(number: int) -> None:
        def preadv(*arguments: object) -> int:
            raise OSError(number, os.strerror(number))

        monkeypatch.setattr(os, "preadv", preadv)

    refuse(errno.EAGAIN)
    assert file.read_cached(0, 4) is None
    assert not file.is_cached(0, 4)
    refuse(errno.EOPNOTSUPP)
    assert file.read_cached(0, 4) is None
    assert not disk.can_probe
    disk.can_probe = True
    refuse(errno.EIO)
    with pytest.raises(OSError, match="error"):
        file.read_cached(0, 4)
    assert disk.failed is not None


@pytest.mark.parametrize("count", [0, 1, 2, 2047, 2048, 2049, 5000, 9000])
def test_index_search_reads_few_entries_and_returns_the_last_match(count: int) -> None:
    offsets = b"".join(offset_index.ENTRY.pack(3 * n, 100 * n) for n in range(count))
    times = b"".join(time_index.ENTRY.pack(3 * n, n) for n in range(count))
    reads = 0

    def count_reads(data: bytes, size: int) -> offset_index.Read:
        def read(first: int, number: int) -> bytes:
            nonlocal reads
            reads += 1
            return data[first * size : (first + number) * size]

        return read

    for target in sorted({-1, 0, 1, 2, 3, 4, 3 * count // 2, 3 * count - 3, 3 * count, 1 << 30}):
        expected = [n for n in range(count) if 3 * n <= target]
        reads = 0
        entry = offset_index.floor(count_reads(offsets, 8), count, target)
        assert entry == ((3 * expected[-1], 100 * expected[-1]) if expected else None)
        assert reads <= 4
        older = [n for n in range(count) if 3 * n < target]
        assert time_index.before(count_reads(times, 12), count, target) == (
            (3 * older[-1], older[-1]) if older else None
        )


@pytest.mark.parametrize("number", [0, 1, 2])
def test_missing_time_index_is_rebuilt_by_its_first_use(number: int) -> None:
    """Invariants 17 and 79: searches find the records, and retention their age."""
    disk = SimDisk()
    log = log_of_segments(disk)
    for segment in log.segments[:-1]:
        segment.max_timestamp = UNKNOWN_TIMESTAMP  # As after a start.
    segment, following = log.segments[number], log.segments[number + 1]
    path = segment.files.path(names.TIME_INDEX)
    index = disk.read(path)
    disk.remove(path)
    for offset in range(segment.base_offset, following.base_offset):
        record = timestamp_search.run(timestamp_search.first_at_least(log, TIME_MS + offset))
        assert record == timestamp_search.OffsetAndTimestamp(offset, TIME_MS + offset)
    assert segment.largest_timestamp() == TIME_MS + following.base_offset - 1
    assert disk.read(path) == index


class FailingFile:
    """A file of which only some reads succeed."""

    def __init__(self, file: File, reads: int) -> None:
        self.file = file
        self.reads = reads

    def read(self, position: int, size: int) -> Buffer:
        self.reads -= 1
        if self.reads < 0:
            raise OSError(errno.EMFILE, "Too many open files")
        return self.file.read(position, size)


@pytest.mark.parametrize("reads", [0, 1])
def test_error_while_an_index_is_rebuilt_is_repaired_by_the_next_search(
    reads: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Invariants 17 and 79: half an index would hide records from searches until a restart."""
    monkeypatch.setattr(segment_module, "CHUNK", 256)
    disk = SimDisk()
    log = log_of_segments(disk)
    segment, following = log.segments[0], log.segments[1]
    segment.max_timestamp = UNKNOWN_TIMESTAMP  # As after a start.
    path = segment.files.path(names.TIME_INDEX)
    index = disk.read(path)
    disk.remove(path)
    with monkeypatch.context() as shortage:
        shortage.setattr(segment, "file", FailingFile(segment.file, reads))
        with pytest.raises(OSError, match="Too many open files"):
            segment.largest_timestamp()
    assert not segment.has_indexes
    assert segment.size == segment.written
    assert segment.largest_timestamp() == TIME_MS + following.base_offset - 1
    assert disk.read(path) == index


def test_search_rebuilds_no_index_of_a_removed_segment() -> None:
    """A search by time pauses between segments, and retention goes on."""
    disk = SimDisk()
    log = log_of_segments(disk)
    for segment in log.segments[:-1]:
        segment.max_timestamp = UNKNOWN_TIMESTAMP  # As after a start.
    removed = log.segments[:3]
    for path in log.drop_segments(3):
        disk.remove(path)
    files = set(disk.entries(removed[0].files.directory))
    assert [segment.largest_timestamp() for segment in removed] == [-1, -1, -1]
    assert set(disk.entries(removed[0].files.directory)) == files


def damage(segment: Segment, end: int = 1 << 30) -> bytes:
    """Move the positions of a segment's index, in memory or on disk; return the right index.

    Entries from the relative offset ``end`` on are left as they are.
    """
    data = segment.indexes.data()[0]
    entries = offset_index.entries(data, 0)
    wrong = b"".join(offset_index.ENTRY.pack(o, at + 7 * (o < end)) for o, at in entries)
    if segment.has_indexes:
        assert segment.indexes.offsets is not None
        segment.indexes.offsets.tail[:] = wrong
        del segment._recent_next[:], segment._recent_position[:]
    else:
        segment.files.write(names.INDEX, wrong)
    return data


def look_up_damaged(log: PartitionLog, offset: int) -> WouldWait:
    with pytest.raises(WouldWait) as cold:
        base_offset(log, offset, wait=False)
    return cold.value


def test_wrong_index_is_rebuilt_by_a_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    """Invariants 79 and 91: the headers of a segment of a GiB take the event loop seconds."""
    monkeypatch.setattr(segment_module, "CHUNK", 128)
    disk = SimDisk()
    log = log_of_segments(disk)
    segment = log.segments[1]
    offset = segment.base_offset + 20
    index = damage(segment)
    jobs = [look_up_damaged(log, offset).job for _ in range(2)]
    assert disk.read(segment.files.path(names.INDEX)) != index, "readers go on with the old one"
    for job in jobs:
        job()
    calls = len(disk.calls)
    assert base_offset(log, offset, wait=False) == offset
    reads = [path for kind, path in disk.calls[calls:] if kind == "read"]
    assert reads.count(segment.file.path) <= 5, "only around the entry"
    assert disk.read(segment.files.path(names.INDEX)) == index
    assert not [name for name in disk.files if name.endswith(".tmp")]


def test_appends_while_a_thread_rebuilds_the_index_are_in_it() -> None:
    """Invariants 17 and 79."""
    disk = SimDisk()
    disk.make_directory("t-0")
    config = attrs.evolve(CONFIG, segment_bytes=1 << 20)
    log = create(disk, "t-0", TopicPartition("t", 0), now_ms=TIME_MS, config=config)
    for number in range(90):
        append(log, [b"%d" % number], timestamp_ms=TIME_MS + number)
    damage(log.segments.active)
    job = look_up_damaged(log, 70).job
    append(log, [b"90"], timestamp_ms=TIME_MS + 90)
    job()
    append(log, [b"91"], timestamp_ms=TIME_MS + 91)
    assert base_offset(log, 70, wait=True) == 70
    for number in range(92, 100):
        append(log, [b"%d" % number], timestamp_ms=TIME_MS + number)
    assert [base_offset(log, offset, wait=False) for offset in range(100)] == list(range(100))
    assert max_timestamp(log) == (TIME_MS + 99, 99)


@pytest.mark.parametrize("change", ["cut", "closed"])
def test_index_that_a_thread_built_before_a_change_is_not_used(change: str) -> None:
    """Invariants 17 and 79: the segment has other batches since."""
    disk = SimDisk()
    log = log_of_segments(disk)
    segment = log.segments[1] if change == "cut" else log.segments.active
    offset = segment.base_offset + (9 if change == "cut" else 3)
    damage(segment, 12)
    job = look_up_damaged(log, offset).job
    if change == "cut":
        job()
        log.truncate_to(segment.base_offset + 18)
        assert base_offset(log, offset, wait=True) == offset
    for number in range(40):
        append(log, [b"longer than before %d" % number], timestamp_ms=TIME_MS + 1000 + number)
    log.flush_state.flush()
    assert not segment.has_indexes
    job()
    if change == "closed":
        damage(segment)
    for each in range(log.end_offset):
        assert base_offset(log, each, wait=True) == each
    assert max_timestamp(log) == (TIME_MS + 1039, log.end_offset - 1)


def test_search_by_time_rebuilds_a_lost_time_index_in_a_thread() -> None:
    """Invariants 17 and 91."""
    disk = SimDisk()
    log = log_of_segments(disk)
    segment = log.segments[1]
    segment.max_timestamp = UNKNOWN_TIMESTAMP
    disk.remove(segment.files.path(names.TIME_INDEX))
    search = timestamp_search.first_at_least(log, TIME_MS + segment.base_offset)
    disk.calls.clear()
    job = search.send(None)
    while job is None or job.disk is None:
        job = search.send(None)
    calls = len(disk.calls)
    assert [path for kind, path in disk.calls if kind == "read"].count(segment.file.path) <= 2
    assert not [path for kind, path in disk.calls if kind in ("write", "sync", "rename")]
    job.call()
    record = timestamp_search.run(search)
    assert record == (segment.base_offset, TIME_MS + segment.base_offset)
    reads = [path for kind, path in disk.calls[calls:] if kind == "read"]
    assert reads.count(segment.file.path) <= 5
