"""All share partitions of one partition of `__share_group_state`: a decider and its state.

A write is stored as an update, which contains only the changes; after a number of updates, the next
write is stored as a snapshot of the whole state. So no record before a share partition's last
snapshot is needed, and the log can be pruned up to the earliest of these snapshots. The snapshots
of idle share partitions are repeated, because they would prevent the pruning.

Invariants: the four dictionaries have entries for the same share partitions, except that
``updates`` lacks share partitions without an update. The ``cold`` deadline is set while there is
any share partition.
"""

from collections.abc import Callable, Hashable, Iterator, Sequence
from functools import partial
from typing import Final, Protocol

import attrs

from kwire.codec.messages.share_state_records import ShareSnapshotKey, ShareUpdateKey
from kwire.coordinator.decision import (
    NOTHING,
    Answer,
    Decision,
    Moment,
    Opaque,
    Record,
    Step,
)
from kwire.errors import (
    FencedLeaderEpoch,
    FencedStateEpoch,
    InvalidRequest,
    UnknownTopicOrPartition,
)
from kwire.share.keys import SharePartition
from kwire.share.persister import (
    NO_LEADER_EPOCH,
    NO_STATE_EPOCH,
    UNINITIALIZED,
    InitialState,
    ReadState,
    Summary,
)
from kwire.share.state.model import ShareState, StateWrite
from kwire.share.state.records import (
    load,
    share_partition,
    snapshot,
    state_of,
    store,
    tombstone,
    update,
    write_of,
)
from kwire.share.state.settings import ShareStateSettings

_COLD: Final = ("cold",)
_AT_ONCE: Final = 16
"""The most share partitions that one decision deletes or takes snapshots of."""
_SEARCHED_AT_ONCE: Final = 500
"""The number of share partitions that one step of a search checks."""


class Topics(Protocol):
    """The topics in the newest metadata."""

    def has_partition(self, topic_id: bytes, partition: int) -> bool: ...

    def is_deleted(self, topic_id: bytes) -> bool:
        """Return whether the topic certainly no longer exists."""


@attrs.define(kw_only=True, eq=False, repr=False)
class ShareStateShard:
    """The state of one partition; requests are methods that return a decision."""

    topics: Topics
    settings: Callable[[], ShareStateSettings] = ShareStateSettings
    states: dict[SharePartition, ShareState] = attrs.field(factory=dict, init=False)
    leader_epochs: dict[SharePartition, int] = attrs.field(factory=dict, init=False)
    """The largest leader epoch in any record; an initial state does not lower it."""
    state_epochs: dict[SharePartition, int] = attrs.field(factory=dict, init=False)
    updates: dict[SharePartition, int] = attrs.field(factory=dict, init=False)
    """The number of updates since the last snapshot."""
    snapshots: dict[SharePartition, int] = attrs.field(factory=dict, init=False)
    """The offset of the last snapshot."""
    end_offset: int = attrs.field(default=0, init=False)

    # Records

    encode = staticmethod(store)
    decode = staticmethod(load)

    def apply_stored(self, key: bytes, value: bytes | None) -> bool:
        return False

    def apply(self, record: Record, producer_id: int = -1) -> None:
        del producer_id
        self.end_offset = record.offset + 1
        of = share_partition(record.key)
        match record.key:
            case ShareSnapshotKey() if record.value is None:
                for each in self._by_share_partition():
                    each.pop(of, None)
            case ShareSnapshotKey():
                self._apply_snapshot(of, state_of(record.value), record.offset)
            case ShareUpdateKey() if record.value is not None and of in self.states:
                self.states[of] = self.states[of].after(write_of(record.value))
                self._raise_leader_epoch(of, record.value.leader_epoch)
                self.updates[of] = self.updates.get(of, 0) + 1

    def _apply_snapshot(self, of: SharePartition, state: ShareState, offset: int) -> None:
        self.states[of] = state
        self._raise_leader_epoch(of, state.leader_epoch)
        self.state_epochs[of] = max(state.state_epoch, self.state_epochs.get(of, state.state_epoch))
        if self.updates.get(of, 0) >= self.settings().updates_per_snapshot:
            self.updates[of] = 0
        self.snapshots[of] = offset

    def _raise_leader_epoch(self, of: SharePartition, epoch: int) -> None:
        self.leader_epochs[of] = max(epoch, self.leader_epochs.get(of, epoch))

    def _by_share_partition(self) -> tuple[dict[SharePartition, Opaque], ...]:
        return self.states, self.leader_epochs, self.state_epochs, self.updates, self.snapshots

    def apply_change(self, change: Opaque, producer_id: int) -> None:
        raise AssertionError(f"no decision has a draft: {change}")

    def end_transaction(self, producer_id: int, *, committed: bool) -> None:
        """Do nothing, because the records do not belong to transactions."""

    def adopt(self, state: Opaque) -> None:
        """Do nothing, because all state is in the records."""

    # Requests

    def initialize(
        self, of: SharePartition, initial: InitialState, moment: Moment, ticket: int
    ) -> Decision:
        """Store the initial state of a share partition, replacing an earlier state."""
        self._check_named(of)
        self._check_state_epoch(of, initial.state_epoch)
        self._check_exists(of)
        stored = self.states.get(of)
        if (
            stored is not None
            and initial.start_offset == UNINITIALIZED
            and initial.state_epoch == stored.state_epoch
        ):  # The request is repeated, perhaps after members have begun to fetch.
            return Decision(answers=(Answer(ticket, None),))
        epoch = 0 if stored is None else stored.snapshot_epoch + 1
        state = ShareState.initial(initial, epoch, moment.wall_ms)
        return Decision(
            records=(snapshot(of, state),),
            answers=(Answer(ticket, None),),
            timers=((_COLD, self._next_cold(moment)),) if not self.states else (),
        )

    def read(self, of: SharePartition, leader_epoch: int, moment: Moment, ticket: int) -> Decision:
        """Answer with the state; a new leader epoch is stored, to fence earlier leaders."""
        self._check_named(of)
        state = self.states.get(of)
        if state is None:
            raise InvalidRequest("Read operation on uninitialized share partition not allowed.")
        self._check_leader_epoch(of, leader_epoch)
        self._check_exists(of)
        answer = Answer(ticket, ReadState(0, state.state_epoch, state.start_offset, state.batches))
        if leader_epoch in (NO_LEADER_EPOCH, self.leader_epochs.get(of)):
            return Decision(answers=(answer,))
        write = StateWrite(
            state.state_epoch, leader_epoch, state.start_offset, state.delivery_complete_count
        )
        return Decision(records=(self._record(of, state, write, moment),), answers=(answer,))

    def write(self, of: SharePartition, write: StateWrite, moment: Moment, ticket: int) -> Decision:
        """Merge a leader's write into the state."""
        self._check_named(of)
        state = self.states.get(of)
        if state is None:
            raise InvalidRequest("Write operation on uninitialized share partition not allowed.")
        self._check_leader_epoch(of, write.leader_epoch)
        self._check_state_epoch(of, write.state_epoch)
        self._check_exists(of)
        # Only a read changes the leader epoch, as in Kafka.
        write = write._replace(leader_epoch=state.leader_epoch)
        return Decision(
            records=(self._record(of, state, write, moment),), answers=(Answer(ticket, None),)
        )

    def delete(self, of: SharePartition, _: None, moment: Moment, ticket: int) -> Decision:
        """Delete a state; a missing state is not an error."""
        del moment
        self._check_named(of)
        self._check_exists(of)
        records = (tombstone(of),) if of in self.states else ()
        return Decision(records=records, answers=(Answer(ticket, None),))

    def summary(self, of: SharePartition, _: None, moment: Moment, ticket: int) -> Decision:
        """Answer with the state without its batches."""
        del moment
        self._check_named(of)
        self._check_exists(of)
        state = self.states.get(of)
        summary = Summary(0)
        if state is not None:
            summary = Summary(
                0,
                state.state_epoch,
                state.start_offset,
                state.leader_epoch,
                state.delivery_complete_count,
            )
        return Decision(answers=(Answer(ticket, summary),))

    def _record(
        self, of: SharePartition, state: ShareState, write: StateWrite, moment: Moment
    ) -> Record:
        """Return the record of a write: an update, or a snapshot after many updates."""
        if self.updates.get(of, 0) < self.settings().updates_per_snapshot:
            return update(of, state.snapshot_epoch, write)
        return snapshot(of, state.after(write).next_snapshot(moment.wall_ms))

    # Checks

    def _check_named(self, of: SharePartition) -> None:
        if of.partition < 0:
            raise InvalidRequest("The partition id cannot be a negative number.")

    def _check_exists(self, of: SharePartition) -> None:
        if not self.topics.has_partition(of.topic_id, of.partition):
            raise UnknownTopicOrPartition

    def _check_leader_epoch(self, of: SharePartition, leader_epoch: int) -> None:
        if NO_LEADER_EPOCH != leader_epoch < self.leader_epochs.get(of, leader_epoch):
            raise FencedLeaderEpoch

    def _check_state_epoch(self, of: SharePartition, state_epoch: int) -> None:
        if NO_STATE_EPOCH != state_epoch < self.state_epochs.get(of, state_epoch):
            raise FencedStateEpoch

    # Pruning and clean-up

    def redundant_offset(self) -> int:
        """Return the offset below which no record is needed."""
        return min(self.snapshots.values(), default=self.end_offset)

    def on_loaded(self) -> Iterator[Step]:
        """Yield the steps after a load: delete the states of topics that were deleted meanwhile."""
        yield self._begin

    def _begin(self, moment: Moment) -> Decision:
        if not self.states:
            return NOTHING
        timers = ((_COLD, self._next_cold(moment)),)
        return Decision(timers=timers, steps=self.remove_deleted_topics())

    def on_next_epoch(self) -> None:
        """Do nothing, because no state depends on the epoch of `__share_group_state`."""

    def remove_deleted_topics(self) -> Iterator[Step]:
        """Yield the steps that delete the states of topics that no longer exist."""
        for part in _in_parts(list(self.states), _SEARCHED_AT_ONCE):
            deleted = [of for of in part if self.topics.is_deleted(of.topic_id)]
            if not deleted:
                yield _do_nothing
            for some in _in_parts(deleted, _AT_ONCE):
                yield partial(self._delete_all, some)

    def _delete_all(self, some: Sequence[SharePartition], moment: Moment) -> Decision:
        del moment
        records = tuple(tombstone(of) for of in some if of in self.states)
        return Decision(records=records, is_atomic=False)

    def due(self, name: Hashable, moment: Moment) -> Decision:
        """Repeat old snapshots; `name` can only be the deadline for that."""
        assert name == _COLD
        if not self.states:
            return NOTHING
        return Decision(
            timers=((_COLD, self._next_cold(moment)),), steps=self._repeat_snapshots(moment.wall_ms)
        )

    def _next_cold(self, moment: Moment) -> float:
        return moment.now + self.settings().cold_snapshot_interval_ms / 1000

    def _repeat_snapshots(self, now_ms: int) -> Iterator[Step]:
        """Yield the steps that repeat old snapshots, unless all share partitions are idle.

        If all snapshots are already copies, nothing has been written since, so nothing can be
        pruned.
        """
        partitions = list(self.states)
        for some in _in_parts(partitions, _SEARCHED_AT_ONCE):
            if not all(self._is_idle(of) for of in some):
                break
            yield _do_nothing
        else:
            return
        oldest_ms = now_ms - self.settings().cold_snapshot_interval_ms
        for some in _in_parts(partitions, _AT_ONCE):
            yield partial(self._repeat, some, oldest_ms)

    def _is_idle(self, of: SharePartition) -> bool:
        state = self.states.get(of)
        return state is None or state.create_ms != state.write_ms

    def _repeat(self, some: Sequence[SharePartition], oldest_ms: int, moment: Moment) -> Decision:
        records = tuple(
            snapshot(of, state.next_snapshot(moment.wall_ms, is_copy=True))
            for of in some
            if (state := self.states.get(of)) is not None and state.write_ms <= oldest_ms
        )
        return Decision(records=records, is_atomic=False)


def _in_parts(
    partitions: Sequence[SharePartition], count_max: int
) -> Iterator[Sequence[SharePartition]]:
    for start in range(0, len(partitions), count_max):
        yield partitions[start : start + count_max]


def _do_nothing(moment: Moment) -> Decision:
    del moment
    return NOTHING
