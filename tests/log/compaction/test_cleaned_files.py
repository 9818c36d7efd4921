"""The files that a pass writes, what it reads, and how it fails: invariants 86 and 87."""

import errno
from collections.abc import Callable

import pytest

from kwire.log.compaction.clean import clean
from kwire.log.compaction.job import CleaningFailed
from kwire.log.config import LogConfig
from kwire.log.disk import RealDisk
from kwire.log.formats import names
from kwire.log.segments.segment import Segment
from kwire.records import build
from kwire.records.build import New, batch
from kwire.records.header import headers, parse
from simulation.disk import SimDisk
from tests.support.log.batches import old_format_segment
from tests.support.log.compaction import DIRECTORY, NOW_MS, MadeLog, path, transaction


def indexed_log(segment_bytes: int = 1 << 30) -> MadeLog:
    """Return a log of 40 batches of 1 KB, of which every second one is replaced."""
    log = MadeLog(config=LogConfig(index_interval_bytes=4000, segment_bytes=segment_bytes))
    for n in range(40):
        log.put((b"%d" % (n % 2 or n), b"x" * 930), timestamps=[NOW_MS + n * 7 % 100])
        if n % 10 == 9:
            log.roll(modified_ms=NOW_MS + n)
    return log


# The files -----------------------------------------------------------------------------------
def test_indexes_are_those_of_the_new_segments_batches() -> None:
    log = indexed_log()
    (group,) = log.clean().groups
    size = sum(len(b.data) for b in log.batches())
    assert group.size == group.bytes_written == size
    rebuilt = Segment(log.disk, DIRECTORY, 0, size, log.config)
    offsets, times = log.index(0), log.times(0)
    assert len(offsets) > 3
    rebuilt.reindex()
    assert (log.index(0), log.times(0)) == (offsets, times)
    largest = max((b.header.max_timestamp, -b.header.last_offset) for b in log.batches())
    assert times[-1] == (largest[0], -largest[1])
    assert (group.largest_timestamp_ms, group.largest_timestamp_offset) == times[-1]


def test_new_segment_finds_each_of_its_batches() -> None:
    log = indexed_log()
    (group,) = log.clean().groups
    segment = Segment(log.disk, DIRECTORY, 0, group.size, log.config)
    position = 0
    for b in log.batches():
        assert segment.locate(b.header.base_offset) == (position, len(b.data))
        position += len(b.data)


@pytest.mark.parametrize("real", [False, True])
def test_new_log_file_has_the_time_of_the_last_source(real: bool, tmp_path) -> None:
    log = MadeLog(disk=RealDisk(str(tmp_path)) if real else SimDisk())
    log.put((b"a", b"1"))
    log.roll(modified_ms=NOW_MS)
    log.put((b"b", b"1"))
    log.roll(modified_ms=NOW_MS + 5)
    (group,) = log.clean().groups
    assert group.modified_ms == NOW_MS + 5
    modified = {e.name: e.modified_ms for e in log.disk.entries(DIRECTORY)}
    assert modified[f"{0:020d}.log"] == NOW_MS + 5


def test_group_of_which_nothing_stays_is_an_empty_segment() -> None:
    log = MadeLog(config=LogConfig(segment_bytes=1))
    log.put((b"a", b"1"))
    log.roll()
    log.put((b"a", b"2"))
    log.roll()
    first, second = log.clean().groups
    assert (first.base_offset, first.size, first.largest_timestamp_ms) == (0, 0, -1)
    assert first.largest_timestamp_offset == 0
    assert log.disk.read(path(0, names.LOG)) == log.disk.read(path(0, names.TIME_INDEX)) == b""
    assert second.size > 0
    # The empty segment joins its neighbour the next time.
    log.config = LogConfig()
    assert [group.sources for group in log.clean().groups] == [(0, 1)]


def test_files_are_synced_before_a_group_is_reported() -> None:
    log = indexed_log()
    log.put((b"z", b"1"), **transaction(7))
    log.mark(7, commit=False)
    log.roll()
    assert isinstance(log.disk, SimDisk)
    group = next(clean(log.disk, log.job(), lambda size: None))
    for suffix in group.suffixes:
        file = log.disk.inode(path(0, suffix) + names.CLEANED)
        assert file.durable == bytes(file.data)
    assert log.disk.calls[-1] == ("sync_directory", DIRECTORY)


def test_log_is_unchanged_until_its_groups_are_put_in_place() -> None:
    log = indexed_log(segment_bytes=15_000)
    before = log.files()
    generator = clean(log.disk, log.job(), lambda size: None)
    groups = list(generator)
    assert len(groups) > 1
    assert {n: d for n, d in log.files().items() if not n.endswith(names.CLEANED)} == before
    written = {
        f"{group.base_offset:020d}{suffix}{names.CLEANED}"
        for group in groups
        for suffix in group.suffixes
    }
    assert log.files().keys() - before.keys() == written


def test_files_of_an_abandoned_pass_are_overwritten() -> None:
    log = indexed_log()
    for suffix in (names.LOG, names.INDEX, names.TIME_INDEX):
        log.disk.write(path(0, suffix) + names.CLEANED, b"\xff" * 100_000)
    other = indexed_log()
    log.clean()
    other.clean()
    assert log.files() == other.files()


# Memory and rate -----------------------------------------------------------------------------
def test_reads_and_writes_are_as_large_as_the_buffer() -> None:
    log = indexed_log()
    paced = log.clean(buffer_bytes=5000).paced
    assert max(paced) <= 5000
    assert sum(paced) > 2 * 40 * 1000


def test_read_grows_to_the_largest_batch_and_shrinks_again() -> None:
    log = MadeLog()
    for n in range(30):
        log.put((b"%d" % n, b"x" * (50_000 if n == 10 else 100)))
    log.roll()
    paced = log.clean(buffer_bytes=1000).paced
    large = [size for size in paced if size > 1000]
    assert large  # for the map, and to read and to write the new segment
    assert len(large) == 3
    assert max(paced) < 51_000
    assert len(log.pairs()) == 30


def test_every_size_of_the_buffer_gives_the_same_segment() -> None:
    files = []
    for buffer_bytes in (1, 61, 990, 4096, 1 << 20):
        log = indexed_log()
        log.clean(buffer_bytes=buffer_bytes)
        files.append(log.files())
    assert all(f == files[0] for f in files)


def test_pace_may_end_the_pass() -> None:
    log = indexed_log()
    before = log.files()

    def give_up(size: int) -> None:
        raise InterruptedError

    with pytest.raises(InterruptedError):
        next(clean(log.disk, log.job(), give_up))
    assert log.files() == before


def open_files(log: MadeLog) -> list[str]:
    assert isinstance(log.disk, SimDisk)
    return [file.path for file in log.disk.opened if file.open_inode is not None]


# Damage --------------------------------------------------------------------------------------
def rewritten(data: bytes, **changes: int) -> bytes:
    """Return a batch with other fields and the right checksum."""
    return build.assemble(parse(data)._replace(**changes), data[61:])


def flip_bit(data: bytes, position: int) -> bytes:
    return data[:position] + bytes([data[position] ^ 1]) + data[position + 1 :]


GOOD = batch([New(b"a", b"1"), New(b"b", b"22")], timestamp_ms=NOW_MS, base_offset=1)
ZIPPED = batch([New(b"a", b"1" * 99)], timestamp_ms=NOW_MS, base_offset=1, compression=4)
DAMAGED: dict[str, bytes] = {
    "a bit of the payload": flip_bit(GOOD, len(GOOD) - 1),
    "a bit of the header": flip_bit(GOOD, 40),
    "magic": GOOD[:16] + b"\7" + GOOD[17:],
    "too short a length": GOOD[:8] + (40).to_bytes(4, "big") + GOOD[12:],
    "too long a length": GOOD[:8] + (len(GOOD)).to_bytes(4, "big") + GOOD[12:],
    "negative length": GOOD[:8] + b"\xff" * 4 + GOOD[12:],
    "more records than there are": rewritten(GOOD, record_count=3),
    "negative number of records": rewritten(GOOD, record_count=-1),
    "fewer records than there are": rewritten(GOOD, record_count=1),
    "unknown codec": rewritten(GOOD, attributes=7),
    "payload of no codec": rewritten(GOOD, attributes=4),
    "offset of an earlier batch": rewritten(GOOD, base_offset=0),
    "offset of the next segment": rewritten(GOOD, last_offset_delta=3),
    "cut off": GOOD[:-1],
    "cut off in the header": GOOD[:50],
    "zeros": bytes(100),
    "old format": old_format_segment(),
    "compressed garbage": rewritten(ZIPPED[:61] + b"\0" * 20),
    "control record without a type": build.batch(
        [New(b"\0", b"")], timestamp_ms=NOW_MS, base_offset=1, producer_id=7, control=True
    ),
}


@pytest.mark.parametrize("damage", DAMAGED.values(), ids=DAMAGED)
@pytest.mark.parametrize("first_dirty", [0, 4], ids=["dirty", "clean"])
def test_damaged_batch_fails_the_pass_and_leaves_the_log(damage: bytes, first_dirty: int) -> None:
    log = MadeLog()
    log.put((b"a", b"1"))
    log.put((b"a", b"1"), (b"b", b"22"))
    log.skip(1)
    log.roll()
    log.put((b"a", b"2"))
    log.roll()
    log_path = path(0, names.LOG)
    first = next(headers(log.disk.read(log_path)))[1]
    log.disk.write(log_path, log.disk.read(log_path)[: first.size] + damage)
    log.sources[0] = log.sources[0].__class__(
        0, first.size + len(damage), NOW_MS, NOW_MS, has_txn_index=False
    )
    before = log.files()
    with pytest.raises(CleaningFailed, match=r"position=|file") as caught:
        log.clean(first_dirty=first_dirty)
    assert caught.tb is not None  # It would keep an unfinished read, and so its file.
    assert open_files(log) == []
    files = {n: d for n, d in log.files().items() if not n.endswith(names.CLEANED)}
    assert files == before


def test_segment_that_is_shorter_than_the_job_says_fails_the_pass() -> None:
    log = MadeLog()
    log.put((b"a", b"1"))
    log.roll()
    log.disk.open(path(0, names.LOG)).truncate(40)
    with pytest.raises(CleaningFailed, match="ends early"):
        log.clean()


def test_damaged_batch_of_an_aborted_transaction_fails_the_pass() -> None:
    """The damage may be what makes it look aborted."""
    log = MadeLog()
    log.put((b"a", b"1"), **transaction(7))
    log.mark(7, commit=False)
    log.roll()
    assert isinstance(log.disk, SimDisk)
    log.disk.rot(path(0, names.LOG), 65)
    with pytest.raises(CleaningFailed, match="checksum"):
        log.clean()


@pytest.mark.parametrize("damage", [lambda d: d[:-1], lambda d: b"\1" + d[1:], lambda d: d + d])
def test_damaged_index_of_aborted_transactions_fails_the_pass(
    damage: Callable[[bytes], bytes],
) -> None:
    log = MadeLog()
    log.put((b"a", b"1"), **transaction(7))
    log.mark(7, commit=False)
    log.roll()
    index = path(0, names.TXN_INDEX)
    log.disk.write(index, damage(log.disk.read(index)))
    with pytest.raises(CleaningFailed, match="aborted"):
        log.clean()


@pytest.mark.parametrize("kind", ["create", "write", "sync", "read"])
def test_error_of_the_operating_system_is_passed_on(kind: str) -> None:
    log = indexed_log()
    assert isinstance(log.disk, SimDisk)
    log.disk.fail_at(kind, OSError(errno.EIO, "input/output error"))
    with pytest.raises(OSError, match="input/output") as caught:
        log.clean()
    assert caught.value.errno == errno.EIO


def test_full_disk_ends_the_pass_and_leaves_the_log() -> None:
    log = indexed_log()
    assert isinstance(log.disk, SimDisk)
    before = log.files()
    log.disk.capacity = sum(map(len, before.values())) + 5000
    with pytest.raises(OSError, match="no space") as caught:
        log.clean()
    assert caught.value.errno == errno.ENOSPC
    assert {n: d for n, d in log.files().items() if not n.endswith(names.CLEANED)} == before


def test_pass_that_is_abandoned_leaves_no_file_open() -> None:
    log = indexed_log(segment_bytes=15_000)
    assert isinstance(log.disk, SimDisk)
    generator = clean(log.disk, log.job(), lambda size: None)
    next(generator)
    generator.close()
    assert open_files(log) == []
