"""The interface between transaction coordinators and the partitions of their transactions.

A coordinator has markers written by a :class:`MarkerWriter`, on the leader's node; a partition's
leader has a producer verified by a :class:`TransactionVerifier`, wherever the coordinator is.
Both report an error code per partition and never raise KafkaError; 0 is success.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

from kwire import attrs

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from kwire.types import TopicPartition


@attrs.frozen(kw_only=True)
class TransactionMarker:
    """The end of one transaction in some of its partitions, which are led by one broker."""

    producer_id: int
    producer_epoch: int
    commit: bool
    """Whether the transaction commits; else it aborts."""
    coordinator_epoch: int
    partitions: Sequence[TopicPartition]
    transaction_version: int = 0
    """The `transaction.version` that the transaction ends with; from 2 on the epoch of a marker
    has to be greater than the producer's (KIP-1228)."""


class MarkerWriter(Protocol):
    """The partitions that this broker leads, groups' partitions among them."""

    async def write_markers(
        self, markers: Sequence[TransactionMarker]
    ) -> Sequence[Mapping[TopicPartition, int]]:
        """Append the markers and return when they are committed: the code of each partition.

        There is one mapping per marker, in the order of the markers.
        """


class TransactionVerifier(Protocol):
    """The transaction coordinators of the cluster, as the leader of a partition asks them."""

    async def verify(
        self,
        transactional_id: str,
        producer_id: int,
        producer_epoch: int,
        partitions: Sequence[TopicPartition],
        *,
        add: bool = False,
    ) -> Mapping[TopicPartition, int]:
        """Return NONE for each partition that is in the producer's ongoing transaction.

        With ``add`` partitions that are not are added (clients of `transaction.version` 2).  The
        other codes are the coordinator's own; COORDINATOR_NOT_AVAILABLE or NETWORK_EXCEPTION if it
        does not answer.
        """
