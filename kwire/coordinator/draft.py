"""The batch of a long decision, encoded before it is taken.

Encoding is most of the cost of a decision over thousands of records.  A draft is filled in slices
from data that does not depend on the state.  The decision then checks the state, and only an append
and one change of the machine are left.  So it is taken as a whole without a long pause for other
requests, and written or refused as a whole: one batch holds all of it.
"""

from typing import Generic, TypeVar

from kwire import attrs
from kwire.records.build import encode_record, of_payload

C = TypeVar("C")


@attrs.define
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

    def build_batch(self) -> bytes:
        """Return the batch as it is to be appended."""
        return of_payload(self.payload, self.count, self.wall_ms)
