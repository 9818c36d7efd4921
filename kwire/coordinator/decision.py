"""A coordinator's decision: records to write, answers to send, deadlines to set.

A decider reads state and time and returns a :class:`Decision`; it changes nothing. The service
writes the records, applies them, and only then lets the machine adopt the state that is not written
(such as the members that wait for an answer). So a decision whose records cannot be written changes
nothing, and the same ``apply`` serves new and replayed records.
"""

from collections.abc import Callable, Hashable, Iterable, Iterator
from math import inf
from typing import TYPE_CHECKING, Any, Final, NamedTuple, Protocol, TypeAlias

from kwire.errors import KafkaError
from kwire.records.header import NO_PRODUCER

if TYPE_CHECKING:
    from kwire.coordinator.draft import Draft
    from kwire.replica.verification import Guard

# Any: keys, values, replies, states and changes belong to one machine (such as that of the groups);
# a coordinator passes them on without looking inside.
Opaque: TypeAlias = Any

NO_OFFSET: Final = -1

Timer = tuple[Hashable, float | None]
"""A deadline's name and its time; None cancels it."""


class Moment(NamedTuple):
    """The time of a decision: monotonic seconds for deadlines, wall-clock time for records."""

    now: float
    wall_ms: int
    steady_ms: float = inf
    """The wall clock without its jumps since the node started (:class:`kwire.clock.SteadyWall`)."""

    @property
    def expiry_ms(self) -> float:
        """The wall-clock time for expiry, without jumps, so a clock change expires nothing."""
        return min(self.wall_ms, self.steady_ms)


class Record(NamedTuple):
    """One record of an internal topic, as message objects; a tombstone has no value."""

    key: Opaque
    value: Opaque = None
    version: int | None = None
    """The value's version; None means the version in which new values are written."""
    offset: int = NO_OFFSET
    """The offset of a stored record, if the coordinator keeps offsets."""


class Answer(NamedTuple):
    """A reply to the request with this ``ticket``."""

    ticket: int
    reply: Opaque


class LateAnswer(NamedTuple):
    """A reply that the request's own task builds once it is woken.

    So the decision itself stays short even if it answers thousands of requests.
    """

    ticket: int
    make: Callable[[], Opaque]

    @property
    def reply(self) -> Opaque:
        return self.make()


class TransactionalProducer(NamedTuple):
    """The producer to whose transaction a decision's records belong."""

    producer_id: int
    epoch: int
    guard: "Guard | None" = None
    """The verification of the transaction, if these may be its first records in the partition."""


NO_TRANSACTION: Final = TransactionalProducer(NO_PRODUCER, -1)


class Decision(NamedTuple):
    """The result of one request, one deadline or one event.

    A request whose ticket is not among the ``answers`` waits for a later decision.
    """

    records: tuple[Record, ...] = ()
    is_atomic: bool = True
    """True if the records form one batch, so that all or none of them are written.

    Only the records of a clean-up, which do not depend on each other, may fill several batches.
    """
    draft: "Draft[Opaque] | None" = None
    """The records, in place of ``records``, if they were encoded before the decision."""
    producer: TransactionalProducer = NO_TRANSACTION
    """The producer of the draft's records; they take effect when its transaction commits."""
    answers: tuple[Answer | LateAnswer, ...] = ()
    timers: tuple[Timer, ...] = ()
    state: Opaque = None
    """State that is not written; the machine adopts it once the records are written and applied."""
    steps: "Iterable[Step]" = ()
    """Further decisions of long work, taken one by one; other requests run between them."""
    otherwise: "Callable[[KafkaError, Moment], Decision] | None" = None
    """Returns the decision to take if the records cannot be written; that decision writes nothing.
    """


Step = Callable[[Moment], Decision]
"""One decision of a series; it reads the state at the time it is taken."""

NOTHING = Decision()


class Machine(Protocol):
    """The state behind one partition of an internal topic."""

    def encode(self, record: Record) -> tuple[bytes, bytes | None]:
        """Return a record's key and value as they are stored."""

    def decode(self, key: bytes, value: bytes | None) -> Record | None:
        """Decode a stored record; None if it is to be ignored.

        Raises ValueError if it is damaged.
        """

    def apply_stored(self, key: bytes, value: bytes | None) -> bool:
        """Decode and apply a stored record in a usual form; return False for all others.

        It has the effect of :meth:`decode` and :meth:`apply`, outside a transaction.
        """

    def apply(self, record: Record, producer_id: int) -> None:
        """Apply a written record; with a producer, it takes effect when its transaction ends."""

    def apply_change(self, change: Opaque, producer_id: int) -> None:
        """Apply the records of a draft in one step, as :meth:`apply` would one by one."""

    def end_transaction(self, producer_id: int, *, committed: bool) -> None:
        """Apply a written transaction marker."""

    def adopt(self, state: Opaque) -> None:
        """Adopt the :attr:`Decision.state` of a written decision."""

    def on_loaded(self) -> Iterator[Step]:
        """Yield the decisions to take after the replay and before the first request."""

    def on_next_epoch(self) -> None:
        """Handle that the same leader continues in the next epoch; may happen while loading."""

    def due(self, name: Hashable, moment: Moment) -> Decision:
        """Decide on the deadline ``name``, which has passed."""
