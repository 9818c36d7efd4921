"""The decisions about one transactional id: pure functions from its state to its next state.

Rules: a function returns the next state, or the same state if there is nothing to write, or raises
the protocol's error. The epochs follow KIP-360 (a producer that continues after an error), KIP-890
(from `transaction.version` 2 onwards each end bumps the epoch) and KAFKA-19367 (fencing an open
transaction bumps it once). While markers are missing, every request gets ConcurrentTransactions
before its producer is checked: the state may not yet contain the producer id that EndTxn has
returned to the client (KAFKA-18660).
"""

from collections.abc import Iterable, Mapping
from typing import NamedTuple

import attrs

from kwire.errors import (
    NONE,
    ConcurrentTransactions,
    InvalidProducerIdMapping,
    InvalidTxnState,
    ProducerFenced,
    TransactionAbortable,
)
from kwire.transaction.model import (
    EPOCH_BUMP,
    FENCED,
    MAX_EPOCH,
    NO_ID,
    PREVIOUS,
    Transaction,
    TransactionState,
)
from kwire.types import TopicPartition


class Producer(NamedTuple):
    """A producer id with its epoch."""

    id: int
    epoch: int


class ProducerIdNeeded(Exception):
    """The decision needs a new producer id: repeat it with one."""


class TransitionContext(NamedTuple):
    """The time, the server's version and a spare producer id, which a decision may need."""

    now_ms: int
    server_version: int
    """The finalized level of `transaction.version`."""
    fresh_id: int | None = None
    """An unused producer id, for repeating a decision that raised ProducerIdNeeded."""

    def take_id(self) -> int:
        if self.fresh_id is None:
            raise ProducerIdNeeded
        return self.fresh_id


def create(transactional_id: str, timeout_ms: int, change: TransitionContext) -> Transaction:
    """Return the first state of a new transactional id."""
    producer_id = change.take_id()
    return Transaction(
        transactional_id=transactional_id,
        producer_id=producer_id,
        previous_producer_id=producer_id,
        producer_epoch=0,
        timeout_ms=timeout_ms,
        update_ms=change.now_ms,
    )


def initialize(
    transaction: Transaction, timeout_ms: int, expected: Producer | None, change: TransitionContext
) -> Transaction:
    """Return the state for a producer that starts or restarts.

    The state is PrepareAbort if a transaction was open: the producer then has to retry.
    ``expected`` is the identity of a producer that continues after an error; it is fenced if a
    newer producer uses the same id, and only the newest one may abort the open transaction in this
    way.
    """
    if transaction.state.is_prepared:
        raise ConcurrentTransactions
    if expected is not None and not _may_continue(transaction, expected):
        raise ProducerFenced
    if transaction.state is TransactionState.ONGOING:
        if expected not in (None, Producer(transaction.producer_id, transaction.producer_epoch)):
            raise ProducerFenced
        fenced = fence(transaction, change)
        return fenced if expected else attrs.evolve(fenced, last_producer_epoch=FENCED)
    start = attrs.evolve(transaction, timeout_ms=timeout_ms, partitions=frozenset(), start_ms=-1)
    return _enter(TransactionState.EMPTY, transaction, _bump(start, expected, change), change)


def _bump(
    transaction: Transaction, expected: Producer | None, change: TransitionContext
) -> Transaction:
    """Return the state with a bumped epoch for a producer that starts or restarts."""
    epoch = transaction.producer_epoch
    last_epoch = NO_ID if expected is None else epoch
    if expected is None or expected.epoch == epoch:
        if not transaction.has_used_up_epochs:
            return attrs.evolve(
                transaction, producer_epoch=epoch + 1, last_producer_epoch=last_epoch
            )
        return attrs.evolve(
            transaction,
            producer_id=change.take_id(),
            producer_epoch=0,
            last_producer_epoch=last_epoch,
        )
    if expected.epoch == transaction.last_producer_epoch:
        return transaction
    raise ProducerFenced


def _may_continue(transaction: Transaction, expected: Producer) -> bool:
    """Return whether the producer has this id, or had it until its epochs were used up."""
    return expected.id == transaction.producer_id or (
        expected.id == transaction.previous_producer_id and expected.epoch >= MAX_EPOCH - 1
    )


def add_partitions(
    transaction: Transaction | None,
    producer: Producer,
    partitions: frozenset[TopicPartition],
    client_version: int,
    change: TransitionContext,
) -> Transaction:
    """Return the state with these partitions added; the first ones start the transaction."""
    current = _check_owner(transaction, producer)
    is_ongoing = current.state is TransactionState.ONGOING
    if is_ongoing and partitions <= current.partitions:
        return current
    larger = attrs.evolve(
        current,
        partitions=current.partitions | partitions,
        start_ms=current.start_ms if is_ongoing else change.now_ms,
        client_version=client_version,
    )
    return _enter(TransactionState.ONGOING, current, larger, change)


def verify_partitions(
    transaction: Transaction | None, producer: Producer, partitions: Iterable[TopicPartition]
) -> Mapping[TopicPartition, int]:
    """Return the error code of each partition, 0 if the partition is in the transaction."""
    current = _check_owner(transaction, producer)
    return {
        partition: NONE if partition in current.partitions else TransactionAbortable.code
        for partition in partitions
    }


def _check_owner(transaction: Transaction | None, producer: Producer) -> Transaction:
    """Return the state if no markers are missing and ``producer`` owns it; else raise."""
    if transaction is None:
        raise InvalidProducerIdMapping
    if transaction.state.is_prepared:
        raise ConcurrentTransactions
    if transaction.producer_id != producer.id:
        raise InvalidProducerIdMapping
    if transaction.producer_epoch != producer.epoch:
        raise ProducerFenced
    return transaction


def end(
    transaction: Transaction | None,
    producer: Producer,
    client_version: int,
    change: TransitionContext,
    *,
    commit: bool,
) -> Transaction:
    """Return the prepared state for a producer that ends its transaction.

    A retry of an end that is already complete returns the state unchanged.
    """
    if client_version < EPOCH_BUMP:
        return _end_without_bump(_check_owner(transaction, producer), change, commit=commit)
    if transaction is None:
        raise InvalidProducerIdMapping
    if transaction.state.is_prepared:
        raise ConcurrentTransactions
    is_rotated = (
        transaction.previous_producer_id == producer.id
        and producer.epoch == MAX_EPOCH - 1
        and transaction.producer_epoch == 0
    )
    is_retry = is_rotated or transaction.producer_epoch == producer.epoch + 1
    is_retry &= transaction.last_producer_epoch != FENCED
    if transaction.producer_id != producer.id and not is_rotated:
        raise InvalidProducerIdMapping
    if not _is_valid_epoch(transaction, producer, is_retry=is_retry):
        raise ProducerFenced
    if transaction.state is TransactionState.ONGOING:
        return _prepare(transaction, client_version, change, commit=commit)
    if is_retry:
        return _repeat_end(transaction, commit=commit)
    if commit:
        raise InvalidTxnState
    # An abort without partitions: the producer cannot know that nothing reached the brokers.
    started = attrs.evolve(transaction, start_ms=change.now_ms)
    return _prepare(started, client_version, change, commit=False)


def _is_valid_epoch(transaction: Transaction, producer: Producer, *, is_retry: bool) -> bool:
    is_current = transaction.producer_epoch == producer.epoch
    if transaction.state in (TransactionState.COMPLETE_COMMIT, TransactionState.COMPLETE_ABORT):
        return is_current or is_retry
    return is_current


def _end_without_bump(
    transaction: Transaction, change: TransitionContext, *, commit: bool
) -> Transaction:
    """Return the prepared state for a producer of `transaction.version` 0 or 1."""
    if transaction.state is TransactionState.ONGOING:
        return _prepare(transaction, 0, change, commit=commit)
    return _repeat_end(transaction, commit=commit)


def _repeat_end(transaction: Transaction, *, commit: bool) -> Transaction:
    """Return the state unchanged if it already has the requested end."""
    if transaction.state is TransactionState.EMPTY or transaction.is_commit != commit:
        raise InvalidTxnState
    return transaction


def fence(transaction: Transaction, change: TransitionContext) -> Transaction:
    """Return the state that aborts an open transaction and fences its producer.

    If the transaction has timed out, its producer receives the bumped epoch when it aborts
    (KIP-890), and may continue. If a newer producer has fenced it, no producer receives that epoch.
    """
    if change.server_version >= EPOCH_BUMP:
        return _prepare(transaction, change.server_version, change, commit=False)
    epoch = min(transaction.producer_epoch + 1, MAX_EPOCH)
    fenced = attrs.evolve(transaction, producer_epoch=epoch, last_producer_epoch=NO_ID)
    return _prepare(fenced, 0, change, commit=False)


def _prepare(
    transaction: Transaction, client_version: int, change: TransitionContext, *, commit: bool
) -> Transaction:
    state = TransactionState.PREPARE_COMMIT if commit else TransactionState.PREPARE_ABORT
    decided = attrs.evolve(transaction, next_producer_id=NO_ID, client_version=client_version)
    if client_version >= EPOCH_BUMP:
        decided = attrs.evolve(
            decided,
            producer_epoch=min(transaction.producer_epoch + 1, MAX_EPOCH),
            last_producer_epoch=transaction.producer_epoch,
            next_producer_id=change.take_id() if transaction.has_used_up_epochs else NO_ID,
        )
    return _enter(state, transaction, decided, change)


def complete(transaction: Transaction, change: TransitionContext) -> Transaction:
    """Return the final state of a transaction whose markers are all written."""
    state = (
        TransactionState.COMPLETE_COMMIT
        if transaction.is_commit
        else TransactionState.COMPLETE_ABORT
    )
    ended = attrs.evolve(transaction, next_producer_id=NO_ID, partitions=frozenset())
    if transaction.next_producer_id != NO_ID:
        ended = attrs.evolve(ended, producer_id=transaction.next_producer_id, producer_epoch=0)
    return _enter(state, transaction, ended, change)


def _enter(
    state: TransactionState, before: Transaction, after: Transaction, change: TransitionContext
) -> Transaction:
    """Return ``after`` in the new state, recording the previous producer id."""
    assert before.state in PREVIOUS[state], (before, state)
    return attrs.evolve(
        after, state=state, previous_producer_id=before.producer_id, update_ms=change.now_ms
    )
