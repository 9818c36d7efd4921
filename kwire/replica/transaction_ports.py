"""The interface between transaction coordinators and the partitions of their transactions.

A coordinator writes markers through a :class:`MarkerWriter` on the leader's node; a partition's
leader verifies a producer through a :class:`TransactionVerifier`, wherever the coordinator is. Both
report an error code per partition and never raise KafkaError; 0 is success.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

import attrs

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from kwire.types import TopicPartition


@attrs.frozen(kw_only=True, repr=False)
class TransactionMarker:
    """The end of one transaction, for those of its partitions that one broker leads."""

    producer_id: int
    producer_epoch: int
    commit: bool
    """True if the transaction commits, False if it aborts."""
    coordinator_epoch: int
    partitions: Sequence[TopicPartition]
    transaction_version: int = 0
    """The `transaction.version` with which the transaction ends; from 2 onwards, a marker's epoch
    must be greater than the producer's (KIP-1228)."""


class MarkerWriter(Protocol):
    """The writer of markers to partitions led by this broker, including group partitions."""

    async def write_markers(
        self, markers: Sequence[TransactionMarker]
    ) -> Sequence[Mapping[TopicPartition, int]]:
        """Append the markers, wait for their commit and return each partition's error code.

        There is one mapping per marker, in the order of the markers.
        """


class TransactionVerifier(Protocol):
    """The verification of producers by the cluster's transaction coordinators."""

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

        With ``add``, the other partitions are added to it (for clients of `transaction.version` 2).
        Other codes are the coordinator's, or COORDINATOR_NOT_AVAILABLE or NETWORK_EXCEPTION if it
        does not answer.
        """
