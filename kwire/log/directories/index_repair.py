"""The rebuild of the wrong index files that a scrub finds in closed segments of one directory.

Rules: a thread reads the batches and writes new files, which then replace the old ones by renames
on the event loop, as for a lookup that finds an index wrong. Nothing waits for the thread. The new
files of a segment that was cut or removed meanwhile are discarded. A crash leaves the old files or
the new ones; a start removes unfinished ones.

The transactions that a segment's markers abort may have begun before it, so their index is rebuilt
from the producers at the segment's start: from the snapshot there or, without an intact one, from
an earlier snapshot or the log's first batch, and all batches after it.
"""

import logging
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Final

import attrs
import trio

from kwire.log.directories.directory import LogDirectory
from kwire.log.disk import TEMPORARY
from kwire.log.formats import names, txn_index
from kwire.log.inspection.index_check import WrongEntry
from kwire.log.partition_log import PartitionLog
from kwire.log.producer_snapshots import finish_rebuild
from kwire.log.producers import ProducerStates
from kwire.log.segments.segment import Repair, Segment
from kwire.log.segments.warming import shadow_of
from kwire.log.threads import InThread
from kwire.records.header import NO_PRODUCER

logger = logging.getLogger(__name__)

_FROM_BATCHES: Final = (names.INDEX, names.TIME_INDEX)
"""The files that are rebuilt from their segment alone."""


@attrs.define(eq=False, repr=False)
class IndexRepair:
    """The wrong index files of one directory's closed segments."""

    directory: LogDirectory
    in_thread: InThread
    wrong_count: int = attrs.field(init=False, default=0)
    """The number of index files that were found wrong; one that stays wrong counts again."""
    rebuilt_count: int = attrs.field(init=False, default=0)
    """The number of these that were rebuilt."""

    async def repair(
        self, log: PartitionLog, segment: Segment, wrong: Sequence[WrongEntry]
    ) -> None:
        """Report a segment's wrong index files and rebuild them; raises OSError."""
        if not wrong or segment.has_indexes:
            return  # A flush is about to replace the files, and nothing reads them.
        for each in wrong:
            self._report(segment, each)
        suffixes = {each.suffix for each in wrong}
        self.wrong_count += len(suffixes)
        others = suffixes.intersection(_FROM_BATCHES)
        if others and await self._rebuild(log, segment):
            self._note_rebuilt(segment, sorted(others))
        if names.TXN_INDEX in suffixes and await self._rebuild_aborted(log, segment):
            self._note_rebuilt(segment, [names.TXN_INDEX])

    def _report(self, segment: Segment, wrong: WrongEntry) -> None:
        logger.error(
            "wrong index file=%s/%s position=%d reason=%s",
            self.directory.name,
            segment.files.path(wrong.suffix),
            wrong.position,
            wrong.reason,
        )

    def _note_rebuilt(self, segment: Segment, suffixes: Sequence[str]) -> None:
        self.rebuilt_count += len(suffixes)
        for suffix in suffixes:
            path = segment.files.path(suffix)
            logger.warning("rebuilt index file=%s/%s", self.directory.name, path)

    def _is_here(self, log: PartitionLog, segment: Segment) -> bool:
        """Return whether a segment is still a closed one of its log."""
        segments = log.segments
        index = segments.index_of(segment.base_offset)
        return (
            self.directory.holds(log)
            and segments[index] is segment
            and segment is not segments.active
        )

    async def _rebuild(self, log: PartitionLog, segment: Segment) -> bool:
        """Rebuild the offset and time index of a segment; return whether that was done.

        A lookup that needs them meanwhile builds and replaces them itself.
        """
        repair = segment.repair = segment.repair or Repair(segment)
        with trio.CancelScope(shield=True):
            await self.in_thread(log.disk, repair.build)
            if self._is_here(log, segment) and segment.repair is repair:
                segment.reindex()
            else:
                await self.in_thread(log.disk, repair.discard)
        return self._is_here(log, segment)

    async def _rebuild_aborted(self, log: PartitionLog, segment: Segment) -> bool:
        """Rebuild the index of aborted transactions; return whether that was done."""
        removal_count = log.clean_state.removal_count

        def is_unchanged() -> bool:
            return log.clean_state.removal_count == removal_count and self._is_here(log, segment)

        producers = await self._producers_before(log, segment, is_unchanged)
        if producers is None:
            return False
        rebuild = _AbortedRebuild(shadow_of(segment), producers)
        with trio.CancelScope(shield=True):
            await self.in_thread(log.disk, rebuild.build)
            if is_unchanged():
                rebuild.replace(segment)
                return True
            await self.in_thread(log.disk, rebuild.discard)
        return False

    async def _producers_before(
        self, log: PartitionLog, segment: Segment, is_unchanged: Callable[[], bool]
    ) -> ProducerStates | None:
        """Return the producers at the start of a segment; None if the log was cut meanwhile."""
        rebuild = log.snapshots.rebuilding(segment.base_offset, 0)

        async def read(call: Callable[[], None]) -> None:
            with trio.CancelScope(shield=True):  # The file stays pinned until it is read.
                await self.in_thread(log.disk, call)

        return await finish_rebuild(rebuild, read, trio.lowlevel.checkpoint, is_unchanged)


class _AbortedRebuild:
    """The new index of a segment's aborted transactions."""

    __slots__ = ("_copy", "_path", "_producers", "is_empty")

    def __init__(self, copy: Segment, producers: ProducerStates) -> None:
        """``copy`` has its own files; ``producers`` are those at its start."""
        self._copy = copy
        self._producers = producers
        self._path = copy.files.unmarked_path(names.TXN_INDEX + TEMPORARY)
        self.is_empty = True
        """True if the segment has no marker of an abort that needs an entry."""

    def build(self) -> None:
        """Write the new file, in a thread; raises OSError."""
        copy, states, packed = self._copy, self._producers, bytearray()
        try:
            for position, header in copy.scan():
                if header.producer_id > NO_PRODUCER:
                    data = copy.file.read(position, header.size) if header.is_control else b""
                    aborted = states.replay(data, 0, header)
                    packed += b"" if aborted is None else txn_index.pack(aborted)
        finally:
            copy.file.close()
        self.is_empty = not packed
        if packed:
            try:
                copy.files.disk.write(self._path, packed)
                copy.files.disk.sync(self._path)
            except OSError:
                with suppress(OSError):
                    self.discard()
                raise

    def replace(self, segment: Segment) -> None:
        """Replace the segment's file, on the event loop; raises OSError."""
        aborted, files = segment.indexes.aborted, segment.files
        if self.is_empty:
            # Without the file, the mark has the next start rebuild the index.
            files.remove(names.TXN_INDEX, names.ABORTED)
        else:
            files.write(names.ABORTED, b"")
            files.disk.rename(self._path, files.path(names.TXN_INDEX))
        aborted.drop()
        aborted.has_no_file = self.is_empty

    def discard(self) -> None:
        """Remove the new file, in a thread."""
        self._copy.files.disk.remove(self._path)
