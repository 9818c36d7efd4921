"""Transaction markers: control batches that end a transaction in one partition.

Rules: all markers are appended before the first wait, so that the markers of many partitions are
replicated together; each partition succeeds or fails independently. Markers for
``__consumer_offsets`` go through the group coordinator, which applies them in order with its own
records. A partition rejects markers from a former coordinator by their coordinator epoch, and late
markers of earlier transactions by their producer epoch (KIP-1228).
"""

from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Final

import attrs

from kwire.clock import Clock
from kwire.drive import Slices
from kwire.errors import (
    NONE,
    CoordinatorLoadInProgress,
    CoordinatorNotAvailable,
    KafkaError,
    NotCoordinator,
    NotLeaderOrFollower,
)
from kwire.records.control import end_txn_marker
from kwire.records.header import parse
from kwire.replica.partition import ACKS_ALL, Partition, ProduceResult
from kwire.replica.replicas import ReplicaService
from kwire.replica.transaction_ports import TransactionMarker
from kwire.types import CONSUMER_OFFSETS, TopicPartition

STRICT_VERSION: Final = 2
"""The first ``transaction.version`` whose markers have a greater epoch than the transaction."""
_NOT_READY: Final = (CoordinatorLoadInProgress, CoordinatorNotAvailable, NotCoordinator)
"""Group coordinator errors after which the transaction coordinator resends the marker."""

WaitCommitted = Callable[[], Awaitable[None]]
"""Waits for the commit of a marker; raises KafkaError."""


EndGroupTransaction = Callable[[int, TransactionMarker], WaitCommitted]
"""Appends and applies a marker in a partition of ``__consumer_offsets``; raises KafkaError."""


def append_marker(
    replicas: ReplicaService, partition: Partition, marker: TransactionMarker, now_ms: int
) -> ProduceResult:
    """Append a marker as the leader of the partition; raises KafkaError."""
    partition.check_leader()
    partition.log.producers.check_marker(
        marker.producer_id,
        marker.producer_epoch,
        marker.coordinator_epoch,
        is_strict=marker.transaction_version >= STRICT_VERSION,
    )
    batch = end_txn_marker(
        commit=marker.commit,
        coordinator_epoch=marker.coordinator_epoch,
        producer_id=marker.producer_id,
        producer_epoch=marker.producer_epoch,
        timestamp_ms=now_ms,
    )
    return replicas.append(partition, batch, parse(batch), ACKS_ALL, now_ms, from_client=False)


@attrs.define(kw_only=True, eq=False, repr=False)
class Markers:
    """The writer of markers to the partitions that one broker leads."""

    replicas: ReplicaService
    end_group_transaction: EndGroupTransaction
    """The group coordinator's; that coordinator is in a layer above."""
    clock: Clock
    timeout_ms: Callable[[], int]
    """Returns ``request.timeout.ms``, which limits the wait for followers."""

    async def write_markers(
        self, markers: Sequence[TransactionMarker]
    ) -> Sequence[Mapping[TopicPartition, int]]:
        """Append the markers, wait for their commit and return each partition's error code."""
        results: list[dict[TopicPartition, int]] = []
        waits: list[tuple[dict[TopicPartition, int], TopicPartition, WaitCommitted]] = []
        slices = Slices()
        for marker in markers:
            codes: dict[TopicPartition, int] = {}
            results.append(codes)
            for partition in marker.partitions:
                try:
                    waits.append((codes, partition, self._append(partition, marker)))
                except KafkaError as error:
                    codes[partition] = _code(error)
                await slices.pause()
        for codes, partition, wait_committed in waits:
            codes[partition] = NONE
            try:
                await wait_committed()
            except KafkaError as error:
                codes[partition] = _code(error)
            await slices.pause()
        return results

    def _append(self, partition: TopicPartition, marker: TransactionMarker) -> WaitCommitted:
        hosted = self.replicas.partitions.get_led(*partition)
        if partition.topic == CONSUMER_OFFSETS:
            return self.end_group_transaction(partition.partition, marker)
        appended = append_marker(self.replicas, hosted, marker, self.clock.now_ms())

        deadline = self.replicas.now() + self.timeout_ms() / 1000

        async def wait_committed() -> None:
            await self.replicas.wait_acknowledged(hosted, appended, ACKS_ALL, deadline)

        return wait_committed


def _code(error: KafkaError) -> int:
    return NotLeaderOrFollower.code if isinstance(error, _NOT_READY) else error.code
