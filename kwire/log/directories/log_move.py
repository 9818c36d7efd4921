"""The move of one log to another log directory: the copy, and the switch to the copy (KIP-113).

Rules:

* The future replica is a log like any other. It receives the current log's batches unchanged, in
  slices that threads read, and its segments begin at the same offsets. Cleaning of the current log
  is paused meanwhile.
* Before each slice, the future replica adopts changes of the current log: it is truncated to the
  records that the two have in common according to their leader epochs, and gets the same log start.
* The switch is one synchronous step on the event loop, so no append or read can interfere: the
  future replica gets the remaining records, the rest of the current log's state, and its final
  name. At that time the future replica must be at least as durable as the current log. For that,
  the current log is claimed, and no flush of it starts while the last sync of the future replica
  runs.
* The old directory is marked ``-delete`` once the new name is on disk. A crash at any step leaves
  either the current log, or two directories of which :mod:`kwire.log.directories.future_logs` knows
  the outdated one.
"""

from collections.abc import Callable, Iterator
from contextlib import suppress
from functools import partial
from typing import Final

import attrs
import trio

from kwire.clock import Clock
from kwire.drive import Slices
from kwire.errors import KafkaStorageError
from kwire.log.cold_lookups import MAY_WAIT, WouldWait
from kwire.log.directories import future_logs
from kwire.log.directories.directory_service import DirectoryService
from kwire.log.directories.move_rules import Throttle
from kwire.log.epochs import LeaderEpochs
from kwire.log.error_mapping import storage_error
from kwire.log.formats import names
from kwire.log.partition_log import PartitionLog
from kwire.log.producers import CorruptSnapshot, iterate_snapshot
from kwire.log.region import FileRegion
from kwire.log.segments.segment import Segment
from kwire.records.header import headers

SLICE_BYTES: Final = 256 * 1024
"""The bytes that a thread reads at once."""
SLICE_BATCHES: Final = 32
"""The number of batches that are appended between two pauses."""
LAST_BYTES: Final = 4 * 1024
LAST_SLICES: Final = 4
"""The number of slices that the switch itself may copy on the event loop."""
PAUSE_MIN_S: Final = 0.01
CHECKPOINTS: Final = (names.RECOVERY_POINTS, names.HIGH_WATERMARKS, names.LOG_STARTS)


class MoveEnded(Exception):
    """The current log or the future replica is gone: there is nothing to move."""


def matching_end(
    future: LeaderEpochs, future_end: int, current: LeaderEpochs, current_end: int
) -> int:
    """Return the offset below which the future replica has the current log's records (KIP-101)."""
    end_offset = min(future_end, current_end)
    for epoch, start in reversed(future.entries()):
        nearest, epoch_end = current.end_of(epoch, current_end)
        if nearest == epoch:
            return min(end_offset, epoch_end)
        end_offset = min(end_offset, start)
    return end_offset


def _batches(data: bytes) -> Iterator[memoryview]:
    """Yield whole batches, a few at a time."""
    view, start, end = memoryview(data), 0, 0
    for count, (position, header) in enumerate(headers(data), 1):
        end = position + header.size
        if not count % SLICE_BATCHES:
            yield view[start:end]
            start = end
    if end > start:
        yield view[start:end]


@attrs.define(eq=False, repr=False)
class LogMove:
    """One log and its future replica."""

    log: PartitionLog
    """The current log."""
    future: PartitionLog
    source: DirectoryService
    target: DirectoryService
    throttle: Throttle
    clock: Clock
    unique: Callable[[], bytes]
    on_moved: Callable[[PartitionLog, PartitionLog], None]
    """Called in the switch, with the old log and the new one."""

    @property
    def is_possible(self) -> bool:
        """True while both directories are online and hold their logs."""
        source, target = self.source, self.target
        return (
            source.directory.online
            and target.directory.online
            and source.directory.logs.get(self.log.partition) is self.log
            and self.log not in source.deleted_logs
            and target.directory.futures.get(self.log.partition) is self.future
        )

    def _check(self) -> None:
        if not self.is_possible:
            raise MoveEnded

    # -- the copy

    async def copy(self, *, is_throttled: bool = True) -> None:
        """Copy until the future replica ends where the current log ends.

        Raises MoveEnded, KafkaStorageError, and what :meth:`PartitionLog.append_follower` raises.
        """
        while True:
            await self._wait_written()
            if is_throttled:
                await self._wait_rate()
            self._check()
            # A later cut of the current log must be noticed: once batches of the next epoch follow
            # the cut, the epochs no longer show the divergence.
            removal_count = self.log.clean_state.removal_count
            await self._follow_cuts()
            self._check()
            if self.log.clean_state.removal_count != removal_count:
                continue
            if self.future.end_offset == self.log.writer.written_offset:
                return
            await self._copy_slice(removal_count)

    async def _copy_slice(self, removal_count: int) -> None:
        """Copy the next slice, unless records were removed since ``removal_count`` was read."""
        log, future = self.log, self.future

        def has_changed() -> bool:
            return log.clean_state.removal_count != removal_count or not self.is_possible

        for may_wait in MAY_WAIT:
            try:
                segment, region = self._locate(SLICE_BYTES, wait=may_wait)
                break
            except WouldWait as cold:
                await self._in_thread(cold.job)
        data: list[bytes] = []
        with region:
            await self._in_thread(lambda: data.append(region.read()))
        if segment is not None:
            await self._restore_producers(segment.base_offset)
        if has_changed():
            return
        if segment is not None:
            future.roll(self.clock.now_ms(), segment.base_offset)
        slices = Slices(self.clock.now)
        for batches in _batches(data[0]):
            future.append_follower(batches, self.clock.now_ms())
            self.throttle.record(len(batches), self.clock.now())
            await slices.pause()
            if has_changed():
                return
        if not data[0] and not log.segments.active.size:
            self._skip_to(log.segments.active.base_offset)

    def _locate(self, max_bytes: int, *, wait: bool) -> tuple[Segment | None, FileRegion]:
        """Return the next slice, and the segment that the future replica must begin first."""
        log, offset = self.log, self.future.end_offset
        written = log.writer.written_offset
        region = log.segments.read(offset, max_bytes, written, written, True, wait)
        for index in range(log.segments.index_of(offset), len(log.segments)):
            segment = log.segments[index]
            if segment.file is region.file:
                is_next = segment.base_offset > self.future.segments.active.base_offset
                return segment if is_next and offset <= segment.base_offset else None, region
        return None, region

    def _skip_to(self, offset: int) -> None:
        """Begin an empty segment at ``offset``; compaction removed the batches before it."""
        future = self.future
        future.roll(self.clock.now_ms(), offset)
        future.end_offset = future.writer.written_offset = offset

    async def _restore_producers(self, offset: int) -> None:
        """Restore the producers at the start of a segment from the current log's snapshot.

        The batches do not show all producers, because some batches may have been deleted.
        """
        snapshots, data = self.log.snapshots, list[bytes]()
        if offset not in snapshots.offsets:
            return
        with suppress(CorruptSnapshot, FileNotFoundError):
            await self._in_thread(lambda: data.append(snapshots.read(offset)))
            stored, slices = iterate_snapshot(data[0]), Slices(self.clock.now)
            for _ in self.future.producers.restoring(stored):
                await slices.pause()
            if not self.future.segments.active.size:  # Otherwise the next roll takes it.
                self.future.snapshots.take_at_flush(offset)

    async def begin(self) -> None:
        """Prepare a future replica that is still empty."""
        await self._restore_producers(self.future.end_offset)

    async def _in_thread(self, call: Callable[[], None]) -> None:
        """Make a call that reads the current log; raises KafkaStorageError."""
        try:
            await self.source.in_thread(self.log.disk, call)
        except FileNotFoundError:
            raise
        except OSError as error:
            raise storage_error(self.log.changes, error) from error

    async def _wait_written(self) -> None:
        """Wait until a slow target has written the previous slices."""
        while self.future.writer.written_offset < self.future.end_offset:
            self._check()
            event = self.target.busy.queues.get(self.future)
            if event is None:
                raise KafkaStorageError(f"{self.target.directory.name}: no room")
            await event.wait()

    async def _wait_rate(self) -> None:
        while self.throttle.is_exceeded(self.clock.now()):
            pause_s = self.throttle.pause_s(self.clock.now())
            await trio.sleep(max(pause_s, PAUSE_MIN_S))

    # -- changes of the current log

    async def _follow_cuts(self) -> None:
        """Remove records that the current log no longer has, and adopt its settings."""
        log, future, truncation = self.log, self.future, self.target.truncation
        self._adopt_config()
        common_end = self._common_end()
        if common_end < future.end_offset:
            await truncation.truncate(future, common_end)
            if future.end_offset > common_end:
                self._cannot_cut(common_end)
        first = log.segments[0].base_offset
        if future.end_offset < first or future.segments[0].base_offset > first:
            if not await truncation.restart_at(future, first):
                self._cannot_cut(first)
            await self._restore_producers(first)
        # A power loss could undo the cut after new batches were appended.
        if future.flush_state.cut_unsynced:
            await self.target.flusher.flush(future, indexes=True)
        await self._drop_segments(log.segments[0].base_offset)
        future.advance_log_start(min(log.log_start, future.end_offset))
        future.high_watermark = min(log.high_watermark, future.end_offset)

    def _cannot_cut(self, offset: int) -> None:
        """Raise an error after a failed cut, which batches of the next epoch would hide."""
        self._check()
        raise KafkaStorageError(f"{self.target.directory.name}: cannot truncate to {offset}")

    def _adopt_config(self) -> None:
        if self.future.config is not self.log.config:
            self.future.configure(self.log.config)

    def _common_end(self) -> int:
        log, future = self.log, self.future
        return matching_end(future.epochs, future.end_offset, log.epochs, log.end_offset)

    async def _drop_segments(self, first: int) -> None:
        """Drop the segments below the current log's first one."""
        future, slices = self.future, Slices(self.clock.now)
        while len(future.segments) > 1 and future.segments[1].base_offset <= first:
            await self.target.busy.wait_idle(future)
            self._check()
            segment = future.segments[0]
            future.on_removed(future, [segment], future.drop_segments(1))
            self.target.flusher.on_roll(future)
            await slices.pause()

    # -- the switch

    async def switch(self) -> bool:
        """Replace the current log by the future replica; return False to try again after a copy.

        Raises as :meth:`copy` does; the current log stays in use then.
        """
        try:
            future_logs.check_vacant(self.target, self.log.partition)
            future_logs.mark_moved(self.future, self.source.directory)
        except OSError as error:
            raise storage_error(self.future.changes, error) from error
        await self.target.flusher.flush(self.future, indexes=True)
        async with self.source.busy.claim(self.log):
            if not await self._try_switch():
                return False
            with trio.CancelScope(shield=True):
                await self._remove_old()
            return True

    async def _try_switch(self) -> bool:
        target, future, log = self.target, self.future, self.log
        await self._in_thread(partial(future_logs.unmark_durably, log))
        await self.copy(is_throttled=False)
        self._adopt_state()
        await target.flusher.flush(future, indexes=True)
        log_start, clean_end = future.log_start, future.clean_state.clean_end
        files = CHECKPOINTS if clean_end is None else (*CHECKPOINTS, names.CLEANER_OFFSETS)
        if not await target.checkpoints.write(*files):
            raise KafkaStorageError(f"{target.directory.name}: cannot store offsets")
        async with self.source.busy.hold(log):
            await self.copy(is_throttled=False)
            if future.flush_state.recovery_point < log.flush_state.recovery_point:
                await target.flusher.flush(future)
            await target.busy.wait_idle(future)
            self._check()
            self._copy_last()
            is_stored = (log_start, clean_end) == (log.log_start, log.clean_state.clean_end)
            if not is_stored or not self._is_equal():
                return False
            self._switch_now()
        return True

    def _copy_last(self) -> None:
        """Copy the batches that were appended since the last slice, if they are few."""
        for _ in range(LAST_SLICES):
            if self.future.end_offset == self.log.end_offset:
                return
            segment, region = self._locate(LAST_BYTES, wait=True)
            with region:
                if segment is not None:  # The next copy will begin the segment.
                    return
                self.future.append_follower(region.read(), self.clock.now_ms())

    def _is_equal(self) -> bool:
        """Return whether the future replica has everything, as durably as the current log."""
        log, future = self.log, self.future
        return (
            future.end_offset == log.end_offset == log.writer.written_offset
            and future.writer.written_offset == future.end_offset
            and future.flush_state.recovery_point >= log.flush_state.recovery_point
            and self._common_end() == future.end_offset
            and log.flush_state.cut_offset is None
        )

    def _adopt_state(self) -> None:
        """Adopt state that batches do not carry: settings, empty epochs, the cleaned part."""
        log, future = self.log, self.future
        self._adopt_config()
        future.clean_state.clean_end = log.clean_state.clean_end
        future.high_watermark = min(log.high_watermark, future.end_offset)
        if future.epochs.entries() != log.epochs.entries():
            future.epochs.replace(log.epochs)
            future.epochs_file.write()
            future.flush_state.unsynced.files.setdefault(names.EPOCHS_FILE, None)

    def _switch_now(self) -> None:
        log, future = self.log, self.future
        try:
            self._adopt_state()
            future_logs.promote(self.target, future)
        except OSError as error:
            raise storage_error(future.changes, error) from error
        future.producers.replace(log.producers)
        future.high_watermark = log.high_watermark
        future_logs.give_up(self.source, log)
        self.on_moved(log, future)

    async def _remove_old(self) -> None:
        """Remove the old directory, once the new name is on disk."""
        source, target = self.source, self.target
        try:
            await target.in_thread(target.directory.disk, target.directory.disk.sync_directory)
        except OSError:
            target.directory.note_failure()
            return
        try:
            future_logs.remove_moved(source, self.log, self.unique())
            await source.in_thread(source.directory.disk, source.directory.disk.sync_directory)
        except OSError:  # The file in the new directory tells the next start which one counts.
            self.log.segments.release()
            source.directory.note_failure()
            return
        if target.directory.holds(self.future):
            with suppress(OSError):
                future_logs.unmark_moved(self.future)
        await source.checkpoints.write(*source.directory.stale_files)
