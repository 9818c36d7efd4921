"""What a coordinator decides: records to write, answers to give, deadlines to keep.

A decider looks at state and time and returns a :class:`Decision`; it changes nothing.  The
service writes the records, applies them, and only then lets the machine adopt what is not
written (who waits for an answer).  So a decision whose records could not be written has left
no trace, and ``apply`` is the same code whether a record was just written or is replayed.
"""

from collections.abc import Callable, Hashable, Iterable, Iterator
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

import attrs

from kwire.errors import KafkaError

if TYPE_CHECKING:
    from kwire.coordinator.draft import Draft

NO_PRODUCER = -1

Timer = tuple[Hashable, float | None]
"""A deadline's name and its time; None cancels it."""


class Moment(NamedTuple):
    """When a decision is taken: monotonic seconds for deadlines, wall-clock for records."""

    now: float
    wall_ms: int


class Record(NamedTuple):
    """One record of an internal topic, as message objects; a tombstone has no value."""

    key: Any
    value: Any = None
    version: int | None = None
    """The value's version, where it is not the one that is usually written."""


class Answer(NamedTuple):
    """A reply for the request that was given ``ticket``."""

    ticket: int
    reply: Any


@attrs.frozen
class Decision:
    """Everything one request, one deadline or one event leads to.

    A request whose ticket is not among the ``answers`` waits for a later decision.
    """

    records: tuple[Record, ...] = ()
    draft: "Draft | None" = None
    """More records, encoded beforehand; they are written first."""
    answers: tuple[Answer, ...] = ()
    timers: tuple[Timer, ...] = ()
    state: Any = None
    """What the machine adopts once the records are written and applied."""
    steps: "Iterable[Step]" = ()
    """Further decisions of long work, each taken in its turn; other requests come in between."""
    otherwise: "Callable[[KafkaError, Moment], Decision] | None" = None
    """What is decided instead if the records cannot be written, told why; it writes none."""


Step = Callable[[Moment], Decision]
"""One decision among many; it looks at the state as it is when its turn comes."""

NOTHING = Decision()


class Machine(Protocol):
    """The state behind one partition of an internal topic."""

    def encode(self, record: Record) -> tuple[bytes, bytes | None]:
        """A record's key and value as they are stored."""

    def decode(self, key: bytes, value: bytes | None) -> Record | None:
        """The stored record; None if it is of no concern.  Raises ValueError if it is damaged."""

    def apply(self, record: Record, producer_id: int) -> None:
        """Take in a written record; one with a producer waits for its transaction's end."""

    def apply_change(self, change: Any) -> None:
        """Take in the records of a batch of a draft, as :meth:`apply` would one by one."""

    def end_transaction(self, producer_id: int, *, committed: bool) -> None:
        """A transaction's marker was written."""

    def adopt(self, state: Any) -> None:
        """Take in what a decision holds beside its records."""

    def loaded(self) -> Iterator[Step]:
        """Everything was replayed: the decisions to take before requests are answered."""

    def due(self, name: Any, moment: Moment) -> Decision:
        """The deadline ``name`` has passed."""
