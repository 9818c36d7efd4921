"""The logs of one directory that are being cleaned, must not be cleaned now, or cannot be cleaned.

Rules: a partition has at most one pass, and a new pass starts only once the processes and files of
the last one are gone. Code that truncates, moves or removes a log pauses its cleaning first: this
aborts the current pass, and no pass starts until the last pause has ended. A log that a pass could
not read is excluded until a restart, or until its damage is repaired.

The same holds for the check of a log's segment by a scrub. The check only reads, so it also gives
way to cleaning, and nothing waits for its end.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager

import attrs

from kwire.log.partition_log import PartitionLog
from kwire.types import TopicPartition


@attrs.define(eq=False, repr=False)
class CleaningStates:
    """The states of one directory's logs."""

    uncleanable: dict[TopicPartition, PartitionLog] = attrs.field(init=False, factory=dict)
    """Logs whose passes fail because of their content."""
    _passes: dict[TopicPartition, Callable[[], None]] = attrs.field(init=False, factory=dict)
    """The running passes, each with the function that aborts it."""
    _scrubs: dict[PartitionLog, Callable[[], None]] = attrs.field(init=False, factory=dict)
    """The logs that are being scrubbed, each with the function that aborts the check."""
    _pauses: dict[PartitionLog, int] = attrs.field(init=False, factory=dict)
    _waiting: set[PartitionLog] = attrs.field(init=False, factory=set)
    """Logs for which a pass was rejected or aborted; they are marked as changed after the
    pauses."""

    def is_cleaning(self, log: PartitionLog) -> bool:
        """Return whether a pass over the partition's log has started and not ended yet."""
        return log.partition in self._passes

    def may_clean(self, log: PartitionLog) -> bool:
        """Return whether a pass over a log may start."""
        return not (self.is_cleaning(log) or log in self._pauses or self.is_uncleanable(log))

    def is_uncleanable(self, log: PartitionLog) -> bool:
        """Return whether the log is excluded from cleaning until a restart."""
        return self.uncleanable.get(log.partition) is log

    def note_uncleanable(self, log: PartitionLog) -> None:
        """Exclude a log from cleaning until a restart."""
        self.uncleanable[log.partition] = log

    def note_cleanable(self, log: PartitionLog) -> None:
        """Allow a log to be cleaned again, because its damage is repaired."""
        if self.is_uncleanable(log):
            del self.uncleanable[log.partition]
            log.clean_state.on_change()

    def announce_later(self, log: PartitionLog) -> bool:
        """Mark a paused log as changed once its pauses end; return whether it is paused."""
        if log in self._pauses:
            self._waiting.add(log)
        return log in self._pauses

    @contextmanager
    def cleaning(self, log: PartitionLog, abort: Callable[[], None]) -> Iterator[None]:
        """Return a context for a pass, which ``abort`` asks to end; needs :meth:`may_clean`."""
        assert self.may_clean(log)
        self.abort_scrub(log)
        self._passes[log.partition] = abort
        try:
            yield
        finally:
            del self._passes[log.partition]

    def may_scrub(self, log: PartitionLog) -> bool:
        """Return whether the check of one of the log's segments may start."""
        return not (self.is_cleaning(log) or log in self._pauses)

    @contextmanager
    def scrubbing(self, log: PartitionLog, abort: Callable[[], None]) -> Iterator[None]:
        """Return a context for a check, which ``abort`` ends; needs :meth:`may_scrub`."""
        assert self.may_scrub(log)
        self._scrubs[log] = abort
        try:
            yield
        finally:
            del self._scrubs[log]

    def abort_scrub(self, log: PartitionLog) -> None:
        """Ask the check of a log to end, if there is one."""
        abort = self._scrubs.get(log)
        if abort is not None:
            abort()

    @contextmanager
    def pause(self, log: PartitionLog, *, by_retention: bool = False) -> Iterator[None]:
        """Return a context in which no pass over a log starts; a running pass is aborted.

        The pass may still be ending inside the context, but it can no longer replace a segment,
        because the caller holds the log's claim or has found the log idle. A retention check calls
        :meth:`abort_scrub` only if it removes a segment; otherwise the periodic checks would abort
        every slow scrub.
        """
        self._pauses[log] = self._pauses.get(log, 0) + 1
        self._abort_pass(log)
        if not by_retention:
            self.abort_scrub(log)
        try:
            yield
        finally:
            self._pauses[log] -= 1
            if not self._pauses[log]:
                del self._pauses[log]
                if log in self._waiting:
                    self._waiting.discard(log)
                    log.clean_state.on_change()

    def abort(self, log: PartitionLog) -> None:
        """Ask the running pass over a log, or its check, to end."""
        self.abort_scrub(log)
        self._abort_pass(log)

    def _abort_pass(self, log: PartitionLog) -> None:
        abort = self._passes.get(log.partition)
        if abort is not None:
            abort()

    def forget(self, log: PartitionLog) -> None:
        """Abort the pass over a log that was removed, and drop the log's states."""
        self.abort(log)
        self._waiting.discard(log)
        if self.is_uncleanable(log):
            del self.uncleanable[log.partition]
