"""When a snapshot of the metadata is due: after so many bytes, or so long after a change.

Rules: only what changed since the last snapshot counts, so an idle cluster makes none and nobody
wakes for it; the records that a restart replays count again, since the last snapshot lacks them.
"""

import math

import attrs


@attrs.define(kw_only=True)
class SnapshotCadence:
    """How much the metadata log has grown since the last snapshot."""

    max_bytes: int
    """``metadata.log.max.record.bytes.between.snapshots``"""
    max_seconds: float
    """``metadata.log.max.snapshot.interval.ms``; 0: time alone makes no snapshot."""
    size_bytes: int = 0
    deadline: float = math.inf
    """When time alone makes one due."""

    def committed(self, size_bytes: int, now: float) -> None:
        """Records came; ``size_bytes`` in the log."""
        self.size_bytes += size_bytes
        if self.deadline == math.inf and self.max_seconds > 0:
            self.deadline = now + self.max_seconds

    def due(self, now: float) -> bool:
        """Whether to make a snapshot now."""
        return self.size_bytes > 0 and (self.size_bytes >= self.max_bytes or now >= self.deadline)

    def taken(self) -> None:
        """A snapshot holds everything until now."""
        self.size_bytes = 0
        self.deadline = math.inf
