"""One cleaning pass over a log: reads closed segments and writes new segments beside them.

Rules: the log is not changed. The caller replaces a group's segments by the new files before it
requests the next group, so at most one group uses disk space twice. The behaviour is that of Apache
Kafka's ``Cleaner``. A pass that ends early or fails leaves files with the suffix ``.cleaned``.
"""

from collections.abc import Generator, Sequence
from contextlib import closing

import attrs

from kwire.log.compaction.batch_filter import BatchFilter
from kwire.log.compaction.group_writer import GroupWriter
from kwire.log.compaction.grouping import Candidate, groups
from kwire.log.compaction.job import (
    ActiveProducers,
    CleanedGroup,
    CleaningJob,
    CleaningSummary,
    NewSegment,
    SourceSegment,
)
from kwire.log.compaction.key_offsets import KeyOffsets, entries_of, map_keys, segment_ends
from kwire.log.compaction.retention import Verdict, judge
from kwire.log.compaction.source import Pace, SegmentReader, SourceBatch
from kwire.log.compaction.transactions import TransactionState
from kwire.log.disk import Disk
from kwire.log.formats import names
from kwire.log.formats.txn_index import AbortedTxn


def clean(
    disk: Disk, job: CleaningJob, pace: Pace
) -> Generator[CleanedGroup, ActiveProducers | None, CleaningSummary]:
    """Clean a log group by group; each step writes one group's files and yields their description.

    ``pace`` is called with the size of each read and write, and may wait. A value sent to the
    generator replaces the job's active producers for the next group. Raises
    :class:`kwire.log.compaction.job.CleaningFailed` for damaged segments, and OSError.
    """
    keys = map_keys(disk, job, pace)
    cleaning = _Pass(disk, job, keys, pace)
    done: list[CleanedGroup] = []
    active_producers: ActiveProducers = job.active_producers
    for group in cleaning.groups():
        cleaned = cleaning.clean_group(group, active_producers)
        done.append(cleaned)
        renewed = yield cleaned
        if renewed is not None:
            active_producers = renewed
    return CleaningSummary(
        clean_end=keys.latest + 1,
        map_bytes_read=keys.bytes_read,
        bytes_read=sum(group.bytes_read for group in done),
        bytes_written=sum(group.bytes_written for group in done),
        records_read=sum(group.records_read for group in done),
        records_kept=sum(group.records_kept for group in done),
        keyless_dropped=sum(group.keyless_dropped for group in done),
        map_utilization=keys.utilization,
    )


class _Pass:
    """The state of a pass over all its groups."""

    __slots__ = ("_disk", "_ends", "_job", "_keys", "_pace", "_segments", "_transactions")

    def __init__(self, disk: Disk, job: CleaningJob, keys: KeyOffsets, pace: Pace) -> None:
        self._disk = disk
        self._job = job
        self._keys = keys
        self._pace = pace
        ends = dict(zip(job.segments, segment_ends(job), strict=True))
        self._segments = {s.base_offset: s for s in job.segments if s.base_offset <= keys.latest}
        self._ends = {s.base_offset: ends[s] for s in self._segments.values()}
        self._transactions = TransactionState(entries_of(disk, job, job.segments))

    def groups(self) -> list[list[SourceSegment]]:
        """Return the segments up to the last mapped offset, in groups."""
        sizes = {entry.name: entry.size for entry in self._disk.entries(self._job.directory)}
        candidates = [
            Candidate(
                base_offset,
                self._ends[base_offset],
                segment.size,
                sizes.get(names.stem(base_offset) + names.INDEX, 0),
                sizes.get(names.stem(base_offset) + names.TIME_INDEX, 0),
            )
            for base_offset, segment in self._segments.items()
        ]
        config = self._job.config
        grouped = groups(
            candidates,
            segment_bytes=config.segment_bytes,
            index_bytes=config.segment_index_bytes,
        )
        return [[self._segments[c.base_offset] for c in group] for group in grouped]

    def clean_group(
        self, group: Sequence[SourceSegment], active_producers: ActiveProducers
    ) -> CleanedGroup:
        """Write the segment that replaces a group, or several if its offsets need them."""
        records = BatchFilter(self._job, self._keys)
        new, modified_ms = list[NewSegment](), group[-1].modified_ms
        aborted: list[AbortedTxn] = []
        writer = self._writer(group[0].base_offset)
        try:
            with closing(self._batches(group)) as batches:
                for batch in batches:
                    verdict = self._judge(batch, active_producers, aborted)
                    result = records.keep(batch, verdict)
                    if result is None:
                        continue
                    if not writer.can_hold(result.next_offset - 1):
                        base_offset = batch.header.base_offset
                        before = [entry for entry in aborted if entry.last_offset < base_offset]
                        del aborted[: len(before)]
                        new.append(writer.finish(before, modified_ms))
                        writer.close()
                        writer = self._writer(base_offset)
                    writer.append(result)
            new.append(writer.finish(aborted, modified_ms))
        finally:
            writer.close()
        return CleanedGroup(
            **attrs.asdict(new[0], recurse=False),
            later=tuple(new[1:]),
            sources=tuple(segment.base_offset for segment in group),
            bytes_read=sum(segment.size for segment in group),
            bytes_written=sum(segment.size for segment in new),
            records_read=records.records_read,
            records_kept=records.records_kept,
            keyless_dropped=records.keyless_dropped,
        )

    def _writer(self, base_offset: int) -> GroupWriter:
        job = self._job
        return GroupWriter(
            self._disk, job.directory, job.config, base_offset, job.buffer_bytes, self._pace
        )

    def _batches(self, group: Sequence[SourceSegment]) -> Generator[SourceBatch, None, None]:
        """Yield the batches of a group's segments."""
        job = self._job
        for segment in group:
            end_offset = self._ends[segment.base_offset]
            self._transactions.load(end_offset)
            reader = SegmentReader(
                self._disk, job.directory, segment, end_offset, job.buffer_bytes, self._pace
            )
            with closing(reader.batches()) as batches:
                yield from batches

    def _judge(
        self, batch: SourceBatch, active_producers: ActiveProducers, aborted: list[AbortedTxn]
    ) -> Verdict:
        """Judge a batch by its transaction; collect the entry of an abort marker that is kept."""
        header = batch.header
        if header.is_control:
            control_type = batch.control_type()
            is_spent, entry = self._transactions.on_control(header, control_type)
            if entry is not None:
                aborted.append(entry)
        else:
            is_spent = self._transactions.on_data(header)
        return judge(
            header,
            is_spent=is_spent,
            active_producers=active_producers,
            end_offset=self._job.end_offset,
            now_ms=self._job.now_ms,
        )
