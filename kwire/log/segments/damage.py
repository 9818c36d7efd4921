"""The known damage of a segment: the ranges of its file whose batches cannot be read.

Rules: the ranges of a segment are in order and do not overlap. A range begins at the start of
the file or at the end of an intact batch, and ends where the next intact batch begins or at the end
of the file; so scans skip a range as if its bytes were not there, and no read returns a byte of it.
Without damage, this module is not loaded.
"""

import attrs

from kwire.errors import CorruptMessage, KafkaError, KafkaStorageError


@attrs.define(eq=False, repr=False)
class DamagedRange:
    """A range of a segment's file without a readable batch; ends are exclusive."""

    first_offset: int
    """The offset after the intact batch before the range."""
    end_offset: int
    """The base offset of the next intact batch, or of the next segment."""
    position: int
    """The position in the file, in bytes."""
    end_position: int
    reason: str
    is_under_repair: bool = False
    """True while another replica is expected to supply the bytes soon."""
    is_lost: bool = False
    """True if the partition has no other replica that could supply the bytes."""

    @property
    def size(self) -> int:
        """The number of bytes."""
        return self.end_position - self.position

    def error(self) -> KafkaError:
        """Return the error for a read that reaches this range.

        During a repair, this error makes clients refresh their metadata and retry. Otherwise,
        consumers report the error to the application, which can then skip the records.
        """
        text = f"offsets {self.first_offset} to {self.end_offset - 1} are damaged: {self.reason}"
        if self.is_under_repair:
            return KafkaStorageError(text)
        error = CorruptMessage(text)
        error.next_offset = self.end_offset if self.is_lost else None
        return error


class Damage(tuple[DamagedRange, ...]):
    """The damaged ranges of a segment, in order; an intact segment has ``()`` instead."""

    __slots__ = ()

    def at_offset(self, offset: int) -> DamagedRange | None:
        """Return the range that hides the batch of this offset, if any."""
        for damaged in self:
            if damaged.first_offset <= offset < damaged.end_offset:
                return damaged
        return None

    def from_position(self, position: int) -> DamagedRange | None:
        """Return the first range that ends after this position, if any."""
        for damaged in self:
            if position < damaged.end_position:
                return damaged
        return None

    def before_cut(self, position: int) -> "Damage":
        """Return the ranges that remain after the file was cut at ``position``."""
        return Damage(damaged for damaged in self if damaged.end_position <= position)
