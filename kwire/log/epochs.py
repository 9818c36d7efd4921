"""The start offset of each leader epoch: ``leader-epoch-checkpoint``.

Both epochs and start offsets increase from entry to entry. The file is text (``0``, count, lines
``epoch start_offset``); if it is damaged, it is rebuilt from the batches. Truncation and the epoch
comparison of KIP-101, 279 and 320 depend on it.
"""

from bisect import bisect_left, bisect_right
from collections.abc import Callable
from typing import Final

import attrs

VERSION: Final = 0
UNDEFINED: Final = (-1, -1)


def _nothing() -> None: ...


@attrs.define(eq=False, repr=False)
class LeaderEpochs:
    """The epochs of one log, oldest first."""

    on_change: Callable[[], None] = _nothing
    """Called after each change, so that the log writes the file."""
    _epochs: list[int] = attrs.Factory(list)
    _starts: list[int] = attrs.Factory(list)

    @property
    def latest(self) -> int | None:
        return self._epochs[-1] if self._epochs else None

    def entries(self) -> list[tuple[int, int]]:
        """Return pairs of epoch and start offset, oldest first."""
        return list(zip(self._epochs, self._starts, strict=True))

    def between(self, start_offset: int, end_offset: int) -> list[tuple[int, int]]:
        """Return the entries of the records from ``start_offset`` to below ``end_offset``."""
        first = max(bisect_right(self._starts, start_offset) - 1, 0)
        stop = bisect_left(self._starts, end_offset)
        return list(zip(self._epochs[first:stop], self._starts[first:stop], strict=True))

    def assign(self, epoch: int, start_offset: int) -> bool:
        """Record that ``epoch`` begins at ``start_offset``; return whether that added an entry.

        Entries that contradict the new one (with a later epoch, or a start offset that is not below
        it) are removed, because their batches no longer exist. An entry of the epoch itself stays:
        a former leader that has lost records notes the beginning of its epoch at the end of its
        log, and then copies batches of the epoch before it.
        """
        if epoch < 0 or (self._epochs and epoch == self._epochs[-1]):
            return False
        while self._epochs and (self._epochs[-1] > epoch or self._starts[-1] >= start_offset):
            self._epochs.pop()
            self._starts.pop()
        is_new = not self._epochs or self._epochs[-1] < epoch
        if is_new:
            self._epochs.append(epoch)
            self._starts.append(start_offset)
        self.on_change()
        return is_new

    def end_of(self, epoch: int, log_end_offset: int) -> tuple[int, int]:
        """Return the largest epoch up to ``epoch`` in this log, and its end offset.

        Return (-1, -1) if ``epoch`` is newer than all entries. An epoch that is older than all
        entries is returned unchanged, with the start offset of the first entry.
        """
        if not self._epochs or epoch < 0 or epoch > self._epochs[-1]:
            return UNDEFINED
        if epoch == self._epochs[-1]:
            return epoch, log_end_offset
        index = bisect_right(self._epochs, epoch)
        return self._epochs[index - 1] if index else epoch, self._starts[index]

    def at(self, offset: int) -> int | None:
        """Return the epoch of the record at ``offset``."""
        index = bisect_right(self._starts, offset)
        return self._epochs[index - 1] if index else None

    def previous(self, epoch: int) -> int | None:
        """Return the latest epoch in this log before ``epoch``."""
        older = [other for other in self._epochs if other < epoch]
        return older[-1] if older else None

    def truncate_end(self, end_offset: int) -> bool:
        """Remove epochs that begin at or past ``end_offset``; return whether there were any."""
        before = len(self._starts)
        while self._starts and self._starts[-1] >= end_offset:
            self._epochs.pop()
            self._starts.pop()
        if len(self._starts) == before:
            return False
        self.on_change()
        return True

    def truncate_start(self, start_offset: int) -> bool:
        """Remove the epochs below ``start_offset``; the first remaining epoch now begins there.

        Return whether anything changed.
        """
        passed = bisect_right(self._starts, start_offset)
        if not passed or (passed == 1 and self._starts[0] == start_offset):
            return False
        del self._epochs[: passed - 1], self._starts[: passed - 1]
        self._starts[0] = start_offset
        self.on_change()
        return True

    def clear(self) -> None:
        self._epochs.clear()
        self._starts.clear()
        self.on_change()

    def replace(self, other: "LeaderEpochs") -> None:
        """Adopt the entries of ``other``, which come from the file, without rewriting the file."""
        self._epochs, self._starts = list(other._epochs), list(other._starts)

    def to_text(self) -> bytes:
        """Return the checkpoint file's content."""
        lines = [f"{epoch} {start}\n" for epoch, start in self.entries()]
        return f"{VERSION}\n{len(lines)}\n{''.join(lines)}".encode()


def from_text(data: bytes) -> LeaderEpochs:
    """Parse a checkpoint file; raises ValueError if it is torn, empty or out of order."""
    lines = data.decode("ascii").split("\n")
    if len(lines) < 3 or lines[0] != "0" or lines[-1]:
        raise ValueError("not a leader epoch checkpoint")
    pairs = [(int(epoch), int(start)) for epoch, start in (line.split() for line in lines[2:-1])]
    if len(pairs) != int(lines[1]):
        raise ValueError("leader epoch checkpoint is cut off")
    epochs = LeaderEpochs()
    for epoch, start in pairs:
        epochs.assign(epoch, start)
    if epochs.entries() != pairs:
        raise ValueError("leader epochs out of order")
    return epochs
