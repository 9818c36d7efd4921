"""A persister in memory, which keeps the delivery state of each offset."""

from collections.abc import Collection, Mapping, Sequence
from itertools import groupby

import attrs
import trio

from kwire.errors import FencedLeaderEpoch, FencedStateEpoch, InvalidRequest
from kwire.share.persister import (
    NO_LEADER_EPOCH,
    UNINITIALIZED,
    UNKNOWN_COUNT,
    InitialState,
    Persister,
    ReadState,
    StateBatch,
    Summary,
)

Delivery = tuple[int, int]
"""Delivery count and state: of two that are written for an offset, the larger one stays."""


@attrs.define
class Stored:
    """The state of one share partition."""

    state_epoch: int
    start_offset: int
    leader_epoch: int = 0
    fenced_below: int = 0
    """The largest leader epoch that has read the state; an initialization keeps it."""
    delivery_complete_count: int = 0
    deliveries: dict[int, Delivery] = attrs.field(factory=dict)

    def batches(self) -> list[StateBatch]:
        """Return the fewest batches that hold the deliveries."""
        runs = groupby(
            enumerate(sorted(self.deliveries.items())),
            lambda entry: (entry[1][0] - entry[0], entry[1][1]),
        )
        batches = []
        for (_, (count, state)), entries in runs:
            offsets = [offset for _, (offset, _) in entries]
            batches.append(StateBatch(offsets[0], offsets[-1], state, count))
        return batches

    def merge(self, start_offset: int, batches: Sequence[StateBatch]) -> None:
        self.start_offset = max(self.start_offset, start_offset)
        for first, last, state, count in batches:
            for offset in range(first, last + 1):
                delivery = (count, state)
                self.deliveries[offset] = max(self.deliveries.get(offset, delivery), delivery)
        for offset in [o for o in self.deliveries if o < self.start_offset]:
            del self.deliveries[offset]


@attrs.define
class MemoryPersister:
    """The states of share partitions by group id, topic id and partition."""

    states: dict[tuple[str, bytes, int], Stored] = attrs.field(factory=dict)
    error_code: int = 0
    """The error code of every answer; 0 to answer as usual."""
    deletion: trio.Event | None = None
    """The event at which deletions take place; None for at once."""

    async def initialize(
        self, group_id: str, topic_id: bytes, states: Mapping[int, InitialState]
    ) -> dict[int, int]:
        return {
            partition: self._initialize((group_id, topic_id, partition), InitialState(*state))
            for partition, state in states.items()
        }

    def _initialize(self, key: tuple[str, bytes, int], initial: InitialState) -> int:
        if self.error_code:
            return self.error_code
        stored = self.states.get(key)
        if stored is not None and stored.state_epoch > initial.state_epoch:
            return FencedStateEpoch.code
        if (
            stored is not None
            and initial.start_offset == UNINITIALIZED
            and initial.state_epoch == stored.state_epoch
        ):
            return 0
        complete_count = UNKNOWN_COUNT if initial.start_offset == UNINITIALIZED else 0
        fenced_below = 0 if stored is None else stored.fenced_below
        self.states[key] = Stored(
            *initial, delivery_complete_count=complete_count, fenced_below=fenced_below
        )
        return 0

    async def read(
        self, group_id: str, topic_id: bytes, partition: int, leader_epoch: int
    ) -> ReadState:
        stored = self.states.get((group_id, topic_id, partition))
        if self.error_code:
            return ReadState(self.error_code)
        if stored is None:
            return ReadState(InvalidRequest.code)
        if leader_epoch != NO_LEADER_EPOCH:
            if leader_epoch < stored.fenced_below:
                return ReadState(FencedLeaderEpoch.code)
            stored.leader_epoch = stored.fenced_below = leader_epoch
        return ReadState(0, stored.state_epoch, stored.start_offset, stored.batches())

    async def write(
        self,
        group_id: str,
        topic_id: bytes,
        partition: int,
        state_epoch: int,
        leader_epoch: int,
        start_offset: int,
        delivery_complete_count: int,
        batches: Sequence[StateBatch],
    ) -> int:
        stored = self.states.get((group_id, topic_id, partition))
        if self.error_code:
            return self.error_code
        if stored is None:
            return InvalidRequest.code
        if leader_epoch != NO_LEADER_EPOCH and leader_epoch < stored.fenced_below:
            return FencedLeaderEpoch.code
        if state_epoch < stored.state_epoch:
            return FencedStateEpoch.code
        stored.delivery_complete_count = delivery_complete_count
        stored.merge(start_offset, batches)
        return 0

    async def delete(
        self, group_id: str, topic_id: bytes, partitions: Collection[int]
    ) -> dict[int, int]:
        if self.deletion is not None:
            await self.deletion.wait()
        if not self.error_code:
            for partition in partitions:
                self.states.pop((group_id, topic_id, partition), None)
        return dict.fromkeys(partitions, self.error_code)

    async def summaries(
        self, group_id: str, topic_id: bytes, partitions: Collection[int]
    ) -> dict[int, Summary]:
        return {p: self._summary((group_id, topic_id, p)) for p in partitions}

    def _summary(self, key: tuple[str, bytes, int]) -> Summary:
        stored = self.states.get(key)
        if stored is None or self.error_code:
            return Summary(self.error_code)
        return Summary(
            0,
            stored.state_epoch,
            stored.start_offset,
            stored.leader_epoch,
            stored.delivery_complete_count,
        )


_IS_PERSISTER: Persister = MemoryPersister()
