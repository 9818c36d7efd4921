"""The batches of a long decision, encoded before it is taken.

Encoding is most of the cost of a decision over thousands of records.  A draft is filled in slices
from data that does not depend on the state.  The decision then checks the state, and only an append
and one change of the machine per batch are left.  So it is taken as a whole without a long pause
for other requests.
"""

from collections.abc import Callable
from typing import Generic, TypeVar

from kwire import attrs
from kwire.records.build import encode_record, of_payload
from kwire.records.header import HEADER_SIZE

C = TypeVar("C")

_FRAME_BYTES_MAX = 32
"""The largest framing of one record: its length, deltas and counts."""


@attrs.define
class DraftBatch(Generic[C]):
    """One unfinished batch."""

    change: C
    """The change that the machine applies when the batch is written."""
    payload: bytearray = attrs.field(factory=bytearray)
    count: int = 0


@attrs.define
class Draft(Generic[C]):
    """Records with one timestamp, in as few batches as their size allows."""

    wall_ms: int
    max_batch_bytes: int
    new_change: Callable[[], C]
    """Makes the empty change of a batch."""
    batches: list[DraftBatch[C]] = attrs.field(factory=list)

    def add(self, key: bytes, value: bytes | None) -> C:
        """Add a record; return the change of its batch, to which the caller adds its effect."""
        size = len(key) + len(value or b"") + _FRAME_BYTES_MAX
        if not self.batches or (
            HEADER_SIZE + len(self.batches[-1].payload) + size > self.max_batch_bytes
        ):
            self.batches.append(DraftBatch(self.new_change()))
        last = self.batches[-1]
        last.payload += encode_record(0, last.count, key, value)
        last.count += 1
        return last.change

    def build_batches(self) -> list[tuple[bytes, C]]:
        """Return each batch as it is to be appended, with its change."""
        return [
            (of_payload(batch.payload, batch.count, self.wall_ms), batch.change)
            for batch in self.batches
        ]
