"""A scrub and ``kwire check-log`` name the wrong entries of each index file, and only these."""

from collections.abc import Callable
from pathlib import Path
from random import Random

import attrs
import pytest

from kwire.log import epochs
from kwire.log.config import LogConfig
from kwire.log.disk import RealDisk
from kwire.log.formats import names, offset_index, time_index, txn_index
from kwire.log.inspection.check import NO_EPOCHS, Check
from kwire.log.inspection.index_check import WrongEntry
from kwire.log.partition_log import PartitionLog, create
from kwire.log.scrub.job import SegmentJob
from kwire.log.scrub.segment_check import check_segment
from kwire.types import TopicPartition
from simulation.disk import SimDisk
from tests.support.log.batches import TIME_MS, old_format_segment
from tests.support.log.scrubbed import fill_with_transactions

ENTRY = {
    names.INDEX: offset_index.ENTRY_SIZE,
    names.TIME_INDEX: time_index.ENTRY_SIZE,
    names.TXN_INDEX: txn_index.ENTRY_SIZE,
}
SUFFIXES = list(ENTRY)
Change = Callable[[bytes, int], bytes]
"""Changes the content of a file; the number is the size of an entry."""


def make_log(interval: int = 0, count: int = 60) -> PartitionLog:
    """Return a log of two closed segments and an active one, with transactions in each of them."""
    disk = SimDisk()
    disk.make_directory("t-0")
    config = LogConfig(index_interval_bytes=interval)
    log = create(disk, "t-0", TopicPartition("t", 0), now_ms=TIME_MS, config=config)
    fill_with_transactions(log, count)
    log.flush_state.flush()
    log.high_watermark = log.end_offset
    return log


def job_of(log: PartitionLog, number: int) -> SegmentJob:
    segment = log.segments[number]
    return SegmentJob(
        directory="t-0",
        base_offset=segment.base_offset,
        end_offset=log.segments[number + 1].base_offset,
        size=segment.size,
        epochs=tuple(log.epochs.entries()),
        bytes_per_second=1.0,
        index_interval=log.config.index_interval_bytes,
    )


def scrub(log: PartitionLog, number: int = 1) -> tuple[WrongEntry, ...]:
    """Return what a scrub finds in the indexes of a segment."""
    return check_segment(log.disk, job_of(log, number), lambda size: None).wrong


def change(log: PartitionLog, suffix: str, data: bytes, number: int = 1) -> None:
    log.disk.write(log.segments[number].files.path(suffix), data)


def content(log: PartitionLog, suffix: str, number: int = 1) -> bytes:
    return log.disk.read(log.segments[number].files.path(suffix))


def check_log(log: PartitionLog, target: Path) -> list[tuple[str, int | None, str]]:
    """Return the findings of check-log in a copy: suffix, position and reason."""
    target.mkdir()
    assert isinstance(log.disk, SimDisk)
    for entry in log.disk.entries("t-0"):
        (target / entry.name).write_bytes(log.disk.read(f"t-0/{entry.name}"))
    return [(each.path.suffix, each.position, each.reason) for each in Check().run(target)]


def test_intact_indexes_are_right(tmp_path: Path) -> None:
    for interval in (0, 200, 4096):
        log = make_log(interval)
        assert content(log, names.TXN_INDEX)
        assert not (*scrub(log, 0), *scrub(log, 1))
        assert not check_log(log, tmp_path / str(interval))


@pytest.mark.parametrize("suffix", [names.INDEX, names.TIME_INDEX])
def test_each_flipped_bit_is_found_at_its_entry(suffix: str) -> None:
    """Invariant 79: each batch has an entry, and each timestamp is unique."""
    log = make_log(count=30)
    data, size = content(log, suffix), ENTRY[suffix]
    assert len(data) > 10 * size
    for at in range(len(data)):
        for bit in range(8):
            changed = bytearray(data)
            changed[at] ^= 1 << bit
            change(log, suffix, bytes(changed))
            (wrong,) = scrub(log)
            assert wrong.suffix == suffix
            # A smaller value may also show that the entry before it is out of order.
            assert at // size * size - wrong.position in (0, size, -size), (at, bit, wrong)


def test_flipped_bits_of_aborted_transactions_are_found_unless_no_reader_notices() -> None:
    """Invariant 19: only first offsets between the data, and lower stable offsets, may pass."""
    log = make_log()
    data, size = content(log, names.TXN_INDEX), ENTRY[names.TXN_INDEX]
    passed = 0
    for at in range(len(data)):
        for bit in range(8):
            changed = bytearray(data)
            changed[at] ^= 1 << bit
            change(log, names.TXN_INDEX, bytes(changed))
            findings = scrub(log)
            passed += not findings
            assert findings or at % size in (17, 33), (at, bit)
            assert all(each.suffix == names.TXN_INDEX for each in findings)
    assert 20 * passed < 8 * len(data)


def zero(data: bytes, size: int) -> bytes:
    return bytes(len(data))


def garbage(data: bytes, size: int) -> bytes:
    return Random(3).randbytes(len(data))


def empty(data: bytes, size: int) -> bytes:
    return b""


def tear(data: bytes, size: int) -> bytes:
    return data[: -size // 2]


def without_end(data: bytes, size: int) -> bytes:
    return data[:-size]


def with_zeros(data: bytes, size: int) -> bytes:
    return data + bytes(10 * size)


def reverse(data: bytes, size: int) -> bytes:
    return b"".join(data[at : at + size] for at in range(len(data) - size, -1, -size))


def repeat(data: bytes, size: int) -> bytes:
    return data[:size] + data


def longer(data: bytes, size: int) -> bytes:
    """Return the entries and one more, with larger values in all fields but the first two bytes."""
    last = data[-size:]
    return data + last[:2] + bytes(min(byte + 1, 255) for byte in last[2:])


CHANGES = [zero, garbage, empty, tear, without_end, with_zeros, reverse, repeat, longer]
NOT_IN_CHECK_LOG = {
    (names.INDEX, empty),  # It does not know the topic's interval.
    *((suffix, with_zeros) for suffix in SUFFIXES),  # Active segments of Kafka have them.
    *((suffix, zero) for suffix in SUFFIXES if suffix == names.INDEX),
}


@pytest.mark.parametrize("damage", CHANGES)
@pytest.mark.parametrize("suffix", SUFFIXES)
def test_damaged_file_is_found(suffix: str, damage: Change, tmp_path: Path) -> None:
    """Invariants 19 and 79."""
    log = make_log(200)
    change(log, suffix, damage(content(log, suffix), ENTRY[suffix]))
    if (suffix, damage) == (names.INDEX, without_end):
        assert not scrub(log), "lookups only read more"
        return
    (wrong,) = scrub(log)
    assert wrong.suffix == suffix
    assert wrong.reason
    findings = check_log(log, tmp_path / "p")
    if (suffix, damage) in NOT_IN_CHECK_LOG:
        assert not findings
    else:
        assert {each[0] for each in findings} == {suffix}


@pytest.mark.parametrize("suffix", SUFFIXES)
def test_missing_file_is_found_by_a_scrub(suffix: str) -> None:
    log = make_log(200)
    log.disk.remove(log.segments[1].files.path(suffix))
    (wrong,) = scrub(log)
    assert wrong.suffix == suffix


@pytest.mark.parametrize("suffix", SUFFIXES)
def test_file_of_another_segment_is_wrong(suffix: str, tmp_path: Path) -> None:
    log = make_log(200)
    change(log, suffix, content(log, suffix, 0))
    (wrong,) = scrub(log)
    assert wrong.suffix == suffix
    assert {each[0] for each in check_log(log, tmp_path / "p")} == {suffix}


def test_check_log_names_each_wrong_entry(tmp_path: Path) -> None:
    log = make_log(200)
    data = bytearray(content(log, names.INDEX))
    for number in (1, 3):
        data[8 * number + 7] ^= 1
    change(log, names.INDEX, bytes(data))
    findings = check_log(log, tmp_path / "p")
    assert [(suffix, position) for suffix, position, _ in findings] == [
        (names.INDEX, 8),
        (names.INDEX, 24),
    ]
    assert all("no batch begins at position" in reason for *_, reason in findings)


def test_one_large_entry_does_not_condemn_those_after_it(tmp_path: Path) -> None:
    log = make_log(200)
    data = bytearray(content(log, names.TIME_INDEX))
    data[24] ^= 64
    change(log, names.TIME_INDEX, bytes(data))
    assert [each[:2] for each in check_log(log, tmp_path / "p")] == [(names.TIME_INDEX, 24)]


def test_damaged_batch_acquits_the_indexes() -> None:
    """Its own header may be wrong; the next pass judges them, once the batch is restored."""
    log = make_log(200)
    assert isinstance(log.disk, SimDisk)
    change(log, names.TIME_INDEX, b"")
    log.disk.rot(log.segments[1].file.path, 70)
    report = check_segment(log.disk, job_of(log, 1), lambda size: None)
    assert len(report.damage) == 1
    assert report.wrong == ()


def test_segments_of_an_old_format_are_not_judged() -> None:
    log, data = make_log(200), old_format_segment()
    log.segments[0].file.write((data,), 0)
    job = attrs.evolve(job_of(log, 0), size=len(data), epochs=())
    assert check_segment(log.disk, job, lambda size: None).wrong == ()


@pytest.mark.parametrize("name", ["clean", "killed", "three", "kafka-4.0-follower"])
def test_indexes_of_kafka_are_right(name: str, golden_directory: Callable[[str], Path]) -> None:
    checked, disk = 0, RealDisk(str(golden_directory(name)))
    for directory in sorted({path.parent for path in Path(disk.root).glob("**/*.log")}):
        stored = directory / names.EPOCHS_FILE
        text = stored.read_bytes() if stored.exists() else b""
        entries = epochs.from_text(text).entries() if text not in NO_EPOCHS else []
        bases = sorted(int(path.stem) for path in directory.glob("*.log"))
        for base, end_offset in zip(bases, [*bases[1:], None], strict=True):
            relative = str(directory.relative_to(disk.root))
            file = directory / f"{names.stem(base)}{names.LOG}"
            size = file.stat().st_size
            if end_offset is None and name != "kafka-4.0-follower":
                continue  # The active segment.
            job = SegmentJob(
                directory=relative,
                base_offset=base,
                end_offset=1 << 40 if end_offset is None else end_offset,
                size=size,
                epochs=tuple(entries),
                bytes_per_second=1.0,
                index_interval=1 << 20,
            )
            report = check_segment(disk, job, lambda size: None)
            assert (report.damage, report.wrong) == ((), ()), file
            checked += 1
    assert checked == {"clean": 19, "killed": 19, "three": 12, "kafka-4.0-follower": 1}[name]
