"""Opens a log that is on disk, and recovers it if it was not closed cleanly.

First comes a plan from the names in the directory (:mod:`kwire.log.formats.file_plan`), then its
execution. After a clean shutdown only the last batches are read. Without the clean-shutdown marker
every segment that ends above the recovery point is read batch by batch: the log is cut at the first
batch that is torn, has a wrong CRC or does not continue the log; later segments are removed; and
indexes, producer snapshots and leader epochs are rebuilt from the remaining batches.
:func:`opening` is a generator that yields between slices of about a millisecond, so that its caller
can run other work. A crash may follow any step, so every step can be repeated.
"""

import logging
import zlib
from collections.abc import Generator, Iterable, Iterator, Sequence
from functools import partial
from typing import Final

import attrs

from kwire.errors import CorruptMessage
from kwire.log.cold_lookups import preparation, run_all
from kwire.log.config import DEFAULTS, LogConfig
from kwire.log.disk import Disk, Entry
from kwire.log.formats import names, offset_index, time_index, txn_index
from kwire.log.formats.file_plan import Plan, planning
from kwire.log.log_segments import following_base
from kwire.log.partition_log import PartitionLog, create, remove_files
from kwire.log.segments import warming
from kwire.log.segments.segment import Segment, WrongIndex, plan_cut, take_largest_timestamp
from kwire.records.header import (
    HEADER,
    HEADER_SIZE,
    LENGTH_END,
    NO_PRODUCER,
    BatchHeader,
    crc_ok,
    parse,
)
from kwire.types import TopicPartition

logger = logging.getLogger(__name__)

MAX_OFFSET: Final = 1 << 62
SLICE_BATCHES: Final = 100
"""The number of batches whose headers are read between two yields."""
SLICE_ABORTED: Final = 1000
"""The number of aborted transactions that are checked between two yields."""
SLICE_BYTES: Final = 64 * 1024
"""The number of bytes read between two yields; about a millisecond of small batches."""


class OldFormat(ValueError):
    """A segment holds messages from before Kafka 0.11, which are neither removed nor served."""


@attrs.frozen(kw_only=True, eq=False, repr=False)
class StoredOffsets:
    """A log's offsets in the log directory's checkpoints; any of them may be stale or wrong."""

    clean: bool = False
    recovery_point: int = 0
    log_start: int = 0
    high_watermark: int = 0
    clean_end: int | None = None
    synced_end: int = 0
    """Damage below this offset is not due to a crash: it raises CorruptMessage instead of being cut
    off.
    """


NO_OFFSETS: Final = StoredOffsets()
"""The offsets of a log that is in no checkpoint."""


def open_log(
    disk: Disk,
    directory: str,
    partition: TopicPartition,
    *,
    now_ms: int,
    config: LogConfig = DEFAULTS,
    offsets: StoredOffsets = NO_OFFSETS,
) -> PartitionLog:
    """Open a log, or create it in an empty directory, without pausing."""
    steps = opening(
        disk,
        directory,
        partition,
        now_ms=now_ms,
        config=config,
        offsets=offsets,
        entries=disk.listing(directory),
    )
    while True:
        try:
            next(steps)
        except StopIteration as done:
            log: PartitionLog = done.value
            return log


def opening(
    disk: Disk,
    directory: str,
    partition: TopicPartition,
    *,
    now_ms: int,
    config: LogConfig,
    offsets: StoredOffsets,
    entries: Iterable[Entry],
) -> Generator[None, None, PartitionLog]:
    """Open a log in slices; return the log.

    ``entries``: the content of its directory.
    """
    files = yield from planning(entries)
    yield
    if files.replace:
        yield from _swap_in(disk, directory, files)
        files = yield from planning(disk.listing(directory))
    for name in files.remove:
        disk.remove(f"{directory}/{name}")
        yield
    if not files.segments:
        return _create_empty(disk, directory, partition, now_ms, config, offsets, files)
    log = PartitionLog(disk, directory, partition, config)
    cut_off: list[str] = []
    log.on_removed = lambda log, segments, paths: cut_off.extend(paths)
    log.snapshots.offsets = files.snapshots
    log.clean_state.clean_end = offsets.clean_end
    for base_offset, size, modified_ms in files.segments:
        segment = Segment(disk, directory, base_offset, size, config)
        segment.created_ms = segment.modified_ms = modified_ms
        segment.indexes.aborted.has_no_file = segment.files.name(names.TXN_INDEX) not in files.sizes
        log.segments.add(segment)
        yield
    first_offset = log.segments[0].base_offset
    log.log_start = max(offsets.log_start, first_offset)
    log.flush_state.indexed_end = MAX_OFFSET
    has_removed = not offsets.clean and offsets.log_start >= first_offset > 0
    log.flush_state.unsynced.has_removed = has_removed
    log.epochs.on_change = _defer_write
    has_epochs = log.epochs_file.load()
    stored_entries = set(log.epochs.entries())
    end_offset = None
    if offsets.clean:
        end_offset = yield from _clean_end(log.segments.active, files.sizes)
    if end_offset is not None:
        yield from _open_clean(log, files, offsets, end_offset, has_epochs, now_ms)
    else:
        yield from _recover(log, files, offsets, now_ms)
    for name in files.unused:
        disk.remove(f"{directory}/{name}")
        yield
    log.flush_state.indexed_end = min(log.flush_state.indexed_end, log.end_offset)
    yield from _apply_checkpoints(log, offsets, now_ms)
    for path in cut_off:
        disk.remove(path)
        yield
    log.on_removed = remove_files
    log.epochs.on_change = log.epochs_file.write
    if set(log.epochs.entries()) - stored_entries:  # The next load drops surplus entries.
        log.epochs_file.write()
        log.flush_state.unsynced.files.setdefault(names.EPOCHS_FILE, None)
    return log


def _defer_write() -> None:
    """Do nothing: the epochs file is written once, after the log is opened."""


def _create_empty(
    disk: Disk,
    directory: str,
    partition: TopicPartition,
    now_ms: int,
    config: LogConfig,
    offsets: StoredOffsets,
    files: Plan,
) -> PartitionLog:
    """Create an empty log at the checkpointed log start, in a directory without segments."""
    for offset in files.snapshots:
        disk.remove(f"{directory}/{names.stem(offset)}{names.SNAPSHOT}")
    log = create(
        disk, directory, partition, now_ms=now_ms, config=config, base_offset=offsets.log_start
    )
    log.epochs_file.load()
    log.epochs.truncate_end(log.end_offset)
    return log


def _swap_in(disk: Disk, directory: str, files: Plan) -> Iterator[None]:
    """Finish a compaction: replace segments by the new segments that were made from them.

    While a log file has the suffix ``.swap``, no other file of the new segment has its final name.
    The oldest sources are removed first, so a crash never leaves a value without the tombstone
    after it.
    """
    for source, target in files.replace:
        if not target.endswith(names.LOG):
            continue
        base_offset = int(target[:20])
        compacted = Segment(disk, directory, base_offset, files.sizes[source])
        compacted.file = disk.open(f"{directory}/{source}")
        end_offset = base_offset
        try:
            for count, (_, header) in enumerate(compacted.scan(), 1):
                end_offset = header.next_offset
                if not count % SLICE_BATCHES:
                    yield
        finally:
            compacted.file.close()
        for old in [base_offset, *(base for base, _, _ in files.segments if base > base_offset)]:
            if old < max(end_offset, base_offset + 1):
                for suffix in names.SEGMENT_SUFFIXES:
                    disk.remove(f"{directory}/{names.stem(old)}{suffix}")
                yield
    for source, target in files.replace:
        disk.rename(f"{directory}/{source}", f"{directory}/{target}")
        yield


def _clean_end(active: Segment, sizes: dict[str, int]) -> Generator[None, None, int | None]:
    """Return the end offset of a cleanly closed log; None if its files contradict that.

    In that case the log is recovered, because appends would otherwise follow bytes that are not a
    batch.
    """
    if not active.size:
        return active.base_offset
    position, last_offset = 0, None
    index_size = sizes.get(active.files.name(names.INDEX))
    if index_size and index_size % offset_index.ENTRY_SIZE == 0:
        position, last_offset = active.floor(MAX_OFFSET)
    end_position, end_offset = 0, active.base_offset
    try:
        for count, (at, header) in enumerate(active.scan_from_entry(position, last_offset), 1):
            end_position, end_offset = at + header.size, header.next_offset
            if not count % SLICE_BATCHES:
                yield
    except WrongIndex:
        return None
    return end_offset if end_position == active.size else None


def _open_clean(
    log: PartitionLog,
    files: Plan,
    offsets: StoredOffsets,
    end_offset: int,
    has_epochs: bool,
    now_ms: int,
) -> Iterator[None]:
    """Open a cleanly closed log from its indexes, rebuilding only missing or implausible ones."""
    for segment in log.segments:
        if not segment.size:
            segment.start_indexes()  # The files may describe truncated batches.
        elif not (yield from _has_sane_indexes(segment, files.sizes)) or (
            segment is log.segments.active and not take_largest_timestamp(segment)
        ):
            # The first append would rebuild wrong indexes in one step. Those of closed segments
            # are checked when their age is looked up.
            yield from _rebuild(log, segment)
        yield
    log.end_offset = log.flush_state.recovery_point = log.writer.written_offset = end_offset
    if not has_epochs and end_offset > log.segments[0].base_offset:
        yield from _epochs_from_batches(log, log.segments, {})
    if end_offset > log.segments[0].base_offset:
        yield from log.snapshots.replaying(end_offset, offsets.high_watermark)
    yield from log.producers.expiring(now_ms, log.config.producer_id_expiration_ms)


def _recover(log: PartitionLog, files: Plan, offsets: StoredOffsets, now_ms: int) -> Iterator[None]:
    """Recover a log: read every segment that may be torn, and cut at the first bad batch."""
    point = min(offsets.recovery_point, MAX_OFFSET)
    first = log.segments.index_of(point)
    for segment in log.segments[:first]:
        if segment.size and not (yield from _has_sane_indexes(segment, files.sizes)):
            yield from _rebuild(log, segment)
        yield
    base_offset = log.segments[first].base_offset
    if first:
        yield from _cut_overlap(log, log.segments[first - 1], base_offset)
    file_epochs = dict(log.epochs.entries())
    log.epochs.truncate_end(base_offset)
    if not _has_all_epochs(log, log.segments[:first]):
        yield from _epochs_from_batches(log, log.segments[:first], file_epochs)
    yield from log.snapshots.replaying(base_offset, offsets.high_watermark)
    end_offset = base_offset
    for index in range(first, len(log.segments)):
        segment = log.segments[index]
        if index > first and (problem := _misplacement(log, files, index, end_offset, offsets)):
            _refuse_damage(segment, 0, end_offset, offsets.synced_end, problem)
            yield from _cut(log, index, 0, end_offset, point, problem)
            break
        if index > first:  # A snapshot from before may cover batches that were torn.
            log.snapshots.take(segment.base_offset)
        size = segment.file.size()
        end_offset, problem = yield from _walk_segment(log, segment, point, file_epochs)
        log.producers.drop_replicated(offsets.high_watermark)
        if segment.size < size:
            _refuse_damage(segment, segment.size, end_offset, offsets.synced_end, problem)
            yield from _cut(log, index + 1, size - segment.size, end_offset, point, problem)
            segment.file.truncate(segment.size)
            break
    for segment in log.segments[first:-1]:
        log.flush_state.on_segment_closed(segment)
        yield
    log.end_offset = log.writer.written_offset = end_offset
    log.flush_state.indexed_end = min(log.flush_state.indexed_end, base_offset)
    log.flush_state.recovery_point = min(point, end_offset)
    # The last cut before the crash may not have been synced.
    log.flush_state.unsynced.has_cut = True
    yield from log.producers.expiring(now_ms, log.config.producer_id_expiration_ms)
    if end_offset > log.segments[0].base_offset:
        log.snapshots.take(end_offset)


def _cut_overlap(log: PartitionLog, segment: Segment, end_offset: int) -> Iterator[None]:
    """Cut a closed segment at ``end_offset``, the base offset of the next one.

    The log was cut there before the next segment began. A power loss can undo a cut that was not
    synced, even though the next segment's name is on disk.
    """
    last = end_offset - 1
    for job in preparation(partial(segment.locate, last), partial(warming.lookups, segment, last)):
        if segment.repair is not None:  # The index is wrong.
            yield from segment.reindexing()
        else:
            run_all([job])
    position = _overlap(segment, end_offset)
    if position == segment.size:
        return
    text = "recovery repeats a cut partition=%s offset=%d bytes=%d"
    logger.warning(text, log.partition, end_offset, segment.size - position)
    segment.cut(plan_cut(segment, position, end_offset))
    segment.file.truncate(position)
    log.flush_state.write_indexes(segment)
    log.flush_state.indexed_end = min(log.flush_state.indexed_end, segment.base_offset)


def _overlap(segment: Segment, end_offset: int) -> int:
    """Return the position of data that is certainly at or past ``end_offset``; else the size.

    Only a valid batch is certain, and everything after a batch that ends there. Damage is kept.
    """
    located = segment.locate(end_offset - 1)
    if located is None:
        return segment.size
    position, size = located
    data = segment.file.read(position, size)
    header = parse(data)
    if header.next_offset == end_offset:
        return position + size
    return position if len(data) == size and crc_ok(data, 0, header) else segment.size


def _misplacement(
    log: PartitionLog, files: Plan, index: int, end_offset: int, offsets: StoredOffsets
) -> str:
    """Return why a segment cannot follow batches that end at ``end_offset``; empty if it can.

    Compaction leaves gaps between segments too, but only after synced segments. A closed segment
    gets its indexes once it is synced. Each pass stores a recovery point before it leaves a gap; so
    if there is only a cleaner checkpoint, files were lost, perhaps including indexes. A log without
    a high watermark, which is normally stored within seconds, was copied here, perhaps without its
    indexes.
    """
    before, segment = log.segments[index - 1 : index + 1]
    if segment.base_offset < end_offset:
        return "overlapping segments"
    point = offsets.recovery_point
    if segment.base_offset <= max(end_offset, point):
        return ""
    unsynced = [b for b in files.unindexed if before.base_offset <= b < segment.base_offset]
    has_lost_files = not point and (offsets.clean_end is not None or not offsets.high_watermark)
    if log.config.cleanup_compact and (has_lost_files or not unsynced):
        return ""
    for _, first in segment.scan():
        if segment.base_offset == following_base(end_offset, first):
            return ""
        break
    return "end of a segment lost"


def _refuse_damage(
    segment: Segment, position: int, end_offset: int, synced_end: int, problem: str
) -> None:
    """Raise CorruptMessage, leaving all files unchanged, if the damaged data was synced."""
    if end_offset < synced_end:
        raise CorruptMessage(
            f"{segment.file.path} is damaged at byte {position}, offset {end_offset} ({problem}), "
            f"but the log was synced up to offset {synced_end}"
        )


def _cut(
    log: PartitionLog, index: int, size: int, end_offset: int, point: int, problem: str
) -> Iterator[None]:
    """Drop the segments from ``index`` onwards and log the loss; ``size`` is already cut off.

    The last segment is removed first, and the damage before them last. So a crash in between leaves
    the damage to the next recovery, and no gap that could be mistaken for compaction.
    """
    removed = log.segments.take_from(index)
    size += sum(segment.size for segment in removed)
    for segment in reversed(removed):
        log.flush_state.remove_segments([segment])
        yield
    # A crash cannot tear synced data: damage below the recovery point is the disk's fault.
    below = end_offset < point
    logger.log(
        logging.ERROR if below else logging.WARNING,
        "recovery cut partition=%s offset=%d bytes=%d segments=%d reason=%r recovery_point=%d%s",
        log.partition,
        end_offset,
        size,
        len(removed),
        problem,
        point,
        "; synced records are damaged, restore them from another replica" if below else "",
    )


def _walk_segment(
    log: PartitionLog, segment: Segment, point: int, file_epochs: dict[int, int]
) -> Generator[None, None, tuple[int, str]]:
    """Account for a segment's valid batches; return the offset after them, and why they end there.

    ``file_epochs``: the start offsets in the epochs file. The file may be older than a truncation,
    so it is used only where compaction removed batches: an epoch began at its first remaining
    batch, or in the gap before it.
    """
    size, segment.size = segment.file.size(), 0
    segment.start_indexes()
    end_offset = segment.base_offset
    interval = log.config.index_interval_bytes
    batches = _good_batches(segment, size)
    while True:
        try:
            data, pos, header = next(batches)
        except StopIteration as last:
            problem: str = last.value
            break
        if data is None or header is None:
            if segment.indexes.has_surplus:
                segment.indexes.spill()
            yield
            continue
        if header.base_offset >= point and 0 <= header.leader_epoch < (log.epochs.latest or 0):
            # Epochs only increase: this batch had been truncated before the preceding ones were
            # written.
            problem = "older leader epoch"
            break
        _assign_epoch(log, header, end_offset, file_epochs)
        end_offset = header.next_offset
        segment.note(header.size, end_offset, header.max_timestamp, interval)
        if header.producer_id > NO_PRODUCER:
            aborted = log.producers.replay(data, pos, header)
            if aborted is not None:
                segment.indexes.aborted.add(aborted)
    segment.written = segment.size
    segment.resume_indexes()
    return end_offset, problem


def _good_batches(
    segment: Segment, size: int
) -> Generator[tuple[bytes | None, int, BatchHeader | None], None, str]:
    """Yield each batch up to the first bad one: bytes, position in them, header.

    Nones are yielded to pause.

    Return what is wrong after the last batch, or an empty string at the end of the file.
    """
    start, data, position, count = 0, b"", 0, 0
    end_offset = segment.base_offset
    while position + HEADER_SIZE <= size:
        count += 1
        if not count % SLICE_BATCHES:  # A piece of the file may hold a thousand small batches.
            yield None, 0, None
        pos = position - start
        if pos + HEADER_SIZE > len(data):
            yield None, 0, None
            start, data = position, segment.file.read(position, SLICE_BYTES)
            pos = 0
        header = BatchHeader._make(HEADER.unpack_from(data, pos))
        following = position + header.length + LENGTH_END
        if header.length < HEADER_SIZE - LENGTH_END or following > size or header.magic != 2:
            _refuse_old_format(segment, position, header, size)
            return "cut off batch" if header.magic == 2 and following > size else "no batch"
        if following > start + len(data):
            yield None, 0, None
            start, data = position, segment.file.read(position, max(header.size, SLICE_BYTES))
            pos = 0
        if not crc_ok(data, pos, header):
            return "wrong CRC"
        if (
            not header.can_follow(end_offset)
            or header.last_offset > segment.last_offset_max
            or (
                header.base_offset > end_offset
                and _is_refuted(segment, following, end_offset, header)
            )
        ):
            return "impossible offset"
        yield data, pos, header
        end_offset = header.next_offset
        position = following
    return "cut off batch" if position < size else ""


def _is_refuted(segment: Segment, following: int, end_offset: int, header: BatchHeader) -> bool:
    """Return whether the next batch proves that the batch after a gap has a wrong base offset.

    The CRC does not cover the base offset. A torn base offset has lost its upper bytes, so it is
    below ``end_offset``. A larger base offset counts as a gap, unless the batch at ``following``
    continues the log before the gap.
    """
    successor = next(segment.scan(following, following + HEADER_SIZE), None)
    return (
        successor is not None
        and successor[1].magic == 2
        and end_offset <= successor[1].base_offset < header.next_offset
    )


def _refuse_old_format(segment: Segment, position: int, header: BatchHeader, size: int) -> None:
    """Raise OldFormat for a valid message of magic 0 or 1, which Kafka before 4.0 can convert."""
    end_position = position + LENGTH_END + header.length
    if header.magic not in (0, 1) or not 14 <= header.length <= size or end_position > size:
        return
    data = segment.file.read(position, header.length + LENGTH_END)
    if zlib.crc32(memoryview(data)[16:]) == int.from_bytes(data[12:16], "big"):
        raise OldFormat(f"{segment.file.path} holds messages of format {header.magic}")


def _has_indexes(segment: Segment, sizes: dict[str, int]) -> bool:
    stem = names.stem(segment.base_offset)
    index, times = sizes.get(stem + names.INDEX), sizes.get(stem + names.TIME_INDEX)
    return (
        index is not None
        and times is not None
        and index % offset_index.ENTRY_SIZE == 0
        and times % time_index.ENTRY_SIZE == 0
        and not _lacks_entries(segment, index, times)
    )


def _lacks_entries(segment: Segment, index_size: int, times_size: int) -> bool:
    """Return whether an index is empty although batches need an entry, as after a crash."""
    if times_size and (index_size or segment.size <= segment.interval):
        return False
    for position, header in segment.scan():
        past_interval = position > segment.interval
        if (not times_size and header.max_timestamp >= 0) or (not index_size and past_interval):
            return True
        if past_interval:
            return False
    return False


def _has_sane_indexes(segment: Segment, sizes: dict[str, int]) -> Generator[None, None, bool]:
    """Return whether the index files of a synced segment are present and plausible.

    The offset and time index are judged by their sizes alone, because there may be terabytes of old
    segments. A lookup checks the entries that it uses.
    """
    return _has_indexes(segment, sizes) and (yield from _has_sane_txn_index(segment, sizes))


def _has_sane_txn_index(segment: Segment, sizes: dict[str, int]) -> Generator[None, None, bool]:
    """Return whether the index of aborted transactions is plausible.

    A missing index is plausible unless a mark says that it existed. An empty index is rebuilt,
    because a crash can have emptied it; without transactions the rebuild removes it.
    """
    size = sizes.get(segment.files.name(names.TXN_INDEX))
    if size is None:
        return segment.files.name(names.ABORTED) not in sizes
    slice_size, base_offset = SLICE_ABORTED * txn_index.ENTRY_SIZE, segment.base_offset
    file = segment.files.open(names.TXN_INDEX)
    try:
        for start in range(0, size, slice_size):
            part = file.read(start, min(slice_size, size - start))
            if not part or not txn_index.plausible(part, base_offset):
                return False
            base_offset = txn_index.entries(part[-txn_index.ENTRY_SIZE :])[0].last_offset + 1
            yield
    finally:
        file.close()
    return size > 0


def _rebuild(log: PartitionLog, segment: Segment) -> Iterator[None]:
    """Rebuild the indexes of an old segment; its transactions need the producer state before it."""
    # A crash may leave the offset and time index without that of aborted transactions, which is
    # written last; without the mark, the next start would find no aborted transactions.
    segment.files.write(names.ABORTED, b"")
    yield from segment.reindexing()
    segment.activate()
    segment.indexes.aborted.replace([])
    yield from log.snapshots.replaying(segment.base_offset)
    for count, (position, header) in enumerate(segment.scan(), 1):
        if not count % SLICE_BATCHES:
            yield
        if header.is_control and header.producer_id > NO_PRODUCER:
            data = segment.file.read(position, header.size)
            aborted = log.producers.replay(data, 0, header)
            if aborted is not None:
                segment.indexes.aborted.add(aborted)
        elif header.producer_id > NO_PRODUCER:
            log.producers.replay(b"", 0, header)
    log.flush_state.write_indexes(segment)
    log.flush_state.indexed_end = min(log.flush_state.indexed_end, segment.base_offset)
    log.producers.clear()


def _has_all_epochs(log: PartitionLog, segments: list[Segment]) -> bool:
    """Return whether the epochs file covers all batches of the segments that are not reread.

    The file is written as soon as a log's start or end moves. A power loss can undo that move but
    keep the file. Then old batches reappear whose epochs are no longer in the file.
    """
    filled = [segment for segment in segments if segment.size]
    if not filled:
        return True
    entries = log.epochs.entries()
    if not entries or entries[0][1] > log.log_start:
        return False
    tail = filled[-1].scan(filled[-1].floor(MAX_OFFSET)[0])
    last = max((header.leader_epoch for _, header in tail), default=-1)
    return last <= entries[-1][0]


def _epochs_from_batches(
    log: PartitionLog, segments: Sequence[Segment], file_epochs: dict[int, int]
) -> Iterator[None]:
    log.epochs.clear()
    end_offset = log.segments[0].base_offset
    for segment in segments:
        for count, (_, header) in enumerate(segment.scan(), 1):
            _assign_epoch(log, header, end_offset, file_epochs)
            end_offset = header.next_offset
            if not count % SLICE_BATCHES:
                yield
        yield


def _assign_epoch(
    log: PartitionLog, header: BatchHeader, end_offset: int, file_epochs: dict[int, int]
) -> None:
    """Assign a batch's epoch; the batch before it ends at ``end_offset``."""
    latest = log.epochs.latest
    if header.leader_epoch >= 0 and (latest is None or header.leader_epoch > latest):
        start = file_epochs.get(header.leader_epoch, header.base_offset)
        in_gap = end_offset <= start <= header.base_offset
        log.epochs.assign(header.leader_epoch, start if in_gap else header.base_offset)


def _apply_checkpoints(log: PartitionLog, offsets: StoredOffsets, now_ms: int) -> Iterator[None]:
    """Adapt the log to the checkpointed offsets (invariants 82 and 84)."""
    if offsets.log_start > log.end_offset:
        log.truncate_fully_at(offsets.log_start, now_ms)
    log.log_start = min(log.log_start, log.end_offset)
    log.high_watermark = min(max(offsets.high_watermark, log.log_start), log.end_offset)
    if (log.clean_state.clean_end or 0) > log.end_offset:
        log.clean_state.clean_end = log.log_start  # Records appended from now on are dirty.
    log.epochs.truncate_end(log.end_offset)
    log.epochs.truncate_start(log.log_start)
    bases = {segment.base_offset for segment in log.segments}
    bases.add(log.end_offset)
    yield from _remove_snapshots(log, [n for n in log.snapshots.offsets if n not in bases])


def _remove_snapshots(log: PartitionLog, offsets: Sequence[int]) -> Iterator[None]:
    for offset in offsets:
        log.snapshots.remove(offset)
        yield
