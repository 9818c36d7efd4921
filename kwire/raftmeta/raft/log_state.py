"""The metadata log in numbers: offsets, epochs and snapshots, without the bytes.

The raft state machine knows its log only through this; writing is an effect. Rules: offsets grow
only by appending, epochs never decrease along the log, and an epoch's first batch adds it.
"""

from typing import NamedTuple

import attrs


class SnapshotId(NamedTuple):
    """A snapshot's id: the offset after its last record, and that record's epoch."""

    end_offset: int
    epoch: int


class EpochStart(NamedTuple):
    """An epoch and the offset of its first record in a log."""

    epoch: int
    start_offset: int


class EpochEnd(NamedTuple):
    """An epoch and its end offset in a log: the offset after its last record."""

    epoch: int
    end_offset: int


@attrs.frozen(repr=False)
class Valid:
    """The follower's log is a prefix of ours."""


class Diverging(NamedTuple):
    """The follower must truncate: its log diverges from ours at or before this end offset."""

    end: EpochEnd


class NeedsSnapshot(NamedTuple):
    """The requested offset is no longer in the log; ``id`` is the snapshot to fetch."""

    id: SnapshotId


OffsetValidation = Valid | Diverging | NeedsSnapshot


@attrs.define(eq=False, repr=False)
class LogState:
    """The offsets, epochs and snapshots of one log.

    Invariant: ``start_offset <= end_offset``; epochs and their start offsets ascend strictly.
    """

    start_offset: int = 0
    end_offset: int = 0
    epochs: list[EpochStart] = attrs.field(factory=list)
    """Oldest first."""
    snapshots: list[SnapshotId] = attrs.field(factory=list)
    """Oldest first."""

    @property
    def latest_snapshot(self) -> SnapshotId | None:
        return self.snapshots[-1] if self.snapshots else None

    @property
    def last_epoch(self) -> int:
        """The epoch of the last record, or of the snapshot before an empty log; else 0."""
        if self.epochs:
            return self.epochs[-1].epoch
        return next((s.epoch for s in self.snapshots if s.end_offset == self.end_offset), 0)

    @property
    def end(self) -> tuple[int, int]:
        """The last epoch and end offset, which together decide which log is more up to date."""
        return self.last_epoch, self.end_offset

    def append_batch(self, epoch: int, base_offset: int, next_offset: int) -> None:
        assert base_offset == self.end_offset, (base_offset, self.end_offset)
        assert epoch >= self.last_epoch, (epoch, self.last_epoch)
        if not self.epochs or self.epochs[-1].epoch < epoch:
            self.epochs.append(EpochStart(epoch, base_offset))
        self.end_offset = next_offset

    def truncate_to(self, end_offset: int) -> None:
        assert self.start_offset <= end_offset <= self.end_offset
        self.end_offset = end_offset
        while self.epochs and self.epochs[-1].start_offset >= end_offset:
            self.epochs.pop()

    def reset(self, snapshot: SnapshotId) -> None:
        """Continue with an empty log after an installed snapshot."""
        self.start_offset = self.end_offset = snapshot.end_offset
        self.epochs.clear()
        self.snapshots = [snapshot]

    def add_snapshot(self, snapshot: SnapshotId) -> None:
        if snapshot not in self.snapshots:
            self.snapshots = sorted([*self.snapshots, snapshot])

    def trim_to(self, start_offset: int) -> None:
        """Drop records and snapshots before ``start_offset``, where a snapshot ends."""
        self.start_offset = max(self.start_offset, start_offset)
        self.snapshots = [s for s in self.snapshots if s.end_offset >= start_offset]
        older = [e for e in self.epochs if e.start_offset <= start_offset]
        if older:
            later = [e for e in self.epochs if e.start_offset > start_offset]
            first = EpochStart(older[-1].epoch, start_offset)
            self.epochs = [first, *later] if start_offset < self.end_offset else later

    def epoch_at(self, offset: int) -> int:
        """Return the epoch of the record at ``offset``."""
        epochs = [e.epoch for e in self.epochs if e.start_offset <= offset]
        return epochs[-1] if epochs else self.last_epoch

    def epoch_end(self, epoch: int) -> EpochEnd:
        """Return the newest epoch up to ``epoch`` and its end offset, or else the log's start."""
        if not self.epochs or epoch >= self.last_epoch:
            return EpochEnd(self.last_epoch, self.end_offset)
        if epoch < self.epochs[0].epoch:
            return EpochEnd(epoch, self.epochs[0].start_offset)
        floor = max(n for n, e in enumerate(self.epochs) if e.epoch <= epoch)
        return EpochEnd(self.epochs[floor].epoch, self.epochs[floor + 1].start_offset)

    def validate(self, offset: int, epoch: int) -> OffsetValidation:
        """Compare our log with a follower's log that ends at ``offset`` in ``epoch``."""
        newest = self.latest_snapshot
        if newest is not None and newest.end_offset > 0:
            oldest = self.snapshots[0]
            at_snapshot = (offset, epoch) in self.snapshots
            is_removed = offset < self.start_offset or epoch < oldest.epoch or offset == 0
            if not at_snapshot and (is_removed or offset == self.start_offset == oldest.end_offset):
                return NeedsSnapshot(newest)
            if at_snapshot:
                return Valid()
        if offset == 0 and self.start_offset == 0:
            return Valid()
        end = self.epoch_end(epoch)
        if end.epoch != epoch or end.end_offset < offset:
            return Diverging(end)
        return Valid()
