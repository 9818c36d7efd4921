"""Recovery at a start from leftover files, damaged files and stale checkpoints."""

import errno
from contextlib import suppress
from copy import deepcopy
from pathlib import Path
from random import Random

import attrs
import pytest

from kwire.drive import run_steps
from kwire.errors import KafkaStorageError
from kwire.log.config import LogConfig
from kwire.log.formats import checkpoints
from kwire.log.inspection.dump import dump
from kwire.log.producers import CorruptSnapshot, read_snapshot
from kwire.log.recovery import OldFormat, StoredOffsets, open_log
from kwire.types import TopicPartition
from simulation.disk import Killed, SimDisk
from tests.support.log.batches import TIME_MS, append, content, encode, old_format_segment
from tests.support.log.restart import CONFIG, reopen

STEM = "t-0/" + "0" * 20


@pytest.fixture
def disk() -> SimDisk:
    """Return a disk with a cleanly closed log of seven batches in four segments."""
    disk = SimDisk()
    disk.make_directory("t-0")
    log = reopen(disk)
    for n in range(7):
        append(log, [b"%d" % n], epoch=n // 3, producer_id=1, producer_epoch=0, base_sequence=n)
    log.close()
    return disk


def files(disk: SimDisk) -> dict[str, bytes]:
    return {name: bytes(inode.data) for name, inode in disk.files.items()}


def test_recovery_rebuilds_identical_files(disk: SimDisk) -> None:
    """Invariants 52, 79 and 85: the batches are enough to rebuild indexes, snapshots and epochs."""
    before = files(disk)
    for suffix in (".index", ".timeindex", ".snapshot"):
        for name in [name for name in before if name.endswith(suffix)]:
            for damage in (None, b"", b"x", b"\xff" * 24, before[name] * 2):
                if damage is None:
                    disk.remove(name)
                else:
                    disk.files[name].data[:] = damage
                reopen(disk).close()
                assert files(disk) == before, (name, damage)
    disk.files["t-0/leader-epoch-checkpoint"].data[:] = b"0\n2\n0 0\n"
    reopen(disk).close()
    assert files(disk) == before


def test_recovery_can_be_killed_at_any_write(disk: SimDisk) -> None:
    """Invariant 81."""
    before = files(disk)
    for cut in range(0, 500, 7):
        disk.cut = cut
        with suppress(Killed):
            reopen(disk)
        disk = disk.after_kill()
        reopen(disk).close()
        assert files(disk) == before


def test_recovery_of_a_compacted_log_that_is_killed_at_any_write_leaves_no_hole() -> None:
    """Invariant 83: what lies behind damage goes, though a compacted topic may have gaps."""
    config = LogConfig(segment_bytes=200, index_interval_bytes=50, cleanup_compact=True)
    disk = SimDisk()
    disk.make_directory("t-0")
    log = reopen(disk, config)
    for number in range(20):
        append(log, [b"%d" % number])
    log.flush_state.flush()
    damaged = log.segments[2]
    disk.rot(damaged.file.path, damaged.size - 1)
    end_offset = log.segments[3].base_offset - 1
    for changes in range(100):
        survivor = SimDisk(root=deepcopy(disk.root))
        survivor.changes_left = changes
        with suppress(Killed):
            reopen(survivor, config)
            break
        after = reopen(survivor.after_kill(), config)
        assert content(after) == [(number, b"%d" % number) for number in range(end_offset)]
    assert 20 < changes < 99


@pytest.mark.parametrize("clean", [True, False])
def test_leftover_files_are_removed(disk: SimDisk, clean: bool) -> None:
    """Invariant 83."""
    before = files(disk)
    for name in (".log.deleted", ".log.cleaned", ".index.cleaned", ".timeindex.tmp"):
        disk.write(STEM + name, b"left")
    disk.write("t-0/00000000000000000999.index", b"left")
    log = reopen(disk, clean=clean)
    assert len(content(log)) == 7
    log.close()
    assert files(disk) == before


def test_finished_compaction_replaces_its_segments(disk: SimDisk) -> None:
    """Invariant 83: segments 0 to 2 were merged, and no record appears twice."""
    merged = encode([b"5"], base_offset=5)
    disk.write(STEM + ".log.swap", merged)
    disk.write(STEM + ".index.swap", b"")
    compacted = attrs.evolve(CONFIG, cleanup_compact=True)
    log = reopen(disk, compacted)
    assert [s.base_offset for s in log.segments] == [0, 6]
    assert content(log) == [(5, b"5"), (6, b"6")]
    disk.write(STEM + ".log.swap", encode([b"no"]))
    disk.write(STEM + ".log.cleaned", b"")  # Some files were not renamed to .swap.
    assert content(reopen(disk, compacted)) == [(5, b"5"), (6, b"6")]


def test_removal_of_an_unfinished_compaction_that_is_killed_keeps_the_old_segment() -> None:
    """Invariant 83: a recovery that dies leaves the next one no group that looks complete."""
    config = LogConfig(index_interval_bytes=50, cleanup_compact=True)
    disk = SimDisk()
    disk.make_directory("t-0")
    log = reopen(disk, config)
    for number in range(20):
        append(log, [b"%d" % number])
    log.close()
    before = files(disk)
    for suffix in (".log.swap", ".index.swap", ".timeindex.cleaned"):
        disk.write(STEM + suffix, b"")
    disk.sync_directory("t-0")
    for changes in range(20):
        survivor = SimDisk(root=deepcopy(disk.root))
        survivor.changes_left = changes
        with suppress(Killed):
            reopen(survivor, config, clean=True)
            break
        after = reopen(survivor.after_kill(), config, clean=True)
        assert [offset for offset, _ in content(after)] == list(range(20))
        assert after.disk.read(STEM + ".index") == before[STEM + ".index"]
    assert changes == 3


def test_stale_checkpoints_are_limited_to_the_log(disk: SimDisk) -> None:
    """Invariants 82 and 84."""
    for watermark, start, expected in ((99, 0, (0, 7)), (2, 5, (5, 5)), (0, 0, (0, 0))):
        log = reopen(disk, log_start=start, high_watermark=watermark, recovery_point=99)
        assert (log.log_start, log.high_watermark) == expected
    log = reopen(disk, log_start=12)
    assert (log.log_start, log.end_offset, log.segments.size) == (12, 12, 0)


def test_zeros_behind_the_last_batch_are_cut_off(disk: SimDisk) -> None:
    """Invariant 77."""
    name = "t-0/00000000000000000006.log"
    good = disk.read(name)
    for tail in (bytes(500), b"\0" * 60, good[:-1], encode([b"x"], base_offset=7)[:17] + bytes(60)):
        disk.files[name].data[:] = good + tail
        log = reopen(disk)
        assert log.end_offset == 7
        assert disk.read(name) == good


def offset_at(disk: SimDisk, position: int) -> int:
    return int.from_bytes(disk.inode(f"{STEM}.log").data[position : position + 8], "big")


@pytest.mark.parametrize(
    ("wrong", "successors"),
    [(0, 0), (4, 0), (1 << 40, 0), ((1 << 63) - 1, 0), (0, 1), (6, 2), (7, 2), (1 << 20, 1)],
)
def test_batch_with_a_wrong_base_offset_is_cut_off(wrong: int, successors: int) -> None:
    """The CRC does not cover the base offset, which a crash can tear at the end of a sector.

    A torn one is too small; one that is too large could be a gap, but its successors show it.
    """
    disk = SimDisk()
    disk.make_directory("t-0")
    log = reopen(disk, LogConfig())
    for n in range(4):
        append(log, [b"%d" % n])
    size = log.segments.size // 4
    append(log, [b"." * (512 - log.segments.size - size - 4)])
    place = log.segments.size
    append(log, [b"5"])
    for n in range(successors):
        append(log, [b"%d" % n])
    log.flush_state.flush()
    assert offset_at(disk, place) == 5
    assert 490 < place < 512
    disk.inode(f"{STEM}.log").data[place : place + 8] = wrong.to_bytes(8, "big")
    assert reopen(disk.after_kill(), LogConfig(), recovery_point=3).end_offset == 5


@pytest.mark.parametrize("segment_bytes", [1 << 30, 2000, 100])
@pytest.mark.parametrize("gap", [1, 1000, (1 << 31) - 2, (1 << 31) - 1, 1 << 31, 1 << 40])
def test_offset_gaps_of_a_formerly_compacted_topic_stay(gap: int, segment_bytes: int) -> None:
    """Invariant 84: a follower appends them, and a recovery keeps them.

    The batches lie at all positions of a sector of the disk, and begin segments too.
    """
    disk = SimDisk()
    disk.make_directory("t-0")
    config = LogConfig(segment_bytes=segment_bytes)
    log = reopen(disk, config)
    for n in range(200):
        log.append_follower(encode([b"." * (n % 30)], base_offset=n * (gap + 1)))
    actual = content(log)
    again = reopen(disk.after_kill(), config, recovery_point=1)
    assert content(again) == actual
    assert again.end_offset == log.end_offset
    again.close()


@pytest.mark.parametrize("is_leader", [True, False])
def test_batch_with_the_largest_offset_of_its_segment_survives_a_crash(is_leader: bool) -> None:
    """Invariant 84: the indexes can address it, so an append does not begin another segment."""
    last_offset = (1 << 31) - 1
    disk = SimDisk()
    disk.make_directory("t-0")
    log = reopen(disk, LogConfig())
    append(log, [b"first"])
    log.append_follower(encode([b"gap"], base_offset=last_offset - 1))
    if is_leader:
        append(log, [b"last"])
    else:
        log.append_follower(encode([b"last"], base_offset=last_offset))
    assert len(log.segments) == 1
    append(log, [b"next"])
    assert [s.base_offset for s in log.segments] == [0, last_offset + 1]
    actual = content(log)
    assert [offset for offset, _ in actual] == [0, last_offset - 1, last_offset, last_offset + 1]
    assert content(reopen(disk.after_kill(), LogConfig())) == actual


def test_lost_end_of_a_segment_is_no_gap() -> None:
    """Invariant 78: a hole would hide the loss, and a follower would not copy the records again."""
    disk = SimDisk()
    disk.make_directory("t-0")
    log = reopen(disk)
    for n in range(9):
        log.append_follower(encode([b"%d" % n], base_offset=100 * n))
    *_, (position, _) = log.segments[0].scan()
    first_record = content(log)[:1]
    disk.inode(f"{STEM}.log").truncate(position)
    assert content(reopen(disk.after_kill())) == first_record


@pytest.mark.parametrize("clean", [True, False])
def test_empty_segment_of_a_failed_roll_hides_no_record(clean: bool) -> None:
    """Invariant 83: the log went on in the segment before, and rolled at a later offset."""
    disk = SimDisk()
    disk.make_directory("t-0")
    log = reopen(disk)
    for n in range(12):
        append(log, [b"%d" % n])
    actual = content(log)
    assert log.segments[0].base_offset == 0
    assert log.segments[1].base_offset > 1
    log.close()
    empty = f"t-0/{1:020}.log"
    disk.write(empty, b"")
    again = reopen(disk.after_kill(), clean=clean)
    assert content(again) == actual
    assert empty not in disk.files


def test_roll_without_a_descriptor_leaves_no_segment() -> None:
    """Invariants 83 and 90: the file is created, but cannot be opened for the batch."""
    disk = SimDisk()
    disk.make_directory("t-0")
    log = reopen(disk)
    append(log, [b"first"])
    disk.fail_at(
        "open", OSError(errno.EMFILE, "no descriptors"), path=f"{1:020}.log", after=1, times=99
    )
    with pytest.raises(KafkaStorageError):
        append(log, [b"second" * 30])
    disk.mend()
    logs = [entry.name for entry in disk.entries("t-0") if entry.name.endswith(".log")]
    assert logs == [f"{0:020}.log"]
    append(log, [b"third"])
    append(log, [b"fourth" * 30])
    actual = content(log)
    again = reopen(disk.after_kill())
    assert content(again) == actual
    assert [s.base_offset for s in again.segments] == [0, 2]


def cuts(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [r.getMessage() for r in caplog.records if "recovery cut" in r.getMessage()]


@pytest.mark.parametrize(
    ("damage", "reason"),
    [
        (lambda data: data.extend(b"\0" * 99), "no batch"),
        (lambda data: data.extend(encode([b"x"], base_offset=7)[:-1]), "cut off batch"),
        (lambda data: data.extend(encode([b"x"], base_offset=7)[:20]), "cut off batch"),
        (lambda data: data.extend(encode([b"x"], base_offset=7)[:-1] + b"?"), "wrong CRC"),
        (lambda data: data.extend(encode([b"x"], base_offset=6)), "impossible offset"),
    ],
)
def test_recovery_logs_the_records_that_it_cuts(disk: SimDisk, caplog, damage, reason: str) -> None:
    data = disk.inode("t-0/00000000000000000006.log").data
    before = len(data)
    damage(data)
    size = len(data) - before
    reopen(disk, recovery_point=7)
    (line,) = cuts(caplog)
    assert f"partition=t-0 offset=7 bytes={size} segments=0 reason='{reason}'" in line
    assert caplog.records[-1].levelname == "WARNING"
    reopen(disk)
    assert len(cuts(caplog)) == 1, "the second start cuts off no records"


def test_recovery_logs_an_error_for_damaged_synced_records(disk: SimDisk, caplog) -> None:
    """Invariant 80: a bit below the recovery point has flipped; later segments are dropped."""
    disk.inode("t-0/00000000000000000004.log").data[65] ^= 1
    log = reopen(disk, recovery_point=5)
    assert log.end_offset == 4
    (line,) = cuts(caplog)
    assert "offset=4" in line
    assert "segments=1 reason='wrong CRC' recovery_point=5" in line
    assert "synced records are damaged" in line
    assert caplog.records[-1].levelname == "ERROR"


def test_offset_gaps_of_compaction_are_no_damage() -> None:
    disk = SimDisk()
    disk.make_directory("t-0")
    compacted = LogConfig(cleanup_compact=True)
    log = reopen(disk, compacted)
    for n in range(6):
        append(log, [b"%d" % n])
    log.flush_state.flush()
    inode = disk.files[f"{STEM}.log"]
    size = len(inode.data) // 6
    del inode.data[2 * size : 4 * size]
    assert reopen(disk.after_kill(), compacted).end_offset == 6
    assert reopen(disk.after_kill(), LogConfig(), recovery_point=4).end_offset == 6


COMPACTED = LogConfig(segment_bytes=150, cleanup_compact=True)


@pytest.mark.parametrize("kept_bytes", [0, 73])
def test_segment_that_a_power_loss_took_is_no_gap_of_compaction(kept_bytes: int) -> None:
    """Invariant 78: no pass has run, and nothing was synced yet."""
    disk = SimDisk()
    disk.make_directory("t-0")
    log = reopen(disk, COMPACTED)
    for n in range(8):
        append(log, [b"%05d" % n])
    assert [s.base_offset for s in log.segments] == [0, 2, 4, 6]
    for base in (0, 2, 4):
        disk.remove(f"t-0/{base:020}.index")
    disk.inode(f"t-0/{2:020}.log").truncate(kept_bytes)
    offsets = StoredOffsets(high_watermark=1)
    again = open_log(
        disk.after_kill(), "t-0", log.partition, now_ms=TIME_MS, config=COMPACTED, offsets=offsets
    )
    assert again.end_offset == (3 if kept_bytes else 2)


def test_gap_of_compaction_stays_in_a_log_that_was_copied_without_its_indexes() -> None:
    """Invariant 84: backups may leave out what a start can rebuild, and other checkpoints."""
    disk = SimDisk()
    disk.make_directory("t-0")
    log = reopen(disk, COMPACTED)
    for n in range(8):
        append(log, [b"%05d" % n])
    log.flush_state.flush()
    for name in [n for n in disk.files if not n.endswith(".log") or n == f"t-0/{2:020}.log"]:
        disk.remove(name)
    assert reopen(disk.after_kill(), COMPACTED).end_offset == 8


@pytest.mark.parametrize("clean_end", [None, 4])
def test_gap_of_compaction_stays_without_a_recovery_point(clean_end: int | None) -> None:
    """Its checkpoint, or the indexes, may have been lost or removed by an operator."""
    disk = SimDisk()
    disk.make_directory("t-0")
    log = reopen(disk, COMPACTED)
    for n in range(8):
        append(log, [b"%05d" % n])
    log.flush_state.flush()
    for suffix in (".log", ".index", ".timeindex"):
        disk.remove(f"t-0/{2:020}{suffix}")
    if clean_end is not None:
        disk.remove(f"t-0/{0:020}.index")
    offsets = StoredOffsets(clean_end=clean_end)
    again = open_log(
        disk.after_kill(), "t-0", log.partition, now_ms=TIME_MS, config=COMPACTED, offsets=offsets
    )
    assert again.end_offset == 8


def test_log_of_an_old_format_is_refused_and_not_truncated(disk: SimDisk) -> None:
    segment = old_format_segment()
    disk.files[STEM + ".log"].data[:] = segment
    with pytest.raises(OldFormat):
        reopen(disk)
    assert disk.read(STEM + ".log") == segment


def test_damaged_producer_snapshot_is_refused(disk: SimDisk) -> None:
    """Invariant 52."""
    name = next(n for n in disk.files if n.endswith(".snapshot"))
    data = disk.read(name)
    assert len(read_snapshot(data)) == 1
    for end in range(len(data)):
        with pytest.raises(CorruptSnapshot):
            read_snapshot(data[:end])
    for pos in range(len(data)):
        changed = bytearray(data)
        changed[pos] ^= 1
        with pytest.raises(CorruptSnapshot):
            read_snapshot(bytes(changed))


@pytest.mark.parametrize(
    "damaged",
    [b"\n", b"0\n", b"0\n1\n", b"1\n0\n", b"0\n2\nt 0 5\n", b"0\n1\nt 0 5", b"0\n1\nt 0 x\n"],
)
def test_damaged_checkpoint_counts_as_empty(damaged: bytes) -> None:
    """Invariant 82."""
    disk = SimDisk()
    assert run_steps(checkpoints.reading_offsets(disk, "c")) == ({}, None)
    disk.write("c", damaged)
    actual, problem = run_steps(checkpoints.reading_offsets(disk, "c"))
    assert actual == {}
    assert problem is not None


def test_empty_checkpoint_has_no_offsets() -> None:
    """Apache Kafka creates each checkpoint empty; the cleaner's stays so until a compaction."""
    disk = SimDisk()
    disk.write("c", b"")
    assert run_steps(checkpoints.reading_offsets(disk, "c")) == ({}, None)


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        (b"version=1\ncluster.id=c\n", "node.id"),
        (b"version=1\nnode.id=1\n", "cluster.id"),
        (b"version=7\nnode.id=1\ncluster.id=c\n", "version 7"),
        (b"", "version"),
        (b"version=1\nnode.id=x\ncluster.id=c\n", "x"),
        (b"version=1\nnode.id=1\ncluster.id=c\ndirectory.id=short\n", "uuid"),
    ],
)
def test_damaged_meta_properties_are_refused(text: bytes, problem: str) -> None:
    """Invariant 93: the error names the property that is missing or wrong."""
    with pytest.raises(checkpoints.CorruptFile, match=problem):
        checkpoints.parse_meta_properties(text)


def test_dump_prints_every_kind_of_file(disk: SimDisk, tmp_path) -> None:
    for name, data in files(disk).items():
        (tmp_path / name.rpartition("/")[2]).write_bytes(data)
    lines = {p.name: list(dump(str(p), records=True)) for p in tmp_path.iterdir()}
    first = lines["0" * 20 + ".log"]
    assert first[1].startswith("offsets=0..0 position=0 size=")
    assert first[2] == f"  offset=0 time={TIME_MS} key=None value=b'0'"
    assert lines["0" * 19 + "2.snapshot"][1].startswith("producer=1:0 last-sequence=1")
    assert lines["0" * 20 + ".index"][1] == "offset=1 position=69"
    assert lines["leader-epoch-checkpoint"][1:] == ["0", "3", "0 0", "1 3", "2 6"]
    torn = tmp_path / "torn.log"
    torn.write_bytes(disk.read(STEM + ".log")[:-5])
    assert list(dump(str(torn)))[-1] == "trailing=64 bytes that are not a whole batch"


def test_dump_rejects_files_of_other_kinds(tmp_path: Path) -> None:
    """Its garbage could change the terminal; a copy of a log may have lost its suffix."""
    file = tmp_path / "file"
    for data in (encode([b"v"]), b"\x89PNG\r\n\x1a\n", b"\xff", b"\0"):
        file.write_bytes(data)
        with pytest.raises(ValueError, match="neither text nor named as a file of a log"):
            list(dump(str(file)))
    file.write_text("tab\there\nü\n")
    assert list(dump(str(file))) == [str(file), "tab\there", "ü"]


def test_truncation_is_durable_after_the_next_flush_even_if_a_segment_follows() -> None:
    """Invariant 78: the flush would otherwise skip the truncated segment."""
    disk = SimDisk()
    disk.make_directory("t-0")
    config = LogConfig(segment_bytes=600)
    log = open_log(disk, "t-0", TopicPartition("t", 0), now_ms=TIME_MS, config=config)
    append(log, [b"kept"])
    append(log, [b"cut off"])
    log.flush_state.flush()
    log.truncate_to(1)
    append(log, [b"." * 700])
    log.flush_state.flush()
    assert len(log.segments) == 2
    disk.sync_directory()
    for seed in range(20):
        after = disk.power_loss(Random(seed))
        again = open_log(
            after,
            "t-0",
            TopicPartition("t", 0),
            now_ms=TIME_MS,
            config=config,
            offsets=StoredOffsets(recovery_point=log.flush_state.recovery_point),
        )
        assert content(again) == [(0, b"kept"), (1, b"." * 700)]


def test_truncation_before_a_kill_is_durable_after_the_next_flush() -> None:
    """Invariant 78: the process died between the truncation and its sync."""
    disk, at = SimDisk(), TopicPartition("t", 0)
    disk.make_directory("t-0")
    log = open_log(disk, "t-0", at, now_ms=TIME_MS)
    append(log, [b"cut off"])
    log.flush_state.flush()
    log.truncate_to(0)
    disk = disk.after_kill()
    log = open_log(disk, "t-0", at, now_ms=TIME_MS, offsets=StoredOffsets(recovery_point=0))
    log.flush_state.flush()
    disk.sync_directory()
    for seed in range(20):
        again = open_log(disk.power_loss(Random(seed)), "t-0", at, now_ms=TIME_MS)
        assert content(again) == []


@pytest.mark.parametrize("has_junk", [False, True])
def test_cut_that_a_power_loss_has_undone_is_repeated_where_a_segment_follows(
    has_junk: bool, caplog
) -> None:
    """Invariant 78: the next segment's name can be on the disk though the cut is not."""
    disk = SimDisk()
    disk.make_directory("t-0")
    config = attrs.evolve(CONFIG, segment_bytes=2_000)
    log = reopen(disk, config)
    for n in range(7):
        append(log, [b"%d" % n], epoch=n // 3, producer_id=1, base_sequence=n)
    before_the_cut = files(disk)[STEM + ".log"]
    log.truncate_to(3)
    log.roll(TIME_MS)
    after_the_cut = disk.read(STEM + ".log")
    junk = bytes(len(before_the_cut) - len(after_the_cut))
    disk.write(STEM + ".log", after_the_cut + junk if has_junk else before_the_cut)
    again = reopen(disk, config, recovery_point=3)
    assert content(again) == [(n, b"%d" % n) for n in range(3)]
    assert disk.read(STEM + ".log") == after_the_cut
    assert again.epochs.entries() == [(0, 0)]
    assert "recovery repeats a cut" in caplog.text
    append(again, [b"new"], epoch=5)
    assert content(again)[2:] == [(2, b"2"), (3, b"new")]


@pytest.mark.parametrize("clean", [True, False])
@pytest.mark.parametrize("suffix", [".index", ".timeindex"])
def test_index_emptied_by_a_crash_is_rebuilt(suffix: str, clean: bool) -> None:
    """Invariant 79: also below the recovery point, where a start reads no batches."""
    disk = SimDisk()
    disk.make_directory("t-0")
    config = attrs.evolve(CONFIG, segment_bytes=500)
    log = reopen(disk, config)
    for n in range(20):
        append(log, [b"%d" % n], timestamp_ms=TIME_MS + n)
    log.close()
    before = files(disk)
    disk.inode(STEM + suffix).data.clear()
    log = reopen(disk, config, clean=clean, recovery_point=20)
    assert disk.read(STEM + suffix) == before[STEM + suffix]
    assert log.segments[0].largest_timestamp() == TIME_MS + 6


def test_index_that_was_always_empty_is_not_rebuilt() -> None:
    disk = SimDisk()
    disk.make_directory("t-0")
    config = attrs.evolve(CONFIG, segment_bytes=70)
    log = reopen(disk, config)
    for n in range(4):
        append(log, [b"%d" % n], timestamp_ms=-1)
    log.close()
    calls = len(disk.calls)
    reopen(disk, config, recovery_point=4)
    assert not [call for call in disk.calls[calls:] if call == ("write", STEM + ".index")]
