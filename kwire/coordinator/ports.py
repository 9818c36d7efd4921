"""The protocols through which coordinators use the replica layer.

The tests of coordinators implement them with logs in memory.
"""

from typing import TYPE_CHECKING, Protocol

from kwire.records.header import Buffer
from kwire.types import TopicPartition

if TYPE_CHECKING:
    from kwire.replica.transaction_ports import TransactionMarker
    from kwire.replica.verification import Guard


class LeaseTime(Protocol):
    """The part of a coordinator's log that its deadlines need."""

    @property
    def lease_over_s(self) -> float:
        """The total number of seconds for which the lease has been over so far."""


class Appender(Protocol):
    """The part of a coordinator's log that a decision needs."""

    def append(self, partition: TopicPartition, batch: bytes, guard: "Guard | None" = None) -> int:
        """Append as the partition's leader; return the log end offset after the batch.

        ``guard`` is the verification of a transaction's first batch. Raises KafkaError.
        """

    def append_marker(self, partition: TopicPartition, marker: "TransactionMarker") -> int:
        """Append the marker of a transaction; return the log end offset after it.

        Raises KafkaError.
        """

    def max_batch_bytes(self, partition: TopicPartition) -> int:
        """Return the largest allowed batch size, the topic's `max.message.bytes`."""


class ShardLog(Appender, LeaseTime, Protocol):
    """The part of the replica layer that a coordinator uses."""

    @property
    def is_lease_over(self) -> bool:
        """The number of seconds for which the broker has been without its lease, in total."""

    @property
    def lease_left_s(self) -> float:
        """The seconds until the lease ends unless it is extended; infinite if it cannot end."""

    def bounds(self, partition: TopicPartition) -> tuple[int, int]:
        """Return start and end offset of the log."""

    def high_watermark(self, partition: TopicPartition) -> int:
        """Return the high watermark: everything below it is committed."""

    async def wait_committed(self, partition: TopicPartition, end_offset: int) -> None:
        """Wait until the high watermark reaches ``end_offset``; raises if leadership is lost."""

    async def read(self, partition: TopicPartition, offset: int) -> Buffer:
        """Return whole batches from the one that contains ``offset``; empty at the log end.

        The batches may be uncommitted. Raises KafkaError if they cannot be read yet.
        """


class LedPartition(Protocol):
    """A partition of this node and its role, as the replica layer reports them."""

    @property
    def topic(self) -> str: ...

    @property
    def partition(self) -> int: ...

    @property
    def leader(self) -> object | None: ...

    @property
    def leader_epoch(self) -> int: ...
