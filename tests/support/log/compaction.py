"""Logs made for cleaning passes, and the passes over them."""

import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import attrs

from kwire.log.compaction.clean import clean
from kwire.log.compaction.job import CleanedGroup, CleaningJob, CleaningSummary, SourceSegment
from kwire.log.config import LogConfig
from kwire.log.disk import Disk
from kwire.log.formats import names, offset_index, time_index, txn_index
from kwire.log.formats.txn_index import AbortedTxn
from kwire.log.segments.segment import Segment
from kwire.records.build import New, batch
from kwire.records.control import end_txn_marker
from kwire.records.header import BatchHeader, headers, parse
from kwire.records.iterate import Record, records
from simulation.disk import SimDisk

NOW_MS = 1_700_000_000_000
DAY_MS = 24 * 60 * 60 * 1000
DIRECTORY = "t-0"
MODIFIED_MS = 1_699_000_000_000


class ReadBatch(NamedTuple):
    """A batch that was read back from a segment."""

    header: BatchHeader
    data: bytes

    @property
    def records(self) -> list[Record]:
        return list(records(self.data, 0, self.header))

    @property
    def pairs(self) -> list[tuple[int, bytes | None, bytes | None]]:
        return [(r.offset, r.key, r.value) for r in self.records]


@attrs.define(eq=False)
class MadeLog:
    """A log whose segments are written as the product writes them, for the cleaner to read."""

    disk: Disk = attrs.Factory(SimDisk)
    config: LogConfig = attrs.Factory(LogConfig)
    sources: list[SourceSegment] = attrs.Factory(list)
    end_offset: int = 0
    """The end of what was written."""
    _base: int = 0
    _batches: list[bytes] = attrs.Factory(list)
    _open: dict[int, int] = attrs.Factory(dict)
    """The first offset of each open transaction, by producer id."""
    _aborted: list[AbortedTxn] = attrs.Factory(list)

    def __attrs_post_init__(self) -> None:
        self.disk.make_directory(DIRECTORY)

    # -- writing

    def put(
        self,
        *pairs: tuple[bytes | None, bytes | None],
        timestamps: Sequence[int] | None = None,
        **fields: Any,
    ) -> BatchHeader:
        """Append a batch of keys and values."""
        times = [NOW_MS - DAY_MS] * len(pairs) if timestamps is None else timestamps
        entries = [
            New(key, value, (), time) for (key, value), time in zip(pairs, times, strict=True)
        ]
        data = batch(entries, timestamp_ms=times[0], base_offset=self.end_offset, **fields)
        return self.add(data)

    def add(self, data: bytes) -> BatchHeader:
        """Append the bytes of a batch that has its offset already."""
        header = parse(data)
        if header.is_transactional and not header.is_control:
            self._open.setdefault(header.producer_id, header.base_offset)
        self._batches.append(data)
        self.end_offset = header.next_offset
        return header

    def mark(
        self, producer_id: int, *, commit: bool, epoch: int = 0, timestamp_ms: int = NOW_MS
    ) -> BatchHeader:
        """Append the marker that ends a producer's transaction."""
        header = self.add(
            end_txn_marker(
                commit=commit,
                coordinator_epoch=0,
                producer_id=producer_id,
                producer_epoch=epoch,
                timestamp_ms=timestamp_ms,
                base_offset=self.end_offset,
            )
        )
        first = self._open.pop(producer_id, None)
        if not commit and first is not None:
            stable = min([*self._open.values(), header.next_offset])
            entry = AbortedTxn(producer_id, first, header.last_offset, stable)
            self._aborted.append(entry)
        return header

    def skip(self, count: int) -> None:
        """Leave a gap in the offsets."""
        self.end_offset += count

    def roll(self, *, modified_ms: int = MODIFIED_MS) -> None:
        """Close the segment; the next one begins at the end offset."""
        segment = Segment(self.disk, DIRECTORY, self._base, 0, self.config)
        segment.start_indexes()
        for data in self._batches:
            header = parse(data)
            segment.note(len(data), header.next_offset, header.max_timestamp, segment.interval)
        segment.indexes.aborted.replace(self._aborted)
        segment.close_indexes()
        segment.indexes.write()
        self.disk.write(segment.files.path(names.LOG), b"".join(self._batches))
        self.sources.append(
            SourceSegment(
                self._base, segment.size, segment.max_timestamp, modified_ms, bool(self._aborted)
            )
        )
        self._base, self._batches, self._aborted = self.end_offset, [], []

    # -- cleaning

    def job(self, **changes: Any) -> CleaningJob:
        """Return a job over all closed segments."""
        job = CleaningJob(
            directory=DIRECTORY,
            segments=tuple(self.sources),
            next_base=self._base,
            first_dirty=0,
            end_offset=self._base,
            now_ms=NOW_MS,
            later_aborted=tuple(self._aborted),
            config=self.config,
            memory_bytes=1 << 20,
            load_factor=0.9,
            buffer_bytes=1 << 16,
            active_producers={},
            bytes_per_second=math.inf,
        )
        return attrs.evolve(job, **changes)

    def clean(self, **changes: Any) -> "Pass":
        """Run a whole pass, putting each group in place of its sources."""
        return self.run(self.job(**changes))

    def run(self, job: CleaningJob) -> "Pass":
        paced: list[int] = []
        generator, groups = clean(self.disk, job, paced.append), list[CleanedGroup]()
        while True:
            try:
                group = next(generator)
            except StopIteration as end:
                return Pass(groups, end.value, paced)
            groups.append(group)
            self.swap(group)

    def swap(self, group: CleanedGroup) -> None:
        """Replace the sources of a group."""
        for base_offset in group.sources:
            for suffix in names.SEGMENT_SUFFIXES:
                self.disk.remove(path(base_offset, suffix))
        new = [group, *group.later]
        for segment in new:
            for suffix in segment.suffixes:
                target = path(segment.base_offset, suffix)
                self.disk.rename(target + names.CLEANED, target)
        replaced = [s for s in self.sources if s.base_offset in group.sources]
        first = self.sources.index(replaced[0])
        self.sources[first : first + len(replaced)] = [
            SourceSegment(
                segment.base_offset,
                segment.size,
                segment.largest_timestamp_ms,
                segment.modified_ms,
                names.TXN_INDEX in segment.suffixes,
            )
            for segment in new
        ]

    # -- reading

    def files(self) -> dict[str, bytes]:
        return {
            e.name: self.disk.read(f"{DIRECTORY}/{e.name}") for e in self.disk.entries(DIRECTORY)
        }

    def batches(self) -> list[ReadBatch]:
        """Return the batches of all closed segments."""
        batches = []
        for source in self.sources:
            data = self.disk.read(path(source.base_offset, names.LOG))
            batches += [
                ReadBatch(header, data[pos : pos + header.size]) for pos, header in headers(data)
            ]
        return batches

    def pairs(self) -> list[tuple[int, bytes | None, bytes | None]]:
        """Return offset, key and value of all records but markers."""
        return [pair for b in self.batches() if not b.header.is_control for pair in b.pairs]

    def aborted_entries(self) -> list[AbortedTxn]:
        """Return the entries of all indexes of aborted transactions."""
        return [
            entry
            for source in self.sources
            if source.has_txn_index
            for entry in txn_index.entries(
                self.disk.read(path(source.base_offset, names.TXN_INDEX))
            )
        ]

    def index(self, base_offset: int) -> list[tuple[int, int]]:
        data = self.disk.read(path(base_offset, names.INDEX))
        return offset_index.entries(data, base_offset)

    def times(self, base_offset: int) -> list[tuple[int, int]]:
        data = self.disk.read(path(base_offset, names.TIME_INDEX))
        return time_index.entries(data, base_offset)


@attrs.frozen
class Pass:
    """The outcome of a pass."""

    groups: list[CleanedGroup]
    summary: CleaningSummary
    paced: list[int]
    """The bytes of each read and write."""


def path(base_offset: int, suffix: str) -> str:
    return f"{DIRECTORY}/{names.stem(base_offset)}{suffix}"


def producer(producer_id: int, sequence: int = 0, epoch: int = 0) -> dict[str, Any]:
    """Return the fields of a batch of an idempotent producer."""
    return {"producer_id": producer_id, "producer_epoch": epoch, "base_sequence": sequence}


def transaction(producer_id: int, sequence: int = 0, epoch: int = 0) -> dict[str, Any]:
    """Return the fields of a batch in a transaction."""
    return {**producer(producer_id, sequence, epoch), "transactional": True}
