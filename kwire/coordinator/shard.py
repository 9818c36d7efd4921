"""One led partition of an internal topic: its machine, deadlines and waiting requests.

Pure: it writes through the log that the caller passes in, and stores the reply of a waiting request
in its :class:`Wait`. The service creates the events and wakes the answered requests.
"""

from collections.abc import Callable, Hashable, Iterable, Iterator
from enum import Enum
from itertools import chain
from typing import TYPE_CHECKING, Final, Generic, TypeVar

import attrs

from kwire.coordinator.decision import (
    NO_TRANSACTION,
    Answer,
    Decision,
    LateAnswer,
    Machine,
    Opaque,
    Record,
    Step,
)
from kwire.coordinator.timers import Timers
from kwire.errors import KafkaError, MessageTooLarge, NotCoordinator
from kwire.records.build import New, batch
from kwire.records.compression import NONE
from kwire.records.header import NO_PRODUCER
from kwire.types import TopicPartition
from kwire.waits import Wakeable

if TYPE_CHECKING:
    from kwire.coordinator.ports import Appender
    from kwire.replica.transaction_ports import TransactionMarker

M = TypeVar("M", bound=Machine)

_RECORD_OVERHEAD: Final = 32
_BATCH_OVERHEAD: Final = 128


class Phase(Enum):
    """The phase of a shard; only an active shard answers requests."""

    LOADING = "loading"
    ACTIVE = "active"
    RESIGNED = "resigned"


@attrs.define(eq=False, repr=False)
class Wait:
    """A request that is not answered yet."""

    answered: bool = False
    answer: Answer | LateAnswer | None = None
    end_offset: int = 0
    """The reply may be sent once everything below this offset is committed."""
    error: KafkaError | None = None
    done: Wakeable | None = None
    """The event on which the request's task sleeps; None if no task sleeps."""

    @property
    def reply(self) -> Opaque:
        """The reply in the answer; a late answer builds it here."""
        return None if self.answer is None else self.answer.reply

    def settle(self, answer: Answer | LateAnswer | None, end_offset: int) -> None:
        """Store the answer; the caller still has to set ``done``."""
        self.answer, self.end_offset, self.answered = answer, end_offset, True

    def fail(self, error: KafkaError) -> None:
        self.error = error
        self.settle(None, 0)


class Series:
    """The remaining steps of a piece of long work, in order.

    Failed attempts are not recorded: there may be one per second for weeks.
    """

    __slots__ = ("_first", "_rest", "is_repeated")

    def __init__(self, steps: Iterable[Step], *, is_repeated: bool) -> None:
        """Start with all steps; ``is_repeated``: a deadline repeats this work anyway."""
        self.is_repeated = is_repeated
        self._first: Step | None = None
        self._rest = iter(steps)

    def __iter__(self) -> Iterator[Step]:
        return self

    def __next__(self) -> Step:
        step, self._first = self._first, None
        return next(self._rest) if step is None else step

    def put_back(self, step: Step) -> None:
        """Take this step next."""
        self._first = step

    def postpone(self, step: Step) -> None:
        """Take this step last."""
        self._rest = chain(self._rest, (step,))


@attrs.define(eq=False, repr=False)
class Shard(Generic[M]):
    """The state and the waiting requests of one partition while this node leads it."""

    partition: TopicPartition
    leader_epoch: int
    machine: M
    in_order: bool = False
    """True if the machine needs each record, in order and with its offset."""
    compression: Callable[[], int] = lambda: NONE
    """Returns the codec for new batches; drafts are never compressed."""
    timers: Timers = attrs.field(factory=Timers)
    phase: Phase = Phase.LOADING
    written: int = 0
    """The log end offset after the last record of a decision."""
    failures: int = 0
    """The number of failed loads."""
    waiting: dict[int, Wait] = attrs.field(factory=dict)
    series: dict[Hashable, Series | None] = attrs.field(factory=dict)
    """The remaining steps of each series; None while the series waits after an unexpected error."""
    takes_steps: bool = False
    """True while the shard's steps are being taken, or wait for a retry."""
    is_held_up: bool = False
    """True if writing a step or a deadline has failed, and no write has succeeded since."""

    def next_series(self) -> Hashable | None:
        """Return the first series that is not waiting after an error; None if there is none."""
        return next((key for key, steps in self.series.items() if steps is not None), None)

    def perform(self, decision: Decision, to: "Appender", wall_ms: int) -> list[Wakeable]:
        """Write, apply and adopt a decision and store its answers; return the events to set.

        Raises KafkaError if the records cannot be written. If a batch is larger than the topic
        allows, this is MessageTooLarge, raised before anything is written.
        """
        draft = decision.draft
        if decision.records or (draft is not None and draft.count):
            self._write(decision, to, wall_ms)
        self.machine.adopt(decision.state)
        for name, at in decision.timers:
            self.timers.set(name, at)
        answered = []
        for answer in decision.answers:
            wait = self.waiting.get(answer.ticket)
            if wait is not None:
                wait.settle(answer, self.written)
                answered.append(wait)
        return _events(answered)

    def _write(self, decision: Decision, to: "Appender", wall_ms: int) -> None:
        """Append and apply the decision; each of several batches is applied before the next."""
        max_batch_bytes = to.max_batch_bytes(self.partition)
        draft, producer = decision.draft, decision.producer
        if draft is not None:
            assert not decision.records
            stored = draft.build_batch(None if producer is NO_TRANSACTION else producer[:2])
            if len(stored) > max_batch_bytes:
                raise MessageTooLarge
            self.written = to.append(self.partition, stored, producer.guard)
            self.is_held_up = False
            self.machine.apply_change(draft.change, producer.producer_id)
            return
        assert producer is NO_TRANSACTION
        pieces: list[tuple[bytes, list[tuple[bytes, bytes | None, Record]]]] = []
        for piece in self._pieces(decision, max_batch_bytes):
            stored = batch(
                [New(key, value) for key, value, _ in piece],
                timestamp_ms=wall_ms,
                compression=self.compression(),
            )
            pieces.append((stored, piece))
        if any(len(stored) > max_batch_bytes for stored, _ in pieces):
            raise MessageTooLarge
        for stored, piece in pieces:
            self.written = to.append(self.partition, stored)
            self.is_held_up = False
            self._apply(piece)

    def _apply(self, piece: list[tuple[bytes, bytes | None, Record]]) -> None:
        offset = self.written - len(piece)
        for position, (_, _, record) in enumerate(piece):
            if self.in_order:
                record = record._replace(offset=offset + position)
            self.machine.apply(record, NO_PRODUCER)

    def end_transaction(self, marker: "TransactionMarker", to: "Appender") -> None:
        """Append the marker of a transaction and apply it; raises KafkaError."""
        self.written = to.append_marker(self.partition, marker)
        self.machine.end_transaction(marker.producer_id, committed=marker.commit)

    def _pieces(
        self, decision: Decision, max_batch_bytes: int
    ) -> Iterator[list[tuple[bytes, bytes | None, Record]]]:
        """Yield the encoded records: an atomic decision's as one batch, others in several."""
        piece: list[tuple[bytes, bytes | None, Record]] = []
        size = _BATCH_OVERHEAD
        for record in decision.records:
            key, value = self.machine.encode(record)
            more = len(key) + len(value or b"") + _RECORD_OVERHEAD
            if piece and not decision.is_atomic and size + more > max_batch_bytes:
                yield piece
                piece, size = [], _BATCH_OVERHEAD
            piece.append((key, value, record))
            size += more
        if piece:
            yield piece

    def lead_on(self, leader_epoch: int) -> None:
        """Continue in the next epoch with the same leader.

        No other broker has led in between, so the log was not truncated: it still holds all records
        that this machine has applied, even those that are not committed yet. Sessions and other
        deadlines continue too.
        """
        self.leader_epoch = leader_epoch
        self.machine.on_next_epoch()

    def resign(self) -> list[Wakeable]:
        """Fail the waiting requests with NotCoordinator: another node leads the partition now.

        Returns the events to set.
        """
        self.phase = Phase.RESIGNED
        lost = [wait for wait in self.waiting.values() if not wait.answered]
        for wait in lost:
            wait.fail(NotCoordinator())
        return _events(lost)


def _events(waits: Iterable[Wait]) -> list[Wakeable]:
    return [wait.done for wait in waits if wait.done is not None]
