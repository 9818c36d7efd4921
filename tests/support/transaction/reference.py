"""The answers that Apache Kafka documents for the requests about one transactional id.

It knows no log, no time-outs of its own and no markers: the test says when a time-out or the last
marker has taken effect.  A request changes it only if Kafka would write a record.  Sources: KIP-98,
KIP-360 (a producer that goes on after an error), KIP-447, KIP-890 (a bump at each end).
"""

import copy
from typing import Final, NamedTuple, TypeAlias

import attrs

from kwire.errors import (
    ConcurrentTransactions,
    InvalidProducerIdMapping,
    InvalidTxnState,
    KafkaError,
    ProducerFenced,
    TransactionAbortable,
)
from kwire.types import TopicPartition

FRESH: Final = -7
"""In place of a producer id that no producer had before."""
LAST_EPOCH: Final = 32_766
"""The last epoch that a client may get; 32767 is for fencing it."""

Error: TypeAlias = type[KafkaError]
FENCED: Final = 32_768
"""In place of the last epoch of a producer that a newer producer has fenced."""


class Identity(NamedTuple):
    """A producer id and epoch, as a client gets and sends them."""

    id: int
    epoch: int


NO_OWNER: Final = Identity(-1, -1)


def replace_fresh(identity: Identity, id_: int) -> Identity:
    return Identity(id_, identity.epoch) if identity.id == FRESH else identity


@attrs.define
class Reference:
    """The state of one transactional id; its names are those of Kafka's tools."""

    state: str = "None"
    owner: Identity = NO_OWNER
    previous_id: int = -1
    """The producer id before the last record."""
    following: Identity | None = None
    """The producer from the end of this transaction on, if it has another id."""
    last_epoch: int | None = None
    """The epoch before the bump of the newest answer; a coordinator that loads does not know it."""
    partitions: frozenset[TopicPartition] = frozenset()
    timeout_ms: int = 0
    start_ms: int = -1
    record_count: int = 0
    """The number of records that Kafka would have written."""

    @property
    def is_prepared(self) -> bool:
        return self.state.startswith("Prepare")

    @property
    def is_idle(self) -> bool:
        return self.state in ("Empty", "CompleteCommit", "CompleteAbort")

    @property
    def is_ongoing(self) -> bool:
        return self.state == "Ongoing"

    def copy(self) -> "Reference":
        return copy.copy(self)

    def _enter(self, state: str) -> None:
        self.state, self.previous_id = state, self.owner.id
        self.record_count += 1

    def replace_fresh(self, id_: int) -> None:
        """Put the producer id that the coordinator chose in the place of FRESH."""
        self.owner = replace_fresh(self.owner, id_)
        if self.following is not None:
            self.following = replace_fresh(self.following, id_)
        if self.previous_id == FRESH:
            self.previous_id = id_

    # Requests

    def init(self, timeout_ms: int, expected: Identity | None, level: int) -> Identity | Error:
        """InitProducerId at a level of `transaction.version`."""
        if self.state == "None":
            self.owner, self.timeout_ms = Identity(FRESH, 0), timeout_ms
            self._enter("Empty")
            return self.owner
        if self.is_prepared:
            return ConcurrentTransactions
        if expected is not None and expected.id != self.owner.id:
            had_it_before = expected.id == self.previous_id and expected.epoch >= LAST_EPOCH
            if not had_it_before:
                return ProducerFenced
        if self.is_ongoing:
            if expected is not None and expected != self.owner:
                return ProducerFenced  # Kafka ends the owner's transaction, then answers this.
            self.fence(level)
            if expected is None:
                self.last_epoch = FENCED  # Kafka accepts a retry of the older producer's abort.
            return ConcurrentTransactions
        owner, last_epoch = self.owner, self.last_epoch
        if expected is None or expected.epoch == owner.epoch:
            last_epoch = None if expected is None else owner.epoch
            is_used_up = owner.epoch >= LAST_EPOCH
            owner = Identity(FRESH, 0) if is_used_up else Identity(owner.id, owner.epoch + 1)
        elif expected.epoch != last_epoch:
            return ProducerFenced
        self._enter("Empty")
        self.owner, self.last_epoch, self.timeout_ms = owner, last_epoch, timeout_ms
        self.partitions, self.start_ms = frozenset(), -1
        return owner

    def _refusal(self, sender: Identity) -> Error | None:
        """Return the error for a sender that does not own the id now."""
        if self.state == "None":
            return InvalidProducerIdMapping
        if self.is_prepared:
            return ConcurrentTransactions
        if sender.id != self.owner.id:
            return InvalidProducerIdMapping
        return ProducerFenced if sender.epoch != self.owner.epoch else None

    def add(
        self, sender: Identity, partitions: frozenset[TopicPartition], now_ms: int
    ) -> Error | None:
        """AddPartitionsToTxn or AddOffsetsToTxn."""
        refusal = self._refusal(sender)
        if refusal is not None:
            return refusal
        if not self.is_ongoing:
            self.start_ms = now_ms
        elif partitions <= self.partitions:
            return None
        self.partitions |= partitions
        self._enter("Ongoing")
        return None

    def verify(self, sender: Identity, partition: TopicPartition) -> Error | None:
        refusal = self._refusal(sender)
        if refusal is None and partition not in self.partitions:
            return TransactionAbortable
        return refusal

    def end(self, sender: Identity, *, commit: bool, is_new: bool, now_ms: int) -> Identity | Error:
        """EndTxn; ``is_new``: the client gets a bumped epoch (from version 5 on)."""
        return self._end_new(sender, commit, now_ms) if is_new else self._end_old(sender, commit)

    def _end_old(self, sender: Identity, commit: bool) -> Identity | Error:
        refusal = self._refusal(sender)
        if refusal is not None:
            return refusal
        if self.is_ongoing:
            self._enter("PrepareCommit" if commit else "PrepareAbort")
            return self.owner
        return self._repeat(commit)

    def _repeat(self, commit: bool) -> Identity | Error:
        is_same = self.state == ("CompleteCommit" if commit else "CompleteAbort")
        return self.owner if is_same else InvalidTxnState

    def _end_new(self, sender: Identity, commit: bool, now_ms: int) -> Identity | Error:
        if self.state == "None":
            return InvalidProducerIdMapping
        if self.is_prepared:
            return ConcurrentTransactions
        is_complete = self.state.startswith("Complete") and self.last_epoch != FENCED
        if self.owner.epoch == 0 and sender == (self.previous_id, LAST_EPOCH):
            return self._repeat(commit) if is_complete else ProducerFenced
        if sender.id != self.owner.id:
            return InvalidProducerIdMapping
        if is_complete and sender.epoch == self.owner.epoch - 1:
            return self._repeat(commit)
        if sender.epoch != self.owner.epoch:
            return ProducerFenced
        if not self.is_ongoing:
            if commit:
                return InvalidTxnState
            self.start_ms = now_ms  # An abort of nothing bumps the epoch all the same.
        return self._bump_and_end(commit)

    def _bump_and_end(self, commit: bool) -> Identity:
        id_, epoch = self.owner
        self.following = Identity(FRESH, 0) if epoch >= LAST_EPOCH else None
        self._enter("PrepareCommit" if commit else "PrepareAbort")
        self.owner, self.last_epoch = Identity(id_, epoch + 1), epoch
        return self.following or self.owner

    # What happens by itself

    def fence(self, level: int) -> None:
        """Abort the open transaction of a producer that no longer owns the id, or is too slow."""
        if level >= 2:
            self._bump_and_end(commit=False)
            return
        self._enter("PrepareAbort")
        self.owner = Identity(self.owner.id, min(self.owner.epoch + 1, LAST_EPOCH + 1))
        self.last_epoch = None

    def complete(self) -> None:
        """All markers are written."""
        self._enter(self.state.replace("Prepare", "Complete"))
        if self.following is not None:
            self.owner, self.following = self.following, None
        self.partitions = frozenset()
