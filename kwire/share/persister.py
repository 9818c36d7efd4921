"""The interface through which the rest of the broker stores the state of share partitions.

A share partition is a partition of a topic, as consumed by one share group. Its state has a start
offset and batches of offsets with a delivery state; offsets outside all batches were never
delivered. Every operation returns error codes instead of raising: a persister has already retried
errors that a retry may cure.

Epochs fence late writers. The group coordinator sets the state epoch when it initializes a share
partition; the leader of the topic's partition passes its leader epoch with each read and write. An
epoch below the stored one gets FENCED_STATE_EPOCH or FENCED_LEADER_EPOCH.
"""

from collections.abc import Collection, Mapping, Sequence
from typing import Final, NamedTuple, Protocol

UNINITIALIZED: Final = -1
"""The start offset that means "use the group's `share.auto.offset.reset`"."""
UNKNOWN_COUNT: Final = -1
"""The delivery complete count of a share partition whose leader reported none."""
NO_LEADER_EPOCH: Final = -1
"""The leader epoch of a caller that is not a leader; it is never fenced."""
NO_STATE_EPOCH: Final = -1
"""The state epoch of a caller that does not know it; it is never fenced."""


class StateBatch(NamedTuple):
    """Offsets with one delivery state and count; both offsets are inclusive."""

    first_offset: int
    last_offset: int
    delivery_state: int
    """0 available, 2 acknowledged, 4 archived."""
    delivery_count: int


class InitialState(NamedTuple):
    """The state with which a share partition begins, or begins anew."""

    state_epoch: int
    start_offset: int


class ReadState(NamedTuple):
    """The state with which the leader of a share partition continues."""

    error_code: int
    state_epoch: int = 0
    start_offset: int = UNINITIALIZED
    batches: Sequence[StateBatch] = ()


class Summary(NamedTuple):
    """The state of a share partition without its batches."""

    error_code: int
    state_epoch: int = 0
    start_offset: int = UNINITIALIZED
    leader_epoch: int = 0
    delivery_complete_count: int = UNKNOWN_COUNT
    """The number of records from the start offset onwards whose delivery is complete."""


class Persister(Protocol):
    """Stores the state of share partitions, by group id, topic id and partition."""

    async def initialize(
        self, group_id: str, topic_id: bytes, states: Mapping[int, InitialState]
    ) -> dict[int, int]:
        """Store initial states; return the error code of each partition.

        The state epoch must be at least that of the stored state, which is replaced.
        """

    async def read(
        self, group_id: str, topic_id: bytes, partition: int, leader_epoch: int
    ) -> ReadState:
        """Return the state; writers with an earlier leader epoch are fenced from now on."""

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
        """Merge batches into the state and return the error code.

        A start offset of -1 leaves the stored start offset.
        """

    async def delete(
        self, group_id: str, topic_id: bytes, partitions: Collection[int]
    ) -> dict[int, int]:
        """Delete states; return the error code of each partition, 0 for a missing state."""

    async def summaries(
        self, group_id: str, topic_id: bytes, partitions: Collection[int]
    ) -> dict[int, Summary]:
        """Return the summary of each partition's state."""
