"""Decides when a metadata snapshot is due: after enough bytes, or long enough after a change.

Rules: only changes since the last snapshot count, so an idle cluster takes no snapshots and no task
wakes up for them; records replayed by a restart count again, because the last snapshot does not
contain them.
"""

import math

import attrs


@attrs.define(kw_only=True, eq=False, repr=False)
class SnapshotCadence:
    """The growth of the metadata log since the last snapshot."""

    max_bytes: int
    """``metadata.log.max.record.bytes.between.snapshots``"""
    max_seconds: float
    """``metadata.log.max.snapshot.interval.ms`` in seconds; with 0, only the size counts."""
    size_bytes: int = 0
    deadline: float = math.inf
    """The time at which a snapshot is due regardless of size."""

    def on_commit(self, size_bytes: int, now: float) -> None:
        """Count newly committed records of ``size_bytes`` in the log."""
        self.size_bytes += size_bytes
        if self.deadline == math.inf and self.max_seconds > 0:
            self.deadline = now + self.max_seconds

    def due(self, now: float) -> bool:
        """Return whether a snapshot is due."""
        return self.size_bytes > 0 and (self.size_bytes >= self.max_bytes or now >= self.deadline)

    def on_snapshot(self) -> None:
        """Reset the count after a snapshot of everything so far."""
        self.size_bytes = 0
        self.deadline = math.inf
