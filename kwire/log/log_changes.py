"""The notification that a log has changed, which makes its service write checkpoints and flush."""

from collections.abc import Callable

from kwire.types import TopicPartition


def _ignore() -> None: ...


class LogChanges:
    """The changes of one log since its last checkpoint."""

    __slots__ = ("is_marked", "on_change", "partition")

    def __init__(self, partition: TopicPartition) -> None:
        self.partition = partition
        self.on_change: Callable[[], None] = _ignore
        """Called for the first change since :meth:`clean`, for the first append after a flush has
        started, when settings change while records are unsynced, and after a failure
        (``disk.failed``)."""
        self.is_marked = False
        """True if there was a change since :meth:`clean`."""

    def mark(self) -> None:
        """Record a change, and call :attr:`on_change`."""
        self.is_marked = True
        self.on_change()

    def clean(self) -> None:
        """Reset before checkpoints are written: the next change calls :attr:`on_change`."""
        self.is_marked = False
