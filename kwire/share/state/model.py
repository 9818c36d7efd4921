"""The state of one share partition, immutable."""

from collections.abc import Sequence
from typing import Final, NamedTuple

import attrs

from kwire.share.persister import (
    NO_LEADER_EPOCH,
    UNINITIALIZED,
    UNKNOWN_COUNT,
    InitialState,
    StateBatch,
)
from kwire.share.state.batches import merge

_INITIAL_LEADER_EPOCH: Final = 0


class StateWrite(NamedTuple):
    """A change that the leader of a share partition writes."""

    state_epoch: int
    leader_epoch: int
    start_offset: int
    """-1 keeps the stored start offset."""
    delivery_complete_count: int
    batches: Sequence[StateBatch] = ()


@attrs.frozen(eq=False)
class ShareState:
    """The state of a share partition after its records so far."""

    snapshot_epoch: int
    """The number of the snapshot that the state is based on."""
    state_epoch: int
    leader_epoch: int
    start_offset: int
    delivery_complete_count: int
    batches: Sequence[StateBatch]
    create_ms: int = 0
    """The time of the last request that wrote a snapshot with a new state."""
    write_ms: int = 0
    """The time at which the last snapshot was written."""

    @classmethod
    def initial(cls, initial: InitialState, snapshot_epoch: int, now_ms: int) -> "ShareState":
        """Return the state with which a share partition begins; it has no batches."""
        start_offset = initial.start_offset
        return cls(
            snapshot_epoch,
            initial.state_epoch,
            _INITIAL_LEADER_EPOCH,
            start_offset,
            UNKNOWN_COUNT if start_offset == UNINITIALIZED else 0,
            (),
            now_ms,
            now_ms,
        )

    def after(self, write: StateWrite) -> "ShareState":
        """Return the state after a write, still based on the same snapshot."""
        # A late write does not move the state back.
        start_offset = max(write.start_offset, self.start_offset)
        leader_epoch = write.leader_epoch
        if leader_epoch == NO_LEADER_EPOCH:
            leader_epoch = self.leader_epoch
        return attrs.evolve(
            self,
            leader_epoch=leader_epoch,
            start_offset=start_offset,
            delivery_complete_count=write.delivery_complete_count,
            batches=merge(self.batches, write.batches, start_offset),
        )

    def next_snapshot(self, now_ms: int, *, is_copy: bool = False) -> "ShareState":
        """Return the state as the next snapshot; a copy only repeats the state at the log's end."""
        return attrs.evolve(
            self,
            snapshot_epoch=self.snapshot_epoch + 1,
            create_ms=self.create_ms if is_copy else now_ms,
            write_ms=now_ms,
        )
