"""The writer of one log directory's checkpoint files, which runs only after a change.

Rules: each directory has its own tasks, so that a directory that hangs does not hold up the others.
Its files have one writer at a time, and a file whose content is unchanged is not rewritten. Each
task has its own wake-up event, because one task may be woken while the other is writing. No task
wakes without a change.
"""

import logging
from collections.abc import Iterable
from functools import partial
from typing import Final

import attrs
import trio

from kwire.clock import Clock
from kwire.drive import Slices
from kwire.log.directories.directory import LogDirectory, sync_removed_markers
from kwire.log.disk_health import lacks_descriptors
from kwire.log.formats import checkpoints, names
from kwire.log.partition_log import PartitionLog
from kwire.log.threads import InThread
from kwire.waits import Signal

logger = logging.getLogger(__name__)

LINES_AT_ONCE: Final = 100
"""The number of lines of a checkpoint between two readings of the clock."""


@attrs.define(eq=False, repr=False)
class _Write:
    """One write of some checkpoint files, for all tasks that wait for it."""

    files: dict[str, None] = attrs.field(factory=dict)
    ended: trio.Event = attrs.field(factory=trio.Event)
    is_stored: bool | None = None
    """True if the files are on disk, False if not; None if the write was cancelled."""


@attrs.define(eq=False, repr=False)
class Checkpointer:
    """Writes the checkpoints of one directory."""

    directory: LogDirectory
    clock: Clock
    in_thread: InThread
    _changed_logs: set[PartitionLog] = attrs.field(init=False, factory=set)
    _changed: Signal = attrs.field(init=False, factory=Signal)
    """Set by a change; cleared before the high watermarks are written."""
    _offsets_changed: Signal = attrs.field(init=False, factory=Signal)
    """The corresponding signal for recovery points and log starts."""
    _contents: dict[str, bytes] = attrs.field(init=False, factory=dict)
    """The content that was last written to each file."""
    _running: _Write | None = attrs.field(init=False, default=None)
    _next: _Write = attrs.field(init=False, factory=_Write)
    """The write that starts once the running one has ended."""

    def mark(self, log: PartitionLog) -> None:
        """Record that a log has changed since its last checkpoint."""
        self._changed_logs.add(log)
        self._wake()

    def forget(self, log: PartitionLog) -> None:
        """Remove a deleted log from the changed ones."""
        self._changed_logs.discard(log)

    def _wake(self) -> None:
        self._changed.set()
        self._offsets_changed.set()

    async def keep_high_watermarks(self, interval_s: float) -> None:
        """Write the high watermarks at most once per interval, until cancelled."""
        while True:
            await self._changed.wait()
            await trio.sleep(interval_s)
            self._changed.clear()
            await self._clean_changed()
            await self.write(names.HIGH_WATERMARKS)

    async def _clean_changed(self) -> None:
        """Reset the changed logs; the task that waits for changes must not refer to a log."""
        changed_logs, self._changed_logs = self._changed_logs, set()
        slices = Slices(self.clock.now)
        for log in changed_logs:
            log.changes.clean()
            await slices.pause()

    async def keep_recovery_points(self, interval_s: float) -> None:
        """Write recovery points and log starts once per interval, until cancelled."""
        while True:
            await self._offsets_changed.wait()
            await trio.sleep(interval_s)
            self._offsets_changed.clear()
            files = [names.RECOVERY_POINTS, names.LOG_STARTS]
            if names.CLEANER_OFFSETS in self.directory.stale_files:
                files.append(names.CLEANER_OFFSETS)
            await self.write(*files)

    async def write(self, *files: str) -> bool:
        """Write the files whose content has changed; return whether all of them are on disk.

        While a write runs, all callers wait for the next one, which starts after their changes.
        """
        write = self._next
        write.files.update(dict.fromkeys(files))
        while not write.ended.is_set():
            if self._running is not None:
                await self._running.ended.wait()
            else:
                self._running, self._next = write, _Write()
                try:
                    write.is_stored = await self._write(write.files)
                finally:
                    self._running = None
                    write.ended.set()
        if write.is_stored is None:  # The task that was writing was cancelled.
            return await self.write(*files)
        return write.is_stored

    async def _write(self, files: Iterable[str]) -> bool:
        directory = self.directory
        retired = list(directory.retired.items())
        try:
            texts = {name: await self._text(name) for name in files}
            fresh = [
                (name, text) for name, text in texts.items() if self._contents.get(name) != text
            ]
            if not directory.online:
                return False
            if fresh:
                # A failed write may still have replaced some of the files.
                for name, _ in fresh:
                    self._contents.pop(name, None)
                await self.in_thread(directory.disk, partial(directory.write_checkpoints, fresh))
                self._contents.update(fresh)
            markers = [m for name in files for m in directory.forget_retired(name, retired)]
            if markers:
                directory.remove_markers(markers)
                sync = partial(sync_removed_markers, directory.disk, markers)
                await self.in_thread(directory.disk, sync)
        except OSError as error:
            logger.error("checkpoint failed directory=%s error=%s", directory.name, error)
            if not directory.note_failure() and lacks_descriptors(error):
                self._wake()
            return False
        return True

    async def _text(self, name: str) -> bytes:
        """Return a checkpoint's content, built in slices; each line is current when it is built."""
        slices = Slices(self.clock.now)
        lines = []
        for count, line in enumerate(self.directory.lines(name), 1):
            if line:
                lines.append(line)
            if not count % LINES_AT_ONCE:
                await slices.pause()
        return checkpoints.offsets_text(lines)
