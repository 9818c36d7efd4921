"""The batch of a long decision, encoded before the decision is taken.

Encoding is most of the cost of a decision with thousands of records. A draft is filled in slices,
from data that does not depend on the state. The decision then only checks the state, appends the
batch and applies one change to the machine, so it does not hold up other requests for long. One
batch holds all records, so they are written or rejected as a whole. A short decision whose records
are encoded without message objects, such as a commit of a few offsets, fills its draft at once.
"""

from typing import Generic, TypeVar

import attrs

from kwire.records.build import encode_record, of_payload

C = TypeVar("C")


@attrs.define(eq=False, repr=False)
class Draft(Generic[C]):
    """Records with one timestamp, in one batch."""

    wall_ms: int
    change: C
    """The change that the machine applies when the batch is written."""
    payload: bytearray = attrs.field(factory=bytearray)
    count: int = 0

    def add(self, key: bytes, value: bytes | None) -> C:
        """Add a record; return the change, to which the caller adds the record's effect."""
        self.payload += encode_record(0, self.count, key, value)
        self.count += 1
        return self.change

    def build_batch(self, producer: tuple[int, int] | None = None) -> bytes:
        """Return the batch, ready to be appended.

        ``producer``: the id and epoch of the producer to whose transaction the records belong.
        """
        return of_payload(self.payload, self.count, self.wall_ms, producer)
