"""The progress of a log's compaction, and the removals that make a running pass void.

Rules: every removal of records is reported here by the log itself, so a pass that does not know of
it cannot replace segments. After a cut, what is appended next counts as dirty: a tombstone there
must not be removed before it is read.
"""

from collections.abc import Callable


def _ignore() -> None: ...


class CleanState:
    """The state of one log's compaction."""

    __slots__ = ("clean_end", "on_change", "removal_count")

    def __init__(self) -> None:
        self.clean_end: int | None = None
        """The end of the part that compaction has cleaned; None before the first pass."""
        self.removal_count = 0
        """Raised by each removal of records; a pass that began before is void."""
        self.on_change: Callable[[], None] = _ignore
        """Called when the log may have become due: a segment was closed, or a setting changed."""

    def on_removed(self, cut_offset: int | None = None) -> None:
        """Note that records are removed; with ``cut_offset`` all from that offset on.

        The offset is the base offset of the segment that is appended to next.
        """
        self.removal_count += 1
        if cut_offset is not None and self.clean_end is not None:
            self.clean_end = min(self.clean_end, cut_offset)
