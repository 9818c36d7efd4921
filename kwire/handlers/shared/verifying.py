"""The verification of transactional producers by handlers that append their records (KIP-890).

The transaction coordinator is asked only before a transaction's first batch in a partition. A guard
is created before the request is sent, and passed to the append.
"""

from collections.abc import Sequence
from typing import Final, NamedTuple

from kwire.drive import wait_seconds
from kwire.errors import (
    NONE,
    ConcurrentTransactions,
    InvalidProducerEpoch,
    InvalidTxnState,
    KafkaError,
    ProducerFenced,
    TransactionAbortable,
    error_class,
)
from kwire.handlers.shared.context import Context
from kwire.replica.partition import Partition
from kwire.replica.verification import NOT_REQUIRED, Guard, TransactionalBatch
from kwire.types import TopicPartition

KNOWS_ABORTABLE: Final = 1
ADDS_PARTITIONS: Final = 2
_RETRY_S: Final = 0.02
"""``add.partitions.to.txn.retry.backoff.ms``."""
_RETRIES_S: Final = 0.1
"""``add.partitions.to.txn.retry.backoff.max.ms``: the limit for all retries together."""


class Verified(NamedTuple):
    """The verification of one partition."""

    guard: Guard | None = None
    """The guard to append with; None if the transaction is already open."""
    error: KafkaError | None = None
    """The transaction coordinator's error, translated for the request's clients."""


UNVERIFIED: Final = Verified()
Verifications = dict[TopicPartition, Verified]


async def verify(
    context: Context,
    transactional_id: str,
    batches: Sequence[tuple[Partition, TransactionalBatch]],
    transaction_support: int,
) -> Verifications:
    """Verify that partitions are in the transaction of the batches, which have the same producer.

    If ``transaction_support`` is :data:`ADDS_PARTITIONS`, the partitions are added to the
    transaction.
    """
    deadline = context.replicas.now() + _RETRIES_S
    results: Verifications = {}
    delay_s = 0.0  # A coordinator on this broker has already waited for the marker.
    while batches:
        results |= await _verify_once(context, transactional_id, batches, transaction_support)
        if transaction_support < ADDS_PARTITIONS or context.replicas.now() >= deadline:
            break
        # The marker of the previous transaction has not arrived yet; it will invalidate this guard.
        batches = [
            (partition, batch)
            for partition, batch in batches
            if isinstance(results[partition.log.partition].error, ConcurrentTransactions)
        ]
        if batches:
            await wait_seconds(delay_s)
            delay_s = _RETRY_S
    return results


async def _verify_once(
    context: Context,
    transactional_id: str,
    batches: Sequence[tuple[Partition, TransactionalBatch]],
    transaction_support: int,
) -> Verifications:
    adds_partitions = transaction_support >= ADDS_PARTITIONS
    behind = [each for each in batches if adds_partitions and _is_behind(*each)]
    results = {
        partition.log.partition: _begin(context, partition, batch, adds_partitions)
        for partition, batch in batches
    }
    unverified = [
        name
        for name, verified in results.items()
        if verified.guard is not None and verified.guard is not NOT_REQUIRED
    ]
    if unverified:
        producer_id, epoch, _ = batches[0][1]
        codes = await context.broker.verifier.verify(
            transactional_id,
            producer_id,
            epoch,
            unverified,
            add=adds_partitions,
        )
        for name in unverified:
            code = codes.get(name, NONE)
            if code != NONE:
                results[name] = Verified(error=_to_producer_error(code, transaction_support))
        for partition, batch in behind:
            name = partition.log.partition
            guard = results[name].guard
            if guard is not None and partition.verifications.is_discarded(guard, batch.producer_id):
                results[name] = Verified(error=ConcurrentTransactions())
    return results


def _is_behind(partition: Partition, batch: TransactionalBatch) -> bool:
    """Return whether the marker after which the batch's epoch begins may still be on its way.

    If the marker arrives before the coordinator's response, it discards the guard, although the
    response is about the new transaction. Asking again is safe: the next marker has a higher epoch.
    """
    producer = partition.log.producers.get(batch.producer_id)
    return batch.epoch > (producer.epoch if producer is not None else 0)


def _begin(
    context: Context, partition: Partition, batch: TransactionalBatch, adds_partitions: bool
) -> Verified:
    if not (adds_partitions or context.config.transaction_partition_verification_enable):
        return Verified(NOT_REQUIRED)
    try:
        partition.check_leader()
        guard = partition.verifications.begin(
            partition.log.producers,
            batch,
            adds_partitions=adds_partitions,
            now_ms=context.clock.now_ms(),
            expiration_ms=partition.config.producer_id_expiration_ms,
        )
    except KafkaError as error:
        return Verified(error=error)
    return Verified(guard)


def _to_producer_error(code: int, transaction_support: int) -> KafkaError:
    """Translate the coordinator's error to an error that the request's version supports."""
    if code == ProducerFenced.code:
        return InvalidProducerEpoch()
    if code == TransactionAbortable.code and transaction_support < KNOWS_ABORTABLE:
        return InvalidTxnState()
    return error_class(code)()
