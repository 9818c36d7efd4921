"""The known damage of one directory's logs, which a file keeps over restarts.

Rules: a range is listed until it is restored, or until its segment is cut, replaced or removed.
The file is written shortly after a change; without known damage there is none. It is only a hint:
a start believes a listed range only if the batches around it are still there and those in it are
still damaged. So neither a crash before the file is written nor an old file hides intact batches.
"""

import logging
import math
from collections.abc import Iterator
from functools import partial
from itertools import groupby
from typing import Final

import attrs
import trio

from kwire.clock import Clock
from kwire.drive import Slices
from kwire.log.compaction.states import CleaningStates
from kwire.log.directories.directory import LogDirectory
from kwire.log.disk import Disk
from kwire.log.formats import damage_list, names
from kwire.log.formats.damage_list import ListedRange
from kwire.log.partition_log import PartitionLog
from kwire.log.scrub.job import SegmentJob
from kwire.log.scrub.segment_check import recheck_ranges
from kwire.log.segments.damage import Damage, DamagedRange
from kwire.log.segments.segment import Segment
from kwire.log.threads import InThread
from kwire.waits import Signal

logger = logging.getLogger(__name__)

COLLECT_SECONDS: Final = 1.0
"""The delay of a write after a change, in which further changes are collected."""


@attrs.define(eq=False, repr=False)
class KnownDamage:
    """The damaged segments of one directory's logs."""

    directory: LogDirectory
    clock: Clock
    in_thread: InThread
    states: CleaningStates
    _damaged: dict[PartitionLog, dict[Segment, None]] = attrs.field(init=False, factory=dict)
    """The segments in which damage was found, by log."""
    _changed: Signal = attrs.field(init=False, factory=Signal)
    _stored: bytes = attrs.field(init=False, default=b"")
    """The content of the file; empty if there is none."""

    def add(self, log: PartitionLog, segment: Segment) -> None:
        """Record a segment with damage."""
        self._damaged.setdefault(log, {})[segment] = None
        self._changed.set()

    def note_change(self) -> None:
        """Write the file soon, if its content has changed."""
        self._changed.set()

    def logs(self) -> list[PartitionLog]:
        """Return the logs in which damage was found."""
        return list(self._damaged)

    def segments(self) -> list[Segment]:
        """Return the segments with known damage."""
        return [segment for log in self.logs() for segment in self.segments_of(log)]

    def segments_of(self, log: PartitionLog) -> list[Segment]:
        """Return the segments of a log with known damage, and forget those without.

        A log without damage may be compacted again.
        """
        segments = self._damaged.get(log, {})
        if not self.directory.holds(log):
            segments = {}
        for segment in list(segments):
            if not segment.damage or segment_at(log, segment.base_offset) is not segment:
                del segments[segment]
        if not segments and self._damaged.pop(log, None) is not None:
            self.states.note_cleanable(log)
        return list(segments)

    def damage_of(self, log: PartitionLog) -> list[DamagedRange]:
        """Return the known damage of a log, but not that of deleted records."""
        return [
            damaged
            for segment in self.segments_of(log)
            for damaged in segment.damage
            if damaged.end_offset > log.log_start
        ]

    def on_restored(self, log: PartitionLog, segment: Segment, damaged: DamagedRange) -> None:
        """Forget a range whose batches are intact again."""
        segment.damage = Damage(other for other in segment.damage if other is not damaged)
        segments = self._damaged.get(log, {})
        if not segment.damage:
            segments.pop(segment, None)
        if not segments:
            self.segments_of(log)
        self._changed.set()

    # -- over a restart

    async def load(self) -> None:
        """Hide the damage that the last run knew, before anything is read.

        Reads that reach a range get the error for a repair, because that of the range begins soon.
        """
        data = list[bytes]()
        try:
            await self.in_thread(self.directory.disk, partial(_read, self.directory.disk, data))
            self._stored = data[0]
            listed = damage_list.parse(self._stored) if self._stored else []
            slices = Slices(self.clock.now)
            for _, ranges in groupby(listed, key=lambda each: each[:2]):
                await self._load(list(ranges))
                await slices.pause()
        except ValueError as error:
            logger.warning("list of damage ignored directory=%s %s", self.directory.name, error)
        except OSError as error:
            self._on_disk_error(error)
        self._changed.set()

    async def _load(self, listed: list[ListedRange]) -> None:
        """Check the listed ranges of one segment."""
        first = listed[0]
        log = self.directory.logs.get(first.partition)
        segment = None if log is None else segment_at(log, first.base_offset)
        if log is None or segment is None or segment.base_offset != first.base_offset:
            return
        if segment is log.segments.active:
            return
        ranges = [
            DamagedRange(
                each.first_offset, each.end_offset, each.position, each.end_position, each.reason
            )
            for each in listed
        ]
        job, damage = job_of(log, segment, math.inf), list[DamagedRange]()
        check = partial(recheck_ranges, log.disk, job, ranges)
        await self.in_thread(log.disk, lambda: damage.extend(check()))
        for damaged in damage:
            damaged.is_under_repair = True
            report_damage(self.directory, segment, damaged)
        segment.damage = Damage(damage)
        if damage:
            self.add(log, segment)

    async def keep(self) -> None:
        """Write the file after changes, until cancelled."""
        while True:
            await self._changed.wait()
            await trio.sleep(COLLECT_SECONDS)
            self._changed.clear()
            await self._write()

    async def _write(self) -> None:
        slices, lines = Slices(self.clock.now), list[str]()
        for log in self.logs():
            for segment in self.segments_of(log):
                lines += _lines(log, segment)
                await slices.pause()
        data = damage_list.pack(lines) if lines else b""
        if data == self._stored or not self.directory.online:
            return
        try:
            await self.in_thread(self.directory.disk, partial(_replace, self.directory.disk, data))
        except OSError as error:
            self._on_disk_error(error)
        else:
            self._stored = data

    def _on_disk_error(self, error: OSError) -> None:
        self.directory.note_failure()
        text = "list of damage not kept directory=%s error=%s"
        logger.error(text, self.directory.name, error)


def segment_at(log: PartitionLog, offset: int) -> Segment:
    """Return the segment that holds an offset, or the nearest one."""
    return log.segments[log.segments.index_of(offset)]


def job_of(log: PartitionLog, segment: Segment, bytes_per_second: float) -> SegmentJob:
    """Return the check of a closed segment."""
    segments = log.segments
    end_offset = segments[segments.index_of(segment.base_offset) + 1].base_offset
    entries = log.epochs.between(segment.base_offset, end_offset)
    return SegmentJob(
        directory=segments.directory,
        base_offset=segment.base_offset,
        end_offset=end_offset,
        size=segment.size,
        epochs=tuple(entries),
        bytes_per_second=bytes_per_second,
    )


def report_damage(directory: LogDirectory, segment: Segment, damaged: DamagedRange) -> None:
    """Log a damaged range."""
    logger.error(
        "damaged batch file=%s/%s position=%d bytes=%d offset=%d end_offset=%d reason=%s",
        directory.name,
        segment.file.path,
        damaged.position,
        damaged.size,
        damaged.first_offset,
        damaged.end_offset,
        damaged.reason,
    )


def _lines(log: PartitionLog, segment: Segment) -> Iterator[str]:
    for each in segment.damage:
        yield ListedRange(
            log.partition,
            segment.base_offset,
            each.position,
            each.end_position,
            each.first_offset,
            each.end_offset,
            each.reason,
        ).line()


def _read(disk: Disk, data: list[bytes]) -> None:
    """Add the content of the file to ``data``, or nothing if there is no file; in a thread."""
    try:
        data.append(disk.read(names.KNOWN_DAMAGE))
    except FileNotFoundError:
        data.append(b"")


def _replace(disk: Disk, data: bytes) -> None:
    """Replace or remove the file, in a thread."""
    if data:
        disk.replace(names.KNOWN_DAMAGE, data, sync=True)
    else:
        disk.remove(names.KNOWN_DAMAGE)
        disk.sync_directory()
