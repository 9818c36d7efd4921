"""The aborted transactions of a range, and the reads that a search for them makes."""

import random
import sys
from collections.abc import Callable, Iterable
from types import FrameType
from typing import TypeAlias

import pytest

from kwire.log.aborted_transactions import find_aborted, read_committed
from kwire.log.cold_lookups import WouldWait
from kwire.log.config import LogConfig
from kwire.log.formats import names
from kwire.log.formats.txn_index import (
    LISTED_MAX,
    AbortedTxn,
    MemoryEntries,
    PackedEntries,
    entries,
)
from kwire.log.partition_log import PartitionLog, create
from kwire.log.recovery import StoredOffsets, open_log
from kwire.records.control import end_txn_marker
from kwire.records.header import headers, parse
from kwire.types import TopicPartition
from simulation.disk import SimDisk
from tests.support.log.batches import TIME_MS, append, encode

CONFIG = LogConfig(segment_bytes=900, index_interval_bytes=100)
T = TopicPartition("t", 0)
TraceFunction: TypeAlias = Callable[[FrameType, str, object], "TraceFunction | None"]


def end(log: PartitionLog, producer: int, *, commit: bool) -> int:
    """Append the producer's marker; return its offset."""
    data = end_txn_marker(
        commit=commit,
        coordinator_epoch=0,
        producer_id=producer,
        producer_epoch=0,
        timestamp_ms=TIME_MS,
    )
    return log.append_leader(data, parse(data), 0, TIME_MS, from_client=False).base_offset


def make_log(seed: int, count: int = 150) -> tuple[SimDisk, PartitionLog, list[tuple[int, int]]]:
    """Return a log of interleaved transactions and the offsets of each aborted one."""
    draw = random.Random(seed)
    disk = SimDisk()
    disk.make_directory("t-0")
    log = create(disk, "t-0", T, now_ms=TIME_MS, config=CONFIG)
    sequences = dict.fromkeys(range(6), 0)
    first_offsets: dict[int, int] = {}
    aborted: list[tuple[int, int]] = []
    for _ in range(count):
        producer = draw.randrange(6)
        if producer in first_offsets and draw.random() < 0.4:
            commit = draw.random() < 0.5
            last_offset = end(log, producer, commit=commit)
            first_offset = first_offsets.pop(producer)
            if not commit:
                aborted.append((first_offset, last_offset))
            continue
        values = [b"v"] * draw.randint(1, 3)
        done = append(
            log,
            values,
            producer_id=producer,
            producer_epoch=0,
            base_sequence=sequences[producer],
            transactional=True,
        )
        sequences[producer] += len(values)
        first_offsets.setdefault(producer, done.base_offset)
    log.flush_state.flush()
    return disk, log, aborted


def first_offsets_in(entries: list[AbortedTxn]) -> list[int]:
    return [entry.first_offset for entry in entries]


@pytest.mark.parametrize("is_reopened", [False, True])
@pytest.mark.parametrize("seed", range(8))
def test_aborted_transactions_of_each_range_are_those_that_touch_it(
    seed: int, is_reopened: bool
) -> None:
    """Invariants 19 and 64."""
    disk, log, aborted = make_log(seed)
    assert len(log.segments) > 4
    if is_reopened:
        log.close()
        stored = StoredOffsets(clean=True, recovery_point=log.end_offset)
        log = open_log(disk, "t-0", T, now_ms=TIME_MS, config=CONFIG, offsets=stored)
    for start in range(0, log.end_offset, 7):
        for size in (1, 10, 60, log.end_offset):
            stop = min(start + size, log.end_offset)
            expected = sorted(first for first, last in aborted if last >= start and first < stop)
            entries = find_aborted(log.segments, start, stop)
            assert first_offsets_in(entries) == expected


@pytest.mark.parametrize("seed", range(4))
def test_end_of_a_returned_range_is_close_above_its_last_batch(seed: int) -> None:
    """Invariant 19: Fetch lists the transactions below this end."""
    _, log, _ = make_log(seed)
    for offset in range(log.end_offset):
        for max_bytes in (1, 150, 400):
            with log.read(offset, max_bytes, end_offset=log.end_offset) as region:
                whole = list(headers(region.read()))
                end_offset = min(log.segments.end_of_region(offset, region), log.end_offset)
            assert whole[-1][1].next_offset <= end_offset
            first = log.segments[log.segments.index_of(offset)]
            following = [s.base_offset for s in log.segments if s.base_offset > first.base_offset]
            limit = whole[-1][1].next_offset + 12  # Every second batch has an index entry.
            assert end_offset <= max(limit, following[0] if following else limit)


def test_index_of_a_closed_segment_is_read_once() -> None:
    """A read_committed consumer that catches up opens no file of aborted transactions again."""
    disk, log, _ = make_log(1)
    for start in range(log.end_offset):
        find_aborted(log.segments, start, log.end_offset)
    reads = [path for kind, path in disk.calls if kind == "read" and path.endswith(names.TXN_INDEX)]
    assert len(reads) == len(set(reads))
    assert reads


def test_segments_without_aborts_are_not_looked_at_after_a_restart() -> None:
    disk = SimDisk()
    disk.make_directory("t-0")
    log = create(disk, "t-0", T, now_ms=TIME_MS, config=CONFIG)
    for number in range(60):
        append(log, [b"%d" % number])
    log.close()
    stored = StoredOffsets(clean=True, recovery_point=log.end_offset)
    log = open_log(disk, "t-0", T, now_ms=TIME_MS, config=CONFIG, offsets=stored)
    calls = len(disk.calls)
    assert find_aborted(log.segments, 0, log.end_offset) == []
    assert disk.calls[calls:] == []


def test_aborted_transactions_follow_a_truncation_into_a_closed_segment() -> None:
    """Invariant 64: what was read of the file before is not used after the cut."""
    _, log, aborted = make_log(2)
    find_aborted(log.segments, 0, log.end_offset)
    middle = log.segments[2].base_offset + 3
    log.truncate_to(middle)
    expected = sorted(first for first, last in aborted if last < log.end_offset)
    entries = find_aborted(log.segments, 0, log.end_offset)
    assert first_offsets_in(entries) == expected


@pytest.mark.parametrize("has_later", [False, True])
@pytest.mark.parametrize("is_searched", [False, True])
@pytest.mark.parametrize("count", [0, 1, 150, 299])
def test_cut_into_a_closed_segment_keeps_the_transactions_before_it(
    count: int, is_searched: bool, has_later: bool
) -> None:
    """Invariant 64: also in the file that the next stop writes."""
    log = many_aborted(300, is_closed=True, is_held=False)
    if is_searched:
        find_aborted(log.segments, 0, log.end_offset)
    log.truncate_to(2 * count + 1)
    expected = list(range(0, 2 * count, 2))
    assert first_offsets_in(find_aborted(log.segments, 0, log.end_offset)) == expected
    if has_later:
        end(log, 2, commit=False)
        expected.append(2 * count)
    append(log, [b"after"])
    assert first_offsets_in(find_aborted(log.segments, 0, log.end_offset)) == expected
    log.close()
    stored = StoredOffsets(clean=True, recovery_point=log.end_offset)
    log = open_log(log.disk, "t-0", T, now_ms=TIME_MS, offsets=stored)
    append(log, [b"committed %d" % number for number in range(600)])
    assert first_offsets_in(find_aborted(log.segments, 0, log.end_offset)) == expected


def lines_run(call: Callable[[], object]) -> int:
    """Return how many lines of Python a call runs, a measure of work that no load changes."""
    count = 0

    def trace(frame: FrameType, event: str, argument: object) -> TraceFunction:
        nonlocal count
        count += event == "line"
        return trace

    before = sys.gettrace()
    sys.settrace(trace)
    try:
        call()
    finally:
        sys.settrace(before)
    return count


def many_aborted(count: int, *, is_closed: bool, is_held: bool) -> PartitionLog:
    """Return a log with aborted transactions, in one segment or in one before the active one.

    ``is_held``: a transaction was open all the while and held the last stable offset back.
    """
    disk = SimDisk()
    disk.make_directory("t-0")
    log = create(disk, "t-0", T, now_ms=TIME_MS)
    first = {"producer_epoch": 0, "base_sequence": 0, "transactional": True}
    if is_held:
        append(log, [b"held"], producer_id=1, **first)
    for number in range(count):
        append(log, [b"v"], producer_id=2, **{**first, "base_sequence": number})
        end(log, 2, commit=False)
    if is_held:
        end(log, 1, commit=True)
    if is_closed:
        log.roll(TIME_MS)
        append(log, [b"after"])
        log.flush_state.flush()
    return log


@pytest.mark.parametrize("is_held", [False, True])
@pytest.mark.parametrize("is_closed", [False, True])
def test_work_of_a_fetch_does_not_grow_with_the_aborted_transactions_behind_it(
    is_closed: bool, is_held: bool
) -> None:
    """Invariant 19: a read_committed consumer that catches up pays for what it gets."""
    work = []
    for count in (300, 3000):
        log = many_aborted(count, is_closed=is_closed, is_held=is_held)

        def fetch(log: PartitionLog = log) -> None:
            region, aborted = read_committed(log, 11, 1000, end_offset=log.end_offset)
            region.close()
            assert 2 <= len(aborted) <= 80
            assert all(entry.last_offset >= 11 for entry in aborted)

        fetch()
        work.append(lines_run(fetch))
    assert work[1] < 1.5 * work[0], work


@pytest.mark.parametrize("is_held", [False, True])
def test_read_ends_where_its_list_of_aborted_transactions_is_full(is_held: bool) -> None:
    """Invariant 19: the reads together list each transaction, and all of them have records."""
    log = many_aborted(2 * LISTED_MAX + 5, is_closed=True, is_held=is_held)
    offset, listed, lengths = 0, set[int](), []
    while offset < log.segments.active.base_offset:
        region, aborted = read_committed(log, offset, 50 << 20, end_offset=log.end_offset)
        with region:
            (*_, (_, last)) = headers(region.read())
        assert all(entry.last_offset >= offset for entry in aborted)
        assert all(entry.first_offset <= last.last_offset for entry in aborted)
        offset = last.next_offset
        listed.update(entry.first_offset for entry in aborted)
        lengths.append(len(aborted))
    assert len(listed) == 2 * LISTED_MAX + 5
    assert all(LISTED_MAX <= length <= LISTED_MAX + 1 for length in lengths[:2])


def test_transactions_that_all_overlap_are_not_listed_by_every_read() -> None:
    """Invariant 10: shortened reads would list the square of their number."""
    count = 5 * LISTED_MAX
    disk = SimDisk()
    disk.make_directory("t-0")
    log = create(disk, "t-0", T, now_ms=TIME_MS)
    first = {"producer_epoch": 0, "base_sequence": 0, "transactional": True}
    for producer in range(count):
        append(log, [b"v"], producer_id=producer, **first)
    for producer in range(count):
        end(log, producer, commit=False)
    offset, listed = 0, list[AbortedTxn]()
    while offset < log.end_offset:
        region, aborted = read_committed(log, offset, 50 << 20, end_offset=log.end_offset)
        with region:
            (*_, (_, last)) = headers(region.read())
        offset = last.next_offset
        listed += aborted
    assert {entry.producer_id for entry in listed} == set(range(count))
    assert len(listed) <= 2 * count


def test_transactions_whose_batches_are_all_removed_shorten_no_read() -> None:
    """A client would repeat a fetch without records forever."""
    disk = SimDisk()
    disk.make_directory("t-0")
    log = create(disk, "t-0", T, now_ms=TIME_MS)
    for base_offset in (0, 5 * LISTED_MAX):
        log.append_follower(encode([b"v"], base_offset=base_offset))
    removed = [AbortedTxn(2, offset, offset, offset) for offset in range(1, 2 * LISTED_MAX)]
    log.segments.active.indexes.aborted.replace(removed)
    region, aborted = read_committed(log, 1, 50 << 20, end_offset=log.end_offset)
    with region:
        assert [header.base_offset for _, header in headers(region.read())] == [5 * LISTED_MAX]
    assert aborted == removed


def counting(
    call: Callable[..., Iterable[int]], calls: list[object]
) -> Callable[..., Iterable[int]]:
    def count(*arguments: object) -> Iterable[int]:
        calls.append(arguments)
        return call(*arguments)

    return count


@pytest.mark.parametrize("is_closed", [False, True])
def test_first_fetch_of_many_aborted_transactions_is_prepared_in_a_thread(
    is_closed: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Invariant 91: to look at all of them once takes the event loop several milliseconds."""
    log = many_aborted(3000, is_closed=is_closed, is_held=True)

    def fetch(*, wait: bool) -> list[AbortedTxn]:
        region, aborted = read_committed(log, 11, 1000, end_offset=log.end_offset, wait=wait)
        region.close()
        return aborted

    if is_closed:
        log.segments[0].indexes.drop()
        with pytest.raises(WouldWait) as cold:
            fetch(wait=False)
        cold.value.job()
    with monkeypatch.context() as loop:
        calls: list[object] = []
        for entries in (MemoryEntries, PackedEntries):
            loop.setattr(entries, "first_offsets", counting(entries.first_offsets, calls))
        aborted = fetch(wait=False)
        assert len(calls) <= 1, "the last block may not be full"
    assert aborted[:10] == find_aborted(log.segments, 11, 50)[:10]


def test_aborted_transactions_that_a_thread_read_before_a_cut_are_not_used() -> None:
    """Invariant 64."""
    log = many_aborted(3000, is_closed=True, is_held=True)
    log.segments[0].indexes.drop()
    with pytest.raises(WouldWait) as cold:
        read_committed(log, 11, 1000, end_offset=log.end_offset, wait=False)
    cold.value.job()
    log.truncate_to(5000)
    log.roll(TIME_MS)
    append(log, [b"after"])
    log.flush_state.flush()
    entries = find_aborted(log.segments, 0, log.end_offset)
    assert max(entry.last_offset for entry in entries) < 5000


@pytest.mark.parametrize("is_searched", ["never", "before", "between", "by a thread"])
@pytest.mark.parametrize("is_stopped", [False, True])
def test_aborts_after_a_restart_are_put_behind_those_of_the_file(
    is_searched: str, is_stopped: bool
) -> None:
    """Invariants 19 and 64; the file may have 10 MB, so the append that adds one reads none."""
    disk = SimDisk()
    disk.make_directory("t-0")
    config = LogConfig()
    log = create(disk, "t-0", T, now_ms=TIME_MS, config=config)

    def abort(producer: int) -> AbortedTxn:
        fields = {"producer_id": producer, "producer_epoch": 0, "transactional": True}
        first = append(log, [b"v"], base_sequence=0, **fields).base_offset
        last = end(log, producer, commit=False)
        return AbortedTxn(producer, first, last, log.end_offset)

    aborted = [abort(producer) for producer in range(5)]
    log.flush_state.flush()
    log.close()
    disk = disk.after_kill()
    offsets = StoredOffsets(clean=True, recovery_point=log.end_offset)
    log = open_log(disk, "t-0", T, now_ms=TIME_MS, config=config, offsets=offsets)
    if is_searched == "before":
        assert find_aborted(log.segments, 0, log.end_offset) == aborted
    load = log.segments.active.indexes.aborted.load_in_thread()
    calls = len(disk.calls)
    aborted.append(abort(7))
    assert not [path for kind, path in disk.calls[calls:] if kind == "read" and "txn" in path]
    if is_searched == "by a thread":
        assert load is not None
        load.run()
    if is_searched != "never":
        assert find_aborted(log.segments, 0, log.end_offset) == aborted
    aborted.append(abort(8))
    if is_stopped:
        log.close()
    else:
        log.roll(TIME_MS)
        log.flush_state.flush()
    assert entries(disk.read("t-0/" + names.stem(0) + names.TXN_INDEX)) == aborted
    assert find_aborted(log.segments, 0, log.end_offset) == aborted
