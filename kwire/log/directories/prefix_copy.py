"""Replaces all closed segments of a log by another replica's batches for the same offsets.

This repairs a compacted log whose damaged batches no other replica has in the same form. Rules: the
copy ends where the active segment begins. Compaction has removed nothing after that point, so the
later values and tombstones of each key in the copy are still there. The copy is written beside the
log, and swapped in as a whole, like the segments of a cleaning pass. Before that, the cleaner's
checkpoint is lowered to the start of the log, because the other replica may have cleaned less. The
copy is dropped if records were removed from the log meanwhile. It is also dropped if it took longer
than ``delete.retention.ms``: the other replica may then have removed a tombstone after it has
supplied the value.

No copy is made during a move of the log, or while a directory that may have its future replica is
offline: a future replica that has already copied a value would never get the tombstone that the
copy lacks. Before each segment, the volume must have room for the segment and for producers,
because a full volume stops all producers.

No compaction pass runs meanwhile: both write ``.cleaned`` files.
"""

import logging
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from functools import partial
from typing import Final

import attrs
import trio

from kwire.drive import Slices
from kwire.errors import KafkaStorageError
from kwire.log.compaction.batch_filter import KeptBatch
from kwire.log.compaction.group_writer import GroupWriter
from kwire.log.compaction.job import NewSegment
from kwire.log.directories.directory_service import DirectoryService
from kwire.log.directories.segment_swap import PassVoid, remove_cleaned
from kwire.log.disk import Disk, Space
from kwire.log.error_mapping import storage_error
from kwire.log.fetched_batches import NO_EPOCH
from kwire.log.formats import names
from kwire.log.formats.txn_index import AbortedTxn
from kwire.log.partition_log import PartitionLog
from kwire.log.producers import ProducerStates
from kwire.records.build import assemble
from kwire.records.header import (
    NO_PRODUCER,
    NO_SEQUENCE,
    NO_TIMESTAMP,
    BatchHeader,
    Buffer,
)

logger = logging.getLogger(__name__)


ROOM_SHARE: Final = 20
"""A copy leaves the volume's size divided by this number free."""


class CopyVoid(Exception):
    """The copy cannot replace the log's segments; another attempt may succeed."""


@attrs.define(eq=False, repr=False)
class PrefixCopy:
    """The copy of one log's closed segments; ``append`` writes the next batches."""

    services: Mapping[Disk, DirectoryService]
    log: PartitionLog
    end_offset: int
    """The base offset of the active segment at the start."""
    next_offset: int
    """The end of the batches so far."""
    _sources: tuple[int, ...]
    _modified_ms: int
    """The modification time of the last closed segment."""
    _removal_count: int
    _began: float
    _writer: GroupWriter | None = attrs.field(init=False, default=None)
    _segments: list[NewSegment] = attrs.field(init=False, factory=list)
    _producers: ProducerStates = attrs.field(init=False, factory=ProducerStates)
    """The transactions of the copied batches."""
    _aborted: list[AbortedTxn] = attrs.field(init=False, factory=list)
    """The aborted transactions that end in the segment that is being written."""

    @property
    def service(self) -> DirectoryService:
        """The service of the log's directory."""
        return self.services[self.log.disk]

    async def append(self, data: Buffer, batches: Sequence[tuple[int, BatchHeader]]) -> None:
        """Write whole batches, given by their positions in ``data``; the caller has checked them.

        Raises :class:`CopyVoid`, KafkaStorageError, and CleaningFailed for a gap that is too wide
        for a segment.
        """
        self.check()
        slices, view = Slices(self.service.clock.now), memoryview(data)
        for position, header in batches:
            batch = view[position : position + header.size]
            await self._append(batch, header)
            await slices.pause()
        if self._writer is not None:
            await self._in_thread(self._writer.write)

    async def finish(self) -> None:
        """Complete the copy and replace the closed segments.

        Raises :class:`CopyVoid` and KafkaStorageError; the segments are unchanged then.
        """
        if self.next_offset < self.end_offset:
            await self._fill()
        await self._close_segment()
        self.check()
        checkpoints, state = self.service.checkpoints, self.log.clean_state
        state.clean_end = self._sources[0]
        if not await checkpoints.write(names.CLEANER_OFFSETS):
            raise KafkaStorageError(f"{self.log.partition}: cannot store the cleaner's offset")
        swap = self.service.cleaning.swap
        try:
            await swap.replace(self.log, self._sources, self._segments, self._is_valid)
        except PassVoid as error:
            self.check()
            raise CopyVoid("the segments of the log have changed") from error
        except OSError as error:
            raise storage_error(self.log.changes, error) from error
        logger.warning(
            "replaced closed segments partition=%s offset=%d end_offset=%d segments=%d bytes=%d",
            self.log.partition,
            self._sources[0],
            self.end_offset,
            len(self._segments),
            sum(segment.size for segment in self._segments),
        )

    def close(self) -> None:
        """Close the file that is being written."""
        if self._writer is not None:
            self._writer.close()
            self._writer = None

    def check(self) -> None:
        """Raise :class:`CopyVoid` if the copy must not replace the segments."""
        if problem := self._problem():
            raise CopyVoid(problem)

    def _is_valid(self) -> bool:
        return not self._problem()

    def _problem(self) -> str:
        """Return why the copy must not replace the segments; empty if it may."""
        log = self.log
        if not self.service.directory.holds(log):
            return "this broker no longer has the log"
        if log.clean_state.removal_count != self._removal_count:
            return "the log was truncated"
        directories = [service.directory for service in self.services.values()]
        if any(log.partition in directory.futures for directory in directories):
            return "the log is being moved"
        if not all(directory.online for directory in directories):
            return "a log directory is offline"
        elapsed_s = self.service.clock.now() - self._began
        if elapsed_s * 1000 >= log.config.delete_retention_ms:
            return "the copy takes longer than delete.retention.ms"
        return ""

    async def _append(self, batch: Buffer, header: BatchHeader) -> None:
        writer = self._writer
        if writer is not None and not writer.has_room(header.size, header.last_offset):
            await self._close_segment()
            writer = None
        if writer is None:
            writer = await self._open_segment()
        if header.is_transactional:
            aborted = self._producers.replay(batch, 0, header)
            if aborted is not None:
                self._aborted.append(aborted)
            self._producers.drop_replicated(self.end_offset)
        writer.append(KeptBatch(batch, header.max_timestamp, header.next_offset))
        self.next_offset = header.next_offset

    async def _fill(self) -> None:
        """End the copy with an empty batch, because the other replica lacks the last batches."""
        last_offset = self.end_offset - 1
        epoch = self.log.epochs.at(last_offset)
        header = BatchHeader(
            base_offset=last_offset,
            length=0,
            leader_epoch=NO_EPOCH if epoch is None else epoch,
            magic=2,
            crc=0,
            attributes=0,
            last_offset_delta=0,
            base_timestamp=NO_TIMESTAMP,
            max_timestamp=NO_TIMESTAMP,
            producer_id=NO_PRODUCER,
            producer_epoch=-1,
            base_sequence=NO_SEQUENCE,
            record_count=0,
        )
        data = assemble(header, b"")
        await self._append(data, header._replace(length=len(data) - header.size))

    async def _open_segment(self) -> GroupWriter:
        """Begin a segment at the end of the last batch, so that no source lies between the two."""
        opened = list[GroupWriter]()
        log = self.log
        new = partial(GroupWriter, log.disk, log.segments.directory, log.config, self.next_offset)
        spaces = list[Space]()
        await self._in_thread(lambda: spaces.append(log.disk.space()))
        needed = max(2 * log.config.segment_bytes, spaces[0].total // ROOM_SHARE)
        if spaces[0].usable < needed:
            raise CopyVoid(f"the volume has {spaces[0].usable} free bytes; it needs {needed}")
        await self._in_thread(lambda: opened.append(new()))
        self._writer = opened[0]
        return opened[0]

    async def _close_segment(self) -> None:
        writer = self._writer
        if writer is None:
            return
        modified_ms = self._modified_ms
        segments = list[NewSegment]()
        await self._in_thread(lambda: segments.append(writer.finish(self._aborted, modified_ms)))
        self.close()
        self._segments += segments
        self._aborted = []

    async def _in_thread(self, call: Callable[[], None]) -> None:
        try:
            with trio.CancelScope(shield=True):
                await self.service.in_thread(self.log.disk, call)
        except OSError as error:
            raise storage_error(self.log.changes, error) from error


@asynccontextmanager
async def copying_prefix(
    services: Mapping[Disk, DirectoryService], log: PartitionLog
) -> AsyncIterator[PrefixCopy]:
    """Return a context in which the log's closed segments can be copied from another replica.

    Raises :class:`CopyVoid` if that is not possible now, and KafkaStorageError.
    """
    service = services[log.disk]
    states = service.busy.cleaning
    with states.pause(log):
        if states.is_cleaning(log):
            raise CopyVoid("a compaction pass is ending")
        copy = await _begin(services, log)
        try:
            yield copy
        finally:
            copy.close()
            if service.directory.online and service.directory.holds(log):
                remove = partial(remove_cleaned, log.disk, log.segments.directory)
                with trio.CancelScope(shield=True):
                    await service.in_thread(log.disk, remove)


async def _begin(services: Mapping[Disk, DirectoryService], log: PartitionLog) -> PrefixCopy:
    """Make the closed segments durable, so that recovery need not judge gaps in the copy."""
    service = services[log.disk]
    removal_count, end_offset = log.clean_state.removal_count, log.segments.active.base_offset
    closed = log.segments[:-1]
    if not closed or end_offset > log.high_watermark:
        raise CopyVoid(f"the high watermark is below {end_offset}")
    sources = tuple(segment.base_offset for segment in closed)
    copy = PrefixCopy(
        services,
        log,
        end_offset,
        sources[0],
        sources,
        closed[-1].modified_ms,
        removal_count,
        service.clock.now(),
    )
    copy.check()
    await service.flusher.flush(log, end_offset, indexes=True)
    if not await service.checkpoints.write(names.RECOVERY_POINTS):
        raise KafkaStorageError(f"{log.partition}: cannot store the recovery point")
    return copy
