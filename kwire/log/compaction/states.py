"""The logs of one directory that are being cleaned, may not be cleaned now, or never again.

Rules: a partition has at most one pass, and a new one begins only when the processes and files of
the last one are gone. Whoever cuts, moves or removes a log pauses it first: that aborts its pass
and lets none begin before the last pause has ended. A log that a pass could not read stays as it
is until a restart.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from kwire import attrs
from kwire.log.partition_log import PartitionLog
from kwire.types import TopicPartition


@attrs.define(eq=False)
class CleaningStates:
    """The states of one directory's logs."""

    uncleanable: dict[TopicPartition, PartitionLog] = attrs.field(init=False, factory=dict)
    """Logs whose passes fail because of what they hold."""
    _passes: dict[TopicPartition, Callable[[], None]] = attrs.field(init=False, factory=dict)
    """The running passes, each with the function that aborts it."""
    _pauses: dict[PartitionLog, int] = attrs.field(init=False, factory=dict)
    _waiting: set[PartitionLog] = attrs.field(init=False, factory=set)
    """Logs for which a pass was refused or aborted; they are announced when the pauses end."""

    def is_cleaning(self, log: PartitionLog) -> bool:
        """Return whether a pass over the partition's log runs, or has not ended yet."""
        return log.partition in self._passes

    def may_clean(self, log: PartitionLog) -> bool:
        """Return whether a pass over a log may begin."""
        return not (self.is_cleaning(log) or log in self._pauses or self.is_uncleanable(log))

    def is_uncleanable(self, log: PartitionLog) -> bool:
        """Return whether passes over a log fail until a restart."""
        return self.uncleanable.get(log.partition) is log

    def note_uncleanable(self, log: PartitionLog) -> None:
        """Let no pass over a log begin before a restart."""
        self.uncleanable[log.partition] = log

    def announce_later(self, log: PartitionLog) -> bool:
        """Have a log announced as changed when its pauses end; return whether it is paused."""
        if log in self._pauses:
            self._waiting.add(log)
        return log in self._pauses

    @contextmanager
    def cleaning(self, log: PartitionLog, abort: Callable[[], None]) -> Iterator[None]:
        """Return a context for a pass, which ``abort`` asks to end; :meth:`may_clean` was true."""
        assert self.may_clean(log)
        self._passes[log.partition] = abort
        try:
            yield
        finally:
            del self._passes[log.partition]

    @contextmanager
    def pause(self, log: PartitionLog) -> Iterator[None]:
        """Return a context in which no pass over a log begins; a running one is aborted.

        The pass may still be ending inside the context: it replaces no segment any more, because
        the caller holds the log's claim or has found it idle.
        """
        self._pauses[log] = self._pauses.get(log, 0) + 1
        self.abort(log)
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
        """Ask the pass over a log to end, if there is one."""
        abort = self._passes.get(log.partition)
        if abort is not None:
            abort()

    def forget(self, log: PartitionLog) -> None:
        """Abort the pass over a log that was removed; what is known of the log is dropped."""
        self.abort(log)
        self._waiting.discard(log)
        if self.is_uncleanable(log):
            del self.uncleanable[log.partition]
