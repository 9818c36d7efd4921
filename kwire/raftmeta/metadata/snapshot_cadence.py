"""The time of the next metadata snapshot: after so many bytes, or so long after a change.

Rules: only changes since the last snapshot count, so an idle cluster makes none and no task wakes
for it; the records that a restart replays count again, since the last snapshot lacks them.
"""

import math

from kwire import attrs


@attrs.define(kw_only=True)
class SnapshotCadence:
    """The growth of the metadata log since the last snapshot."""

    max_bytes: int
    """``metadata.log.max.record.bytes.between.snapshots``"""
    max_seconds: float
    """``metadata.log.max.snapshot.interval.ms`` in seconds; 0: only the size counts."""
    size_bytes: int = 0
    deadline: float = math.inf
    """The time at which a snapshot is due whatever the size."""

    def on_commit(self, size_bytes: int, now: float) -> None:
        """Count committed records of ``size_bytes`` in the log."""
        self.size_bytes += size_bytes
        if self.deadline == math.inf and self.max_seconds > 0:
            self.deadline = now + self.max_seconds

    def due(self, now: float) -> bool:
        """Whether a snapshot is due now."""
        return self.size_bytes > 0 and (self.size_bytes >= self.max_bytes or now >= self.deadline)

    def on_snapshot(self) -> None:
        """Start counting again, after a snapshot of everything until now."""
        self.size_bytes = 0
        self.deadline = math.inf
