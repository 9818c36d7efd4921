"""The state of a transactional id: its producer, its transaction, and the legal transitions.

Values are immutable: a decision derives the next state from the current one and writes the next
state as a record. docs/transaction-states.md is generated from :data:`PREVIOUS`.
"""

from enum import IntEnum
from typing import Final

import attrs

from kwire.types import TopicPartition

NO_ID: Final = -1
"""The value for "no producer id" and "no producer epoch"."""
MAX_EPOCH: Final = 32_767
"""The largest producer epoch. No client receives it, so the coordinator can fence any client."""
FENCED: Final = MAX_EPOCH + 1
"""The last epoch if a newer producer has fenced it. No producer can send this number, so no request
of the fenced producer counts as a retry."""
EPOCH_BUMP: Final = 2
"""The `transaction.version` from which ending a transaction bumps the epoch (KIP-890)."""


class TransactionState(IntEnum):
    """The state of a transactional id, with the numbers that its records use."""

    EMPTY = 0
    ONGOING = 1
    PREPARE_COMMIT = 2
    """The commit is decided: markers are being written."""
    PREPARE_ABORT = 3
    """The abort is decided: markers are being written."""
    COMPLETE_COMMIT = 4
    COMPLETE_ABORT = 5
    DEAD = 6
    """Kafka's state of an expiring id; kwire removes the id at once with a tombstone."""
    PREPARE_EPOCH_FENCE = 7
    """Kafka's transient state between a fenced producer and PrepareAbort; never written."""

    @property
    def title(self) -> str:
        """The name that the protocol and Kafka's tools use, such as "PrepareCommit"."""
        return _TITLES[self]

    @property
    def is_prepared(self) -> bool:
        """True while the end is decided but some markers are not written."""
        return self in (TransactionState.PREPARE_COMMIT, TransactionState.PREPARE_ABORT)

    @property
    def is_idle(self) -> bool:
        """True while there is no transaction, so that the id may expire."""
        return self in (
            TransactionState.EMPTY,
            TransactionState.COMPLETE_COMMIT,
            TransactionState.COMPLETE_ABORT,
        )


_TITLES: Final = {
    state: "".join(word.capitalize() for word in state.name.split("_"))
    for state in TransactionState
}
BY_TITLE: Final = {title: state for state, title in _TITLES.items()}

_IDLE: Final = frozenset(
    {TransactionState.EMPTY, TransactionState.COMPLETE_COMMIT, TransactionState.COMPLETE_ABORT}
)
PREVIOUS: Final[dict[TransactionState, frozenset[TransactionState]]] = {
    TransactionState.EMPTY: _IDLE,
    TransactionState.ONGOING: _IDLE | {TransactionState.ONGOING},
    TransactionState.PREPARE_COMMIT: frozenset({TransactionState.ONGOING}),
    TransactionState.PREPARE_ABORT: _IDLE | {TransactionState.ONGOING},
    TransactionState.COMPLETE_COMMIT: frozenset({TransactionState.PREPARE_COMMIT}),
    TransactionState.COMPLETE_ABORT: frozenset({TransactionState.PREPARE_ABORT}),
    TransactionState.DEAD: _IDLE,
}
"""The states from which each state can be entered; the first state of an id is Empty."""


@attrs.frozen(kw_only=True, repr=False)
class Transaction:
    """A transactional id with its latest transaction."""

    transactional_id: str
    producer_id: int
    previous_producer_id: int = NO_ID
    """The producer id before the last change of any kind; usually the same id."""
    next_producer_id: int = NO_ID
    """The producer id after this transaction, if the epochs of the current id are used up."""
    producer_epoch: int
    last_producer_epoch: int = NO_ID
    """The epoch before the last bump that the producer itself requested (KIP-360), or FENCED.

    It is not written, so after a restart of the coordinator a retry of that request is fenced.
    """
    timeout_ms: int
    state: TransactionState = TransactionState.EMPTY
    partitions: frozenset[TopicPartition] = frozenset()
    start_ms: int = -1
    """The time at which the first partition was added; -1 in the state Empty."""
    update_ms: int
    client_version: int = 0
    """The `transaction.version` that the producer used in this transaction."""

    @property
    def has_used_up_epochs(self) -> bool:
        """Return whether the next bump needs a new producer id."""
        return self.producer_epoch >= MAX_EPOCH - 1

    @property
    def is_commit(self) -> bool:
        """Return whether the transaction that is ending, or has ended, commits."""
        return self.state in (TransactionState.PREPARE_COMMIT, TransactionState.COMPLETE_COMMIT)

    def remaining_ms(self, now_ms: int) -> int:
        """Return the remaining time of an open transaction, from 0 to its whole timeout."""
        return min(max(self.start_ms + self.timeout_ms - now_ms, 0), self.timeout_ms)

    def is_expired(self, now_ms: float, expiration_ms: int) -> bool:
        """Return whether the id has been idle for so long that it must be removed."""
        return self.state.is_idle and self.update_ms <= now_ms - expiration_ms
