"""The notice that a log has changed, so that its service writes checkpoints and flushes."""

from collections.abc import Callable

from kwire.types import TopicPartition


def _ignore() -> None: ...


class LogChanges:
    """The changes of one log since its last checkpoint."""

    __slots__ = ("is_marked", "on_change", "partition")

    def __init__(self, partition: TopicPartition) -> None:
        self.partition = partition
        self.on_change: Callable[[], None] = _ignore
        """Called for the first change since :meth:`clean`, for the first append after the start of
        a flush, for changed settings of unsynced records, and after a failure (``disk.failed``)."""
        self.is_marked = False
        """Whether there was a change since :meth:`clean`."""

    def mark(self) -> None:
        """Note a change, and call :attr:`on_change`."""
        self.is_marked = True
        self.on_change()

    def clean(self) -> None:
        """Prepare for the checkpoints to be written: the next change is the first one again."""
        self.is_marked = False
