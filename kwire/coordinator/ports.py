"""The protocols through which coordinators use the replica layer."""

from typing import TYPE_CHECKING, Protocol

from kwire.records.header import Buffer
from kwire.types import TopicPartition

if TYPE_CHECKING:
    from kwire.replica.transaction_ports import TransactionMarker
    from kwire.replica.verification import Guard


class CoordinatorLog(Protocol):
    """The part of the replica layer that a coordinator uses."""

    @property
    def is_lease_over(self) -> bool:
        """Whether another broker may lead this broker's partitions by now."""

    @property
    def lease_left_s(self) -> float:
        """The seconds for which the lease holds if it is not extended; infinite without an end."""

    @property
    def lease_over_s(self) -> float:
        """The seconds for which the lease has been over so far, in all."""

    def append(self, partition: TopicPartition, batch: bytes, guard: "Guard | None" = None) -> int:
        """Append as the partition's leader; return the log end offset after the batch.

        ``guard``: the verification of a transaction's first batch.  Raises KafkaError.
        """

    def append_marker(self, partition: TopicPartition, marker: "TransactionMarker") -> int:
        """Append the marker of a transaction; return the log end offset after it.

        Raises KafkaError.
        """

    def max_batch_bytes(self, partition: TopicPartition) -> int:
        """Return the largest batch size that may be written, `max.message.bytes` of the topic."""

    def bounds(self, partition: TopicPartition) -> tuple[int, int]:
        """Return start and end offset of the log."""

    def high_watermark(self, partition: TopicPartition) -> int:
        """Return the high watermark: everything below it is committed."""

    async def wait_committed(self, partition: TopicPartition, end_offset: int) -> None:
        """Return when the high watermark has reached ``end_offset``; raises on loss of the role."""

    async def read(self, partition: TopicPartition, offset: int) -> Buffer:
        """Return whole batches from the one with ``offset`` on, empty at the end of the log.

        They may be uncommitted.  Raises KafkaError if they cannot be read yet.
        """


class LedPartition(Protocol):
    """A partition of this node, with its role in the replica layer."""

    @property
    def topic(self) -> str: ...

    @property
    def partition(self) -> int: ...

    @property
    def leader(self) -> object | None: ...

    @property
    def leader_epoch(self) -> int: ...
