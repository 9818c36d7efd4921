"""A transactional id's state: its producer, its transaction, and the legal transitions.

Values are immutable: a decision makes the next one from the last, and the record of the next one
is what is written.  docs/transaction-states.md is generated from :data:`PREVIOUS`.
"""

from enum import IntEnum
from typing import Final

from kwire import attrs
from kwire.types import TopicPartition

NO_ID: Final = -1
"""In place of a producer id or a producer epoch."""
MAX_EPOCH: Final = 32_767
"""The largest producer epoch.  No client gets it, so the coordinator can always fence one."""
EPOCH_BUMP: Final = 2
"""The `transaction.version` from which each end of a transaction bumps the epoch (KIP-890)."""


class State(IntEnum):
    """The state of a transactional id, under the numbers of its records."""

    EMPTY = 0
    ONGOING = 1
    PREPARE_COMMIT = 2
    """The commit is decided: markers are being written."""
    PREPARE_ABORT = 3
    """The abort is decided: markers are being written."""
    COMPLETE_COMMIT = 4
    COMPLETE_ABORT = 5
    DEAD = 6
    """Kafka's state of an id that expires; here its tombstone removes it at once."""
    PREPARE_EPOCH_FENCE = 7
    """Kafka's passing state between a fenced producer and PrepareAbort; never written."""

    @property
    def title(self) -> str:
        """The name that the protocol and Kafka's tools use, as "PrepareCommit"."""
        return _TITLES[self]

    @property
    def is_prepared(self) -> bool:
        """Whether the end is decided and the markers are not all written."""
        return self in (State.PREPARE_COMMIT, State.PREPARE_ABORT)

    @property
    def is_idle(self) -> bool:
        """Whether there is no transaction: the id may expire."""
        return self in (State.EMPTY, State.COMPLETE_COMMIT, State.COMPLETE_ABORT)


_TITLES: Final = {
    state: "".join(word.capitalize() for word in state.name.split("_")) for state in State
}
BY_TITLE: Final = {title: state for state, title in _TITLES.items()}

_IDLE: Final = frozenset({State.EMPTY, State.COMPLETE_COMMIT, State.COMPLETE_ABORT})
PREVIOUS: Final[dict[State, frozenset[State]]] = {
    State.EMPTY: _IDLE,
    State.ONGOING: _IDLE | {State.ONGOING},
    State.PREPARE_COMMIT: frozenset({State.ONGOING}),
    State.PREPARE_ABORT: _IDLE | {State.ONGOING},
    State.COMPLETE_COMMIT: frozenset({State.PREPARE_COMMIT}),
    State.COMPLETE_ABORT: frozenset({State.PREPARE_ABORT}),
    State.DEAD: _IDLE,
}
"""The states from which each state may be entered; an id's first state is Empty."""


@attrs.frozen(kw_only=True)
class Transaction:
    """A transactional id with its newest transaction."""

    transactional_id: str
    producer_id: int
    previous_producer_id: int = NO_ID
    """The producer id before the last change of any kind, so mostly the same."""
    next_producer_id: int = NO_ID
    """The producer id from the end of this transaction on, if this one's epochs are used up."""
    producer_epoch: int
    last_producer_epoch: int = NO_ID
    """The epoch before the last bump that the producer itself requested (KIP-360).

    It is not written: after a restart of the coordinator a retry of that request is fenced.
    """
    timeout_ms: int
    state: State = State.EMPTY
    partitions: frozenset[TopicPartition] = frozenset()
    start_ms: int = -1
    """The time of the first partition, -1 in Empty."""
    update_ms: int
    client_version: int = 0
    """The `transaction.version` at which the producer worked in this transaction."""

    @property
    def has_used_up_epochs(self) -> bool:
        """Whether the next bump needs another producer id."""
        return self.producer_epoch >= MAX_EPOCH - 1

    @property
    def is_commit(self) -> bool:
        """Whether the transaction that ends, or has ended, commits."""
        return self.state in (State.PREPARE_COMMIT, State.COMPLETE_COMMIT)

    def remaining_ms(self, now_ms: int) -> int:
        """Return what is left of an open transaction's time-out, between nothing and all of it."""
        return min(max(self.start_ms + self.timeout_ms - now_ms, 0), self.timeout_ms)

    def is_expired(self, now_ms: float, expiration_ms: int) -> bool:
        """Whether the id has been idle for so long that it is removed."""
        return self.state.is_idle and self.update_ms <= now_ms - expiration_ms
