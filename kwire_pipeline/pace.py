"""The number of offsets that a batch may read, from a limit in bytes and the batches so far.

Spark's Kafka source limits offsets, and neither it nor the brokers reveal how large records are. So
the limit in bytes is an estimate: kwire assumes that later records are as large as those of earlier
batches, counting keys and values after decompression. Rules of this file: plain decisions; an
increase of the size is adopted fully at once, a decrease by half, because a batch that is too large
is worse than one that is too small.
"""

import json
from typing import Final

import attrs

from kwire_pipeline.config.model import Limits
from kwire_pipeline.engine.lease import Files
from kwire_pipeline.engine.reporting.figures import Batch

FILE: Final = "pace.json"
"""The file beside the checkpoint with the size of records, for the next run."""
FIRST_OFFSETS: Final = 1000
"""The maximum number of offsets of a batch before any size is known."""
TOLERANCE: Final = 1.25
"""The factor by which a batch may miss the limit before the query restarts with another limit."""


@attrs.frozen
class Pace:
    """The size of records in the batches so far."""

    bytes_per_offset: float | None = None
    """None before the first batch with records."""

    @classmethod
    def read(cls, folder: Files) -> "Pace":
        """Read the size that the last run stored; unknown if the file is missing or damaged."""
        try:
            size = float(json.loads(folder.read(FILE) or "{}")["bytes_per_offset"])
        except (ValueError, KeyError, TypeError):
            return cls()
        return cls(size) if size > 0 else cls()

    def write(self, folder: Files) -> None:
        folder.write(FILE, json.dumps({"bytes_per_offset": self.bytes_per_offset}) + "\n")

    def after(self, batch: Batch) -> "Pace":
        """Return the size of records after a batch."""
        if not batch.offsets or not batch.bytes:
            return self
        size, former = batch.bytes / batch.offsets, self.bytes_per_offset
        return Pace(size if former is None or size > former else (size + former) / 2)

    def max_offsets(self, limits: Limits) -> int:
        """Return the maximum number of offsets of the next batch."""
        if limits.max_bytes_per_trigger is None:
            return limits.max_offsets_per_trigger
        if self.bytes_per_offset is None:
            return min(limits.max_offsets_per_trigger, FIRST_OFFSETS)
        offset_count = int(limits.max_bytes_per_trigger / self.bytes_per_offset)
        return max(1, min(limits.max_offsets_per_trigger, offset_count))


def is_off(current: int, offset_count: int) -> bool:
    """Return whether a query should be restarted because its limit is too far off."""
    return not offset_count / TOLERANCE <= current <= offset_count * TOLERANCE
