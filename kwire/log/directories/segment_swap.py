"""Replaces segments of a log by the compacted segments that were made from them.

Rules: a crash leaves no mixture of old and new files, and no reader sees one. The ``.cleaned``
files are renamed to ``.swap`` and the directory is synced; from then on every start completes the
swap. If there are several new segments, the first is renamed last: while one of its files is
``.cleaned``, a start ignores all of them. Each new segment ends where the next one begins, and the
last one where the sources end, because a start determines from a segment's batches which sources it
replaces. The sources are renamed to ``.deleted`` in ascending order, so that a crash leaves the
newest sources: a value never outlives its tombstone. Then the ``.swap`` files get their final
names, and the directory is synced. Reads that are using a source continue with its renamed files
until these are removed.

An error after the first and before the last of these renames takes the directory offline: the log
lacks files, and anything written to it before a start completes the swap would be overwritten.

The log is claimed meanwhile, so nothing cuts or removes it. The sources are renamed on the event
loop, a few at a time, because the names in memory must change at the same moment; the other
renames, and the syncs, run in a thread of the directory. The list of segments changes in one step.
"""

from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Final

import attrs
import trio

from kwire.clock import Clock
from kwire.drive import Slices
from kwire.errors import KafkaStorageError
from kwire.log.compaction.job import CleanedGroup, NewSegment
from kwire.log.directories.busy_logs import BusyLogs
from kwire.log.directories.directory import LogDirectory
from kwire.log.directories.removal import Removals
from kwire.log.disk import Disk
from kwire.log.error_mapping import storage_errors
from kwire.log.formats import names
from kwire.log.partition_log import PartitionLog
from kwire.log.segments.segment import Segment
from kwire.log.threads import InThread


class PassVoid(Exception):
    """The log was cut, removed or shortened since the pass began: nothing may be replaced."""


def remove_cleaned(disk: Disk, directory: str) -> None:
    """Remove the files that passes have left in a partition's directory, in a thread."""
    for entry in disk.entries(directory):
        if entry.name.endswith(names.CLEANED):
            disk.remove(f"{directory}/{entry.name}")


@attrs.define(eq=False, repr=False)
class _Renames:
    """The renames of the new files, in a thread."""

    disk: Disk
    directory: str
    segments: Sequence[Sequence[str]]
    """The final names of each new segment's files; the log file comes first."""
    is_final: bool = False
    """True once all files have their final names."""

    def prepare(self) -> None:
        """Rename ``.cleaned`` to ``.swap`` and make that durable; undo it after an error.

        Other ``.cleaned`` files, such as those of a process that outlived its node, are removed:
        with them, recovery would treat the group as incomplete.
        """
        try:
            for files in reversed(self.segments):
                for file in files:
                    path = f"{self.directory}/{file}"
                    self.disk.rename(path + names.CLEANED, path + names.SWAP)
            remove_cleaned(self.disk, self.directory)
            self.disk.sync_directory(self.directory)
        except OSError:
            if self.disk.failed is None:
                self._undo()
            raise

    def _undo(self) -> None:
        """Remove the ``.swap`` files; if one remains, fail the directory: a start would use it.

        A segment's log file is removed last: without it, another ``.swap`` file would be taken for
        a source's. If there are several segments, the first is invalidated before the others are
        removed.
        """
        first = f"{self.directory}/{self.segments[0][0]}"
        try:
            if len(self.segments) > 1:
                with suppress(FileNotFoundError):
                    self.disk.rename(first + names.SWAP, first + names.CLEANED)
            for files in reversed(self.segments):
                for file in reversed(files):
                    self.disk.remove(f"{self.directory}/{file}{names.SWAP}")
        except OSError as error:
            self.disk.fail(error)
            raise

    def finish(self) -> None:
        """Rename ``.swap`` to the final names and make that durable; can be called repeatedly."""
        if not self.is_final:
            for files in self.segments:
                for file in files:
                    path = f"{self.directory}/{file}"
                    self.disk.rename(path + names.SWAP, path)
            self.is_final = True
        self.disk.sync_directory(self.directory)


@attrs.define(eq=False, repr=False)
class SegmentSwap:
    """Swaps compacted segments into the logs of one directory."""

    directory: LogDirectory
    clock: Clock
    in_thread: InThread
    busy: BusyLogs
    removals: Removals
    _count: int = attrs.field(init=False, default=0)
    """The number of swaps; it makes the names of replaced files unique to their swap."""

    async def swap(
        self, log: PartitionLog, group: CleanedGroup, is_valid: Callable[[], bool]
    ) -> None:
        """Replace the sources of a group (see :meth:`replace`)."""
        await self.replace(log, group.sources, [group, *group.later], is_valid)

    async def replace(
        self,
        log: PartitionLog,
        source_bases: Sequence[int],
        new: Sequence[NewSegment],
        is_valid: Callable[[], bool],
    ) -> None:
        """Replace neighbouring segments by new ones; once started, a swap cannot be cancelled.

        ``is_valid`` is called last before the swap. Raises :class:`PassVoid`, OSError or
        KafkaStorageError. After an error the segments are either replaced or unchanged, or the
        directory is offline.
        """
        async with self.busy.claim(log, by_compaction=True):
            if not self.directory.holds(log) or not is_valid():
                raise PassVoid
            sources = _sources(log, source_bases, new[0].base_offset)
            with trio.CancelScope(shield=True):
                await self._swap(log, new, sources)

    async def _swap(
        self, log: PartitionLog, new: Sequence[NewSegment], sources: Sequence[Segment]
    ) -> None:
        disk = log.disk
        renames = _Renames(disk, log.segments.directory, [_file_names(segment) for segment in new])
        await self.in_thread(disk, renames.prepare)
        try:
            paths = await self._rename_sources(log, sources)
            await self.in_thread(disk, renames.finish)
        except (OSError, KafkaStorageError) as error:
            if not renames.is_final:
                self._fail(disk, error)
            raise
        finally:
            if renames.is_final:
                log.segments.replace(sources, [_new_segment(log, segment) for segment in new])
                self.removals.add(disk, paths, log.config.file_delete_delay_ms, sources)

    async def _rename_sources(self, log: PartitionLog, sources: Sequence[Segment]) -> list[str]:
        self._count += 1
        mark = f".{self._count}{names.DELETED}"
        slices, paths = Slices(self.clock.now), list[str]()
        for segment in sources:
            paths += _rename_source(log, segment, mark, is_first=segment is sources[0])
            await slices.pause()
        return paths

    def _fail(self, disk: Disk, error: OSError | KafkaStorageError) -> None:
        """Take the directory offline because of an error in the middle of a swap.

        The log lacks files, and the next start completes the swap: nothing may change before that.
        """
        disk.fail(error if isinstance(error, OSError) else OSError(str(error)))
        self.directory.note_failure()


_RENAMED: Final = names.SEGMENT_SUFFIXES
"""The order of renames: the log file loses its name last, and the new one gets its name first."""


def _file_names(segment: NewSegment) -> list[str]:
    stem = names.stem(segment.base_offset)
    return [stem + suffix for suffix in sorted(segment.suffixes, key=_RENAMED.index)]


def _sources(log: PartitionLog, bases: Sequence[int], base_offset: int) -> list[Segment]:
    """Return the segments to replace; raise :class:`PassVoid` if the log has changed."""
    first = log.segments.index_of(base_offset)
    sources = log.segments[first : first + len(bases)]
    if [segment.base_offset for segment in sources] != list(bases):
        raise PassVoid
    if log.segments.active in sources or base_offset != bases[0]:
        raise PassVoid
    return sources


def _rename_source(log: PartitionLog, segment: Segment, mark: str, *, is_first: bool) -> list[str]:
    """Rename the files of a source, which is read from them as before; return their paths.

    The producer snapshot at the first source's base offset keeps its name, because the new segment
    begins there too.
    """
    suffixes: tuple[str, ...] = names.SEGMENT_SUFFIXES
    log.flush_state.unsynced.forget(segment)
    if not is_first:
        log.snapshots.forget(segment.base_offset)
        suffixes = (*suffixes, names.SNAPSHOT)
    with storage_errors(log.changes):
        return segment.mark_deleted(suffixes, mark)


def _new_segment(log: PartitionLog, new: NewSegment) -> Segment:
    segments = log.segments
    segment = Segment(segments.disk, segments.directory, new.base_offset, new.size, log.config)
    segment.created_ms = segment.modified_ms = new.modified_ms
    segment.max_timestamp = new.largest_timestamp_ms
    segment.max_timestamp_offset = new.largest_timestamp_offset
    segment.indexes.aborted.has_no_file = names.TXN_INDEX not in new.suffixes
    return segment
