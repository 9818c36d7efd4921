"""The progress of a log's compaction, and the removals that invalidate a running pass.

Rules: the log itself reports every removal of records here, so a pass that missed a removal cannot
replace segments. Records appended after a truncation count as dirty: a tombstone among them must
not be removed before a pass has read it.
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
        """Incremented by each removal of records, which invalidates passes that began before."""
        self.on_change: Callable[[], None] = _ignore
        """Called when the log may have become due: a segment was closed, or a setting changed."""

    def on_removed(self, cut_offset: int | None = None) -> None:
        """Record that records were removed; with ``cut_offset``, all from that offset onwards.

        ``cut_offset`` is the base offset of the segment that receives the next append.
        """
        self.removal_count += 1
        if cut_offset is not None and self.clean_end is not None:
            self.clean_end = min(self.clean_end, cut_offset)
