"""Mistakes that transactions and groups can make; the simulation must catch them."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Final

import attrs

from kwire.coordinator.runtime import CoordinatorRuntime
from kwire.group.offsets import Offsets
from kwire.log.partition_log import PartitionLog
from kwire.log.producers import ProducerStates
from kwire.log.region import FileRegion
from kwire.replica import partition as partitions
from kwire.replica.transaction_ports import TransactionMarker
from kwire.replica.verification import Verifications
from kwire.transaction import transitions
from kwire.transaction.marker_sender import MarkerSender, TransactionEnd
from kwire.transaction.model import Transaction, TransactionState
from kwire.transaction.transitions import Producer, TransitionContext
from kwire.types import TopicPartition
from simulation.raft.mutations import Mutation

_send = MarkerSender.send
_marker = TransactionEnd.marker
_prepare = transitions._prepare
_initialize = transitions.initialize
_apply_offset = Offsets.apply


def _send_all_but_one(sender: MarkerSender, ends: Iterable[TransactionEnd]) -> None:
    ends = list(ends)
    for end in ends:
        if len(end.missing) > 1:
            end.missing.discard(max(end.missing))
    _send(sender, ends)


def _always_commit(end: TransactionEnd, written: Sequence[TopicPartition]) -> TransactionMarker:
    return attrs.evolve(_marker(end, written), commit=True)


def _take_all_as_written(
    sender: MarkerSender,
    end: TransactionEnd,
    written: Sequence[TopicPartition],
    codes: Mapping[TopicPartition, int],
) -> list[TopicPartition]:
    end.missing.difference_update(written)
    return []


def _prepare_without_bump(
    transaction: Transaction, client_version: int, change: TransitionContext, *, commit: bool
) -> Transaction:
    return _prepare(transaction, 0, change, commit=commit)


def _initialize_beside(
    transaction: Transaction, timeout_ms: int, expected: Producer | None, change: TransitionContext
) -> Transaction:
    """Assign an epoch to the next producer without aborting the open transaction."""
    if transaction.state is TransactionState.ONGOING:
        transaction = attrs.evolve(transaction, state=TransactionState.COMPLETE_ABORT)
    return _initialize(transaction, timeout_ms, expected, change)


def _check_id_only(transaction: Transaction | None, producer: Producer) -> Transaction:
    assert transaction is not None
    return transaction


def _any_epoch(transaction: Transaction, producer: Producer, *, is_retry: bool) -> bool:
    return True


def _verify_nothing(*_: object, **__: object) -> None:
    """Accept every transactional batch."""


def _to_high_watermark(states: ProducerStates, high_watermark: int, log_start: int = 0) -> int:
    del states, log_start
    return high_watermark


def _no_aborted(
    log: PartitionLog, offset: int, max_bytes: int, **more: bool
) -> tuple[FileRegion, list[object]]:
    return log.read(offset, max_bytes, **more), []


def _apply_at_once(offsets: Offsets, key: object, value: object, producer_id: int) -> None:
    _apply_offset(offsets, key, value, -1)  # type: ignore[arg-type]


async def _wait_for_nothing(*_: object) -> None:
    """Answer before the decision is replicated."""


MUTATIONS: Final = (
    Mutation(
        "one-partition-gets-no-marker",
        "the coordinator leaves out one partition of each transaction's markers",
        ((MarkerSender, "send", _send_all_but_one),),
        (61,),
    ),
    Mutation(
        "every-marker-commits",
        "the marker of an abort commits the records",
        ((TransactionEnd, "marker", _always_commit),),
        (4, 6),
    ),
    Mutation(
        "refused-markers-count-as-written",
        "a transaction completes though a partition has refused its marker for now",
        ((MarkerSender, "_take_results", _take_all_as_written),),
        (59, 61),
    ),
    Mutation(
        "end-bumps-no-epoch",
        "the end of a transaction leaves the producer's epoch as it is",
        ((transitions, "_prepare", _prepare_without_bump),),
        (57,),
    ),
    Mutation(
        "next-producer-leaves-the-transaction-open",
        "a producer that starts again does not end its predecessor's transaction",
        ((transitions, "initialize", _initialize_beside),),
        (54, 61),
    ),
    Mutation(
        "former-producers-go-on",
        "the coordinator compares no producer epochs",
        (
            (transitions, "_check_owner", _check_id_only),
            (transitions, "_is_valid_epoch", _any_epoch),
        ),
        (54, 57),
    ),
    Mutation(
        "records-without-verification",
        "a leader takes transactional records without asking the coordinator",
        ((Verifications, "begin", _verify_nothing), (Verifications, "check", _verify_nothing)),
        (56, 61),
    ),
    Mutation(
        "open-transactions-are-stable",
        "the last stable offset is the high watermark",
        ((ProducerStates, "last_stable_offset", _to_high_watermark),),
        (5, 13),
    ),
    Mutation(
        "no-list-of-aborted-transactions",
        "read_committed gets no list of the aborted transactions in a range",
        ((partitions, "read_committed", _no_aborted),),
        (4, 19),
    ),
    Mutation(
        "offsets-before-the-commit",
        "offsets of a transaction are committed before it is",
        ((Offsets, "apply", _apply_at_once),),
        (62,),
    ),
    Mutation(
        "coordinators-answer-before-the-commit",
        "coordinators answer before their records are replicated",
        ((CoordinatorRuntime, "_wait_committed", _wait_for_nothing),),
        (11, 59),
    ),
)
