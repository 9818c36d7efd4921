"""The replica layer's interface for coordinators: append, wait for commit, read back."""

from math import inf

import attrs

from kwire.clock import Clock
from kwire.errors import KafkaStorageError
from kwire.records.header import Buffer, parse
from kwire.replica.partition import ACKS_ALL
from kwire.replica.replicas import ReplicaService
from kwire.replica.transaction_ports import TransactionMarker
from kwire.replica.verification import Guard
from kwire.types import TopicPartition

READ_BYTES = 1 << 20
COMMIT_TIMEOUT_S = 30.0
"""The limit in seconds of an abandoned wait; the coordinator's own timeout is shorter."""


@attrs.frozen(eq=False, repr=False)
class CoordinatorLog:
    """The internal topics' partitions that this broker leads."""

    replicas: ReplicaService
    clock: Clock

    @property
    def is_lease_over(self) -> bool:
        """True if another broker may already lead this broker's partitions."""
        return self.replicas.is_lease_over

    @property
    def lease_left_s(self) -> float:
        """The seconds until the lease ends if it is not extended; infinity without a lease."""
        lease = self.replicas.lease
        return inf if lease is None else lease.left_s(self.replicas.now())

    @property
    def lease_over_s(self) -> float:
        """The seconds for which this broker has been without its lease, in total."""
        lease = self.replicas.lease
        return 0.0 if lease is None else lease.over_s(self.replicas.now())

    def append(self, partition: TopicPartition, batch: bytes, guard: Guard | None = None) -> int:
        """Append as the leader; return the log end offset after the batch.

        ``guard``: the verification of a transaction's first batch.
        """
        replicas = self.replicas
        return replicas.append(
            replicas.partitions.get_led(*partition),
            batch,
            parse(batch),
            ACKS_ALL,
            self.clock.now_ms(),
            from_client=False,
            guard=guard,
        ).end_offset

    def append_marker(self, partition: TopicPartition, marker: TransactionMarker) -> int:
        """Append a transaction marker; return the log end offset after it."""
        from kwire.replica.markers import append_marker

        replicas = self.replicas
        hosted = replicas.partitions.get_led(*partition)
        return append_marker(replicas, hosted, marker, self.clock.now_ms()).end_offset

    def max_batch_bytes(self, partition: TopicPartition) -> int:
        """Return the largest batch size in bytes that the topic allows."""
        return self.replicas.partitions.get_led(*partition).config.max_batch_bytes

    def bounds(self, partition: TopicPartition) -> tuple[int, int]:
        log = self.replicas.partitions.get(*partition).log
        return log.log_start, log.end_offset

    def high_watermark(self, partition: TopicPartition) -> int:
        return self.replicas.partitions.get(*partition).high_watermark

    async def wait_committed(self, partition: TopicPartition, end_offset: int) -> None:
        leader = self.replicas.partitions.get_led(*partition)
        await self.replicas.wait_committed(leader, end_offset, COMMIT_TIMEOUT_S)

    async def read(self, partition: TopicPartition, offset: int) -> Buffer:
        """Return whole batches from the one that contains ``offset`` onwards; empty at the end.

        Raises KafkaStorageError while batches wait for a slow disk: without them, this
        coordinator's state would differ from that of the next coordinator to load the partition.
        """
        log = self.replicas.partitions.get(*partition).log
        if offset >= log.writer.written_offset:
            if offset < log.end_offset:
                raise KafkaStorageError(f"{partition}: not written from offset {offset} yet")
            return b""
        region = log.read(offset, READ_BYTES, end_offset=log.writer.written_offset)
        try:
            return region.read()
        finally:
            region.close()
