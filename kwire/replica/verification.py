"""The verification of transactional producers by the leader of a partition (KIP-890).

A transaction's first batch in a partition is appended only if the transaction coordinator has
confirmed that the partition is in the transaction. Rules: a :class:`Guard` is created before the
coordinator is asked, and checked at the append. A marker or another append in between discards the
guard, so that an answer about one transaction never admits records to the next. So does the end of
this broker's leadership, after which the client has to resend. Once a transaction is open, its
further batches need no guard.
"""

from typing import Final, NamedTuple

import attrs

from kwire.errors import (
    InvalidProducerEpoch,
    InvalidTxnState,
    NotLeaderOrFollower,
    OutOfOrderSequenceNumber,
)
from kwire.log.producers import Producer, ProducerStates
from kwire.records.header import CONTROL, NO_SEQUENCE, BatchHeader

_PURGE_AT_LEAST: Final = 1000
"""The smallest number of verifications at which abandoned ones are removed."""


class Guard:
    """The identity of one verification."""

    __slots__ = ("is_void",)

    def __init__(self) -> None:
        self.is_void = False
        """True once this broker has lost the leadership in which the verification began."""


NOT_REQUIRED: Final = Guard()
"""The guard of an append while ``transaction.partition.verification.enable`` is false."""


class TransactionalBatch(NamedTuple):
    """The producer and first sequence of a batch to verify; -1 if it has no sequences."""

    producer_id: int
    epoch: int
    sequence: int = NO_SEQUENCE


@attrs.define(eq=False, repr=False)
class _Verification:
    """A verification that has begun and whose batch is not appended yet."""

    guard: Guard
    began_ms: int
    epoch: int
    lowest_sequence: int
    """The lowest sequence seen in this epoch; higher ones are rejected until it is appended."""
    adds_partitions: bool

    def note(self, epoch: int, sequence: int) -> None:
        if epoch > self.epoch or (epoch == self.epoch and sequence < self.lowest_sequence):
            self.epoch, self.lowest_sequence = epoch, sequence


@attrs.define(eq=False, repr=False)
class Verifications:
    """The verifications of one led partition, by producer id."""

    _ongoing: dict[int, _Verification] = attrs.field(factory=dict)
    _purge_at: int = _PURGE_AT_LEAST

    def __len__(self) -> int:
        return len(self._ongoing)

    def begin(
        self,
        producers: ProducerStates,
        batch: TransactionalBatch,
        *,
        adds_partitions: bool,
        now_ms: int,
        expiration_ms: int,
    ) -> Guard | None:
        """Return the guard for the batch's append; None if its transaction is already open.

        Also return None for a duplicate, which cannot begin the next transaction.
        ``adds_partitions``: the client relies on its batches to add partitions
        (``transaction.version`` 2). Raises InvalidProducerEpoch.
        """
        producer_id, epoch, sequence = batch
        producer = producers.get(producer_id)
        _check_epoch(producer, epoch)
        if is_open(producer, epoch) or _is_appended(producer, batch):
            return None
        if len(self._ongoing) >= self._purge_at:
            self._purge(now_ms - expiration_ms)
        verification = self._ongoing.get(producer_id)
        if verification is None:
            verification = _Verification(Guard(), now_ms, epoch, sequence, adds_partitions)
            self._ongoing[producer_id] = verification
        else:
            verification.note(epoch, sequence)
        return verification.guard

    def is_discarded(self, guard: Guard, producer_id: int) -> bool:
        """Return whether a marker or another append has discarded a guard."""
        if guard is NOT_REQUIRED or guard.is_void:
            return False
        verification = self._ongoing.get(producer_id)
        return verification is None or verification.guard is not guard

    def check(
        self,
        producers: ProducerStates,
        header: BatchHeader,
        guard: Guard | None,
        *,
        from_client: bool,
    ) -> None:
        """Check that a transactional batch may be appended.

        Raises InvalidTxnState, InvalidProducerEpoch, OutOfOrderSequenceNumber, or
        NotLeaderOrFollower if this broker leads again, but not without interruption.
        """
        if header.attributes & CONTROL:
            return
        producer = producers.get(header.producer_id)
        if producer is not None and from_client and producer.find(header) is not None:
            return  # The append returns the first copy's offsets, whatever its transaction did.
        if is_open(producer, header.producer_epoch):
            return
        _check_epoch(producer, header.producer_epoch)
        if guard is NOT_REQUIRED:
            return
        verification = self._ongoing.get(header.producer_id)
        if verification is None or verification.guard is not guard:
            if guard is not None and guard.is_void:
                raise NotLeaderOrFollower("the leadership was lost during the verification")
            raise InvalidTxnState("the batch is not part of an ongoing transaction")
        if from_client:
            _check_sequence(verification, producer, header)

    def on_appended(self, producer_id: int) -> None:
        """Discard a producer's guard after its batch or its marker was appended."""
        self._ongoing.pop(producer_id, None)

    def on_elected(self) -> None:
        """Discard the guards of this broker's earlier leadership."""
        for verification in self._ongoing.values():
            verification.guard.is_void = True
        self._ongoing.clear()

    def _purge(self, before_ms: int) -> None:
        """Remove verifications that began by ``before_ms`` and whose batch has not arrived."""
        self._ongoing = {
            producer_id: verification
            for producer_id, verification in self._ongoing.items()
            if verification.began_ms > before_ms
        }
        self._purge_at = max(_PURGE_AT_LEAST, 2 * len(self._ongoing))


def is_open(producer: Producer | None, epoch: int) -> bool:
    """Return whether a producer has an open transaction in this epoch."""
    return producer is not None and producer.open_from >= 0 and producer.epoch == epoch


def _is_appended(producer: Producer | None, batch: TransactionalBatch) -> bool:
    return (
        producer is not None
        and producer.epoch == batch.epoch
        and any(sent.first_sequence == batch.sequence for sent in producer.batches)
    )


def _check_epoch(producer: Producer | None, epoch: int) -> None:
    if producer is not None and epoch < producer.epoch:
        raise InvalidProducerEpoch(
            f"producer {producer.producer_id} has epoch {producer.epoch}, not {epoch}"
        )


def _check_sequence(
    verification: _Verification, producer: Producer | None, header: BatchHeader
) -> None:
    """Reject a batch that overtook the transaction's first batch."""
    sequence = header.base_sequence
    is_new = producer is None or not producer.batches
    first = 0 if verification.adds_partitions and is_new else verification.lowest_sequence
    if sequence > first:
        raise OutOfOrderSequenceNumber(
            f"producer {header.producer_id} sent sequence {sequence} before {first}"
        )
