"""The batches of a long decision, encoded before it is taken.

Encoding is most of what a decision over thousands of records costs.  A draft is filled in slices
from what does not depend on the state; the decision then looks at the state, and what is left to
do is an append and one change of the machine for each batch.  So it is taken as a whole, and keeps
nobody waiting.
"""

from collections.abc import Callable
from typing import Any

import attrs

from kwire.records.build import encode_record, of_payload
from kwire.records.header import HEADER_SIZE

_FRAME_BYTES_MAX = 32
"""What frames one record: its length, deltas and counts."""


@attrs.define
class DraftBatch:
    """One batch in the making."""

    change: Any
    """What the machine takes in when the batch is written."""
    payload: bytearray = attrs.field(factory=bytearray)
    count: int = 0


@attrs.define
class Draft:
    """Records of one time, in as few batches as their size allows."""

    wall_ms: int
    max_batch_bytes: int
    new_change: Callable[[], Any]
    """Makes the empty change of a batch."""
    batches: list[DraftBatch] = attrs.field(factory=list)

    def add(self, key: bytes, value: bytes | None) -> Any:
        """Add a record; returns the change of its batch, in which its effect is to be noted."""
        size = len(key) + len(value or b"") + _FRAME_BYTES_MAX
        if not self.batches or (
            HEADER_SIZE + len(self.batches[-1].payload) + size > self.max_batch_bytes
        ):
            self.batches.append(DraftBatch(self.new_change()))
        last = self.batches[-1]
        last.payload += encode_record(0, last.count, key, value)
        last.count += 1
        return last.change

    def encoded(self) -> list[tuple[bytes, Any]]:
        """Each batch as it is appended, with its change."""
        return [
            (of_payload(batch.payload, batch.count, self.wall_ms), batch.change)
            for batch in self.batches
        ]
