"""All transactional ids of one partition of `__transaction_state`: a decider and its state.

Invariants: the ``abort`` deadline is set while a transaction is open, the ``expiry`` deadline while
there is any id. ``unsent`` holds the decided transactions whose markers are not being sent yet; the
service is notified when it grows, and after a load.
"""

import logging
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from itertools import islice
from math import inf
from typing import Final

import attrs

from kwire.codec.messages.transaction_records import TransactionLogValue
from kwire.coordinator.decision import (
    NOTHING,
    Answer,
    Decision,
    Moment,
    Opaque,
    Record,
    Step,
    Timer,
)
from kwire.errors import ConcurrentTransactions
from kwire.transaction import transitions
from kwire.transaction.model import NO_ID, Transaction, TransactionState
from kwire.transaction.records import load, record_of, store, tombstone, transaction_of
from kwire.transaction.settings import TransactionSettings
from kwire.transaction.transitions import Producer, ProducerIdNeeded, TransitionContext
from kwire.types import TopicPartition

logger = logging.getLogger(__name__)

_ABORT: Final = ("abort",)
_EXPIRY: Final = ("expiry",)
_RESUME: Final = ("resume",)
_EXPIRED_AT_ONCE: Final = 100
"""The largest number of ids that one decision removes."""
_TIMED_AT_ONCE: Final = 1_000
"""The largest number of loaded transactions that get their deadlines in one step."""


@attrs.frozen(repr=False)
class InitProducer:
    """A request for a producer id, with the data for its decision."""

    transactional_id: str
    timeout_ms: int
    expected: Producer | None
    fresh_id: int | None = None


@attrs.frozen(repr=False)
class EndTransaction:
    """A request to commit or abort."""

    transactional_id: str
    producer: Producer
    client_version: int
    commit: bool
    fresh_id: int | None = None


@attrs.frozen(repr=False)
class AddPartitions:
    """A request to add partitions to a transaction."""

    transactional_id: str
    producer: Producer
    partitions: frozenset[TopicPartition]
    client_version: int


@attrs.frozen(repr=False)
class Unwritten:
    """Changes of a decision that are not in its records."""

    transactions: Sequence[Transaction] = ()
    """The decided states; only they have the last epochs, which no record holds."""
    deadlines: Mapping[str, float] = attrs.field(factory=dict)
    """The times at which open transactions time out, by transactional id."""
    timed_out: str | None = None
    """The transactional id whose open transaction these changes abort because of its timeout."""


@attrs.define(kw_only=True, eq=False, repr=False)
class TransactionShard:
    """The state of one partition; requests are methods that return a decision."""

    settings: Callable[[], TransactionSettings] = TransactionSettings
    server_version: Callable[[], int] = lambda: 2
    """Returns the finalized level of `transaction.version`."""
    on_prepared: Callable[[], None] = lambda: None
    """Called when a transaction is prepared; its record may not be committed yet."""
    on_completed: Callable[[str], None] = lambda _: None
    """Called when all markers of a transaction are written."""
    on_id_needed: Callable[[str], None] = lambda _: None
    """Called when aborting a transaction needs a new producer id."""
    transactions: dict[str, Transaction] = attrs.field(factory=dict, init=False)
    ongoing: dict[str, float] = attrs.field(factory=dict, init=False)
    """The time-out of each open transaction, as a time on the clock of :attr:`Moment.now`.

    A jump of the wall clock matters only while the partition is loaded: a loaded transaction gets
    the rest of its timeout by the wall clock, at most the whole timeout.
    """
    prepared: set[str] = attrs.field(factory=set, init=False)
    unsent: dict[str, Transaction] = attrs.field(factory=dict, init=False)

    # Records

    encode = staticmethod(store)
    decode = staticmethod(load)

    def apply_stored(self, key: bytes, value: bytes | None) -> bool:
        return False

    def apply(self, record: Record, producer_id: int = -1) -> None:
        del producer_id
        transactional_id: str = record.key.transactional_id
        value: TransactionLogValue | None = record.value
        self.ongoing.pop(transactional_id, None)
        if value is None:
            self.transactions.pop(transactional_id, None)
            self._remove_prepared(transactional_id)
            return
        transaction = transaction_of(transactional_id, value)
        self.transactions[transactional_id] = transaction
        if transaction.state.is_prepared:
            self.prepared.add(transactional_id)
            self.unsent[transactional_id] = transaction
            self.on_prepared()
            return
        if transaction.state is TransactionState.ONGOING:
            self.ongoing[transactional_id] = inf  # :meth:`adopt` sets the real time.
        self._remove_prepared(transactional_id)

    def _remove_prepared(self, transactional_id: str) -> None:
        if transactional_id in self.prepared:
            self.prepared.remove(transactional_id)
            self.unsent.pop(transactional_id, None)
            self.on_completed(transactional_id)

    def apply_change(self, change: Opaque, producer_id: int) -> None:
        raise NotImplementedError("decisions about transactions are never drafts")

    def end_transaction(self, producer_id: int, *, committed: bool) -> None:
        """Do nothing: the records of this topic do not belong to a transaction."""

    def adopt(self, state: Unwritten | None) -> None:
        """Adopt the last epochs and the timeouts, which are not written."""
        if state is None:
            return
        if state.timed_out is not None:
            logger.info("transaction timed out transactional_id=%s", state.timed_out)
        for transaction in state.transactions:
            self.transactions[transaction.transactional_id] = transaction
        self.ongoing.update(state.deadlines)

    # Deadlines

    def on_loaded(self) -> Iterator[Step]:
        """Yield the steps after a load; they set the deadlines of the open transactions."""
        names = iter(list(self.ongoing))
        while names_of_step := list(islice(names, _TIMED_AT_ONCE)):
            yield partial(self._time, names_of_step)
        yield self._resume

    def on_next_epoch(self) -> None:
        """Schedule all missing markers again: a marker carries the leader epoch."""
        for transactional_id in sorted(self.prepared):
            self.unsent[transactional_id] = self.transactions[transactional_id]
        if self.unsent:
            self.on_prepared()

    def _time(self, names: Sequence[str], moment: Moment) -> Decision:
        """Set the deadlines of loaded transactions."""
        deadlines = {
            transactional_id: moment.now
            + self.transactions[transactional_id].remaining_ms(moment.wall_ms) / 1000
            for transactional_id in names
        }
        return Decision(state=Unwritten(deadlines=deadlines))

    def _resume(self, moment: Moment) -> Decision:
        """Set the timers; markers are sent once the partition answers requests."""
        timers = list(self._timers(moment, is_first=True))
        if self.unsent:
            timers.append((_RESUME, moment.now))
        return Decision(timers=tuple(timers))

    def _timers(self, moment: Moment, *, is_first: bool) -> Iterable[Timer]:
        settings = self.settings()
        if self.ongoing:
            yield (_ABORT, moment.now + settings.abort_check_ms / 1000)
        if self.transactions and is_first:
            yield (_EXPIRY, moment.now + settings.expiry_check_ms / 1000)

    def due(self, name: Hashable, moment: Moment) -> Decision:
        if name == _RESUME:
            self.on_prepared()
            return NOTHING
        if name == _ABORT:
            steps = (
                partial(self._abort_timed_out, transactional_id)
                for transactional_id in list(self.ongoing)
            )
            return Decision(timers=tuple(self._timers(moment, is_first=False)), steps=steps)
        expiry_s = self.settings().expiry_check_ms / 1000
        timers: tuple[Timer, ...] = ((_EXPIRY, moment.now + expiry_s),) if self.transactions else ()
        return Decision(timers=timers, steps=self._expire(list(self.transactions)))

    def _is_timed_out(self, transactional_id: str, moment: Moment) -> bool:
        """Return whether a transaction has been open for longer than its producer's timeout."""
        return self.ongoing.get(transactional_id, inf) < moment.now

    def _abort_timed_out(self, transactional_id: str, moment: Moment) -> Decision:
        if not self._is_timed_out(transactional_id, moment):
            return NOTHING
        try:
            return self._fence(transactional_id, None, moment)
        except ProducerIdNeeded:
            self.on_id_needed(transactional_id)
            return NOTHING

    def _fence(
        self, transactional_id: str, fresh_id: int | None, moment: Moment, ticket: int | None = None
    ) -> Decision:
        """Abort a timed-out transaction; :meth:`adopt` logs it, once it could be written."""
        current = self.transactions[transactional_id]
        after = transitions.fence(current, self._change(moment, fresh_id))
        decision = self._write(current, after, moment, ticket)
        return decision._replace(state=Unwritten((after,), timed_out=transactional_id))

    def _expire(self, transactional_ids: list[str]) -> Iterator[Step]:
        for start in range(0, len(transactional_ids), _EXPIRED_AT_ONCE):
            yield partial(self._remove_expired, transactional_ids[start : start + _EXPIRED_AT_ONCE])

    def _remove_expired(self, transactional_ids: list[str], moment: Moment) -> Decision:
        expiration_ms = self.settings().expiration_ms
        candidates = (self.transactions.get(name) for name in transactional_ids)
        return Decision(
            records=tuple(
                tombstone(candidate.transactional_id)
                for candidate in candidates
                if candidate is not None and candidate.is_expired(moment.expiry_ms, expiration_ms)
            ),
            is_atomic=False,
        )

    def abort_with_id(
        self, transactional_id: str, fresh_id: int, moment: Moment, ticket: int
    ) -> Decision:
        """Abort a timed-out transaction; afterwards its transactional id has a new producer id."""
        if not self._is_timed_out(transactional_id, moment):
            return Decision(answers=(Answer(ticket, None),))
        return self._fence(transactional_id, fresh_id, moment, ticket)

    # Requests

    def initialize(self, request: InitProducer, moment: Moment, ticket: int) -> Decision:
        """Answer with the producer, or with ConcurrentTransactions after starting an abort."""
        change = self._change(moment, request.fresh_id)
        current = self.transactions.get(request.transactional_id)
        if current is None:
            after = transitions.create(request.transactional_id, request.timeout_ms, change)
        else:
            after = transitions.initialize(current, request.timeout_ms, request.expected, change)
        if after.state.is_prepared:
            return self._write(current, after, moment, ticket, ConcurrentTransactions())
        return self._write(current, after, moment, ticket, _producer_of(after))

    def add_partitions(self, request: AddPartitions, moment: Moment, ticket: int) -> Decision:
        current = self.transactions.get(request.transactional_id)
        after = transitions.add_partitions(
            current,
            request.producer,
            request.partitions,
            request.client_version,
            self._change(moment, None),
        )
        return self._write(current, after, moment, ticket, None)

    def verify(
        self, transactional_id: str, producer: Producer, partitions: Sequence[TopicPartition]
    ) -> Mapping[TopicPartition, int]:
        current = self.transactions.get(transactional_id)
        return transitions.verify_partitions(current, producer, partitions)

    def end(self, request: EndTransaction, moment: Moment, ticket: int) -> Decision:
        """Answer with the producer for the next transaction."""
        current = self.transactions.get(request.transactional_id)
        after = transitions.end(
            current,
            request.producer,
            request.client_version,
            self._change(moment, request.fresh_id),
            commit=request.commit,
        )
        return self._write(current, after, moment, ticket, _producer_of(after))

    def complete(self, ended: Sequence[Transaction], moment: Moment, ticket: int) -> Decision:
        """Complete those transactions in ``ended`` that are still waiting for their markers."""
        change = self._change(moment, None)
        completed = [
            transitions.complete(self.transactions[transaction.transactional_id], change)
            for transaction in ended
            if self._is_prepared_as(transaction)
        ]
        return Decision(
            records=tuple(record_of(after, change.server_version) for after in completed),
            is_atomic=False,
            state=Unwritten(completed),
            answers=(Answer(ticket, None),),
        )

    def _is_prepared_as(self, transaction: Transaction) -> bool:
        """Return whether the end that ``transaction`` describes still waits for its markers.

        Without epoch bumps, the next transaction has the same producer; only its times differ.
        """
        current = self.transactions.get(transaction.transactional_id)
        return (
            current is not None
            and current.state is transaction.state
            and current.producer_id == transaction.producer_id
            and current.producer_epoch == transaction.producer_epoch
            and current.start_ms == transaction.start_ms
            and current.update_ms == transaction.update_ms
        )

    def _change(self, moment: Moment, fresh_id: int | None) -> TransitionContext:
        return TransitionContext(moment.wall_ms, self.server_version(), fresh_id)

    def _write(
        self,
        before: Transaction | None,
        after: Transaction,
        moment: Moment,
        ticket: int | None = None,
        reply: Opaque = None,
    ) -> Decision:
        answers = () if ticket is None else (Answer(ticket, reply),)
        if after is before:
            return Decision(answers=answers)
        settings = self.settings()
        timers: list[Timer] = []
        if after.state is TransactionState.ONGOING and not self.ongoing:
            timers.append((_ABORT, moment.now + settings.abort_check_ms / 1000))
        if not self.transactions:
            timers.append((_EXPIRY, moment.now + settings.expiry_check_ms / 1000))
        deadlines: dict[str, float] = {}
        if after.state is TransactionState.ONGOING:
            name, timeout_s = after.transactional_id, after.timeout_ms / 1000
            deadlines[name] = self.ongoing.get(name, moment.now + timeout_s)
        return Decision(
            records=(record_of(after, self.server_version()),),
            state=Unwritten((after,), deadlines),
            answers=answers,
            timers=tuple(timers),
        )


def _producer_of(transaction: Transaction) -> Producer:
    """Return the producer for the next transaction."""
    if transaction.next_producer_id != NO_ID:
        return Producer(transaction.next_producer_id, 0)
    return Producer(transaction.producer_id, transaction.producer_epoch)
