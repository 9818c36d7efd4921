"""The responses that clients of the simulated cluster received, and the rules for them.

Each response is checked when it arrives: invariants 2, 3, 5, 9, 11, 13, 15 and 39.
"""

from enum import Enum, auto

import attrs


def demand(condition: bool, text: str) -> None:
    """Raise AssertionError unless an invariant holds."""
    if not condition:
        raise AssertionError(text)


class Outcome(Enum):
    """The state of a transaction as known to its client."""

    OPEN = auto()
    COMMITTING = auto()
    """The commit was requested, so the records may be visible from now on."""
    COMMITTED = auto()
    ABORTED = auto()
    """No commit was requested, and the producer was fenced or has aborted the transaction."""


@attrs.define(eq=False)
class SimTransaction:
    """One transaction of a client."""

    name: str
    values: list[tuple[int, bytes]] = attrs.field(factory=list)
    """The partition and value of each acknowledged record."""
    offset: int | None = None
    """The group offset that the transaction commits."""
    outcome: Outcome = Outcome.OPEN


@attrs.define(eq=False)
class History:
    """The responses that clients received."""

    acknowledged: dict[int, dict[int, bytes]]
    """The values acknowledged with acks=all, by partition and offset, in the order of responses."""
    once: set[bytes] = attrs.field(factory=set)
    """The values of idempotent producers, which must not appear twice."""
    read: dict[int, dict[int, bytes]] = attrs.field(factory=dict)
    """The values that consumers read, by partition and offset."""
    delete_end: dict[int, int] = attrs.field(factory=dict)
    """The offset below which a client asked to delete records, by partition."""
    deleted_end: dict[int, int] = attrs.field(factory=dict)
    """The offset below which records are certainly deleted, by partition."""
    transactions: dict[bytes, SimTransaction] = attrs.field(factory=dict)
    """By value, the transaction that produced it."""
    latest: dict[int, int] = attrs.field(factory=dict)
    """By partition, the largest committed end offset that any client knows."""
    acknowledgement_count: int = 0

    @classmethod
    def of(cls, partition_count: int) -> "History":
        indexes = range(partition_count)
        history = cls({index: {} for index in indexes})
        for index in indexes:
            history.read[index] = {}
            history.delete_end[index] = history.deleted_end[index] = history.latest[index] = 0
        return history

    def on_acknowledged(self, index: int, base_offset: int, values: list[bytes]) -> None:
        """Record an acknowledged batch."""
        self.acknowledgement_count += 1
        for offset, value in enumerate(values, base_offset):
            demand(offset >= 0, f"partition {index}: {value!r} is acknowledged at {offset}")
            former = self.acknowledged[index].setdefault(offset, value)
            demand(former == value, f"{index}/{offset}: {former!r}, then {value!r} acknowledged")
        self.on_latest(index, base_offset + len(values))

    def on_latest(self, index: int, end_offset: int) -> None:
        self.latest[index] = max(self.latest[index], end_offset)

    def on_deleted(self, index: int, low_watermark: int) -> None:
        """Record an acknowledged deletion of records."""
        self.deleted_end[index] = max(self.deleted_end[index], low_watermark)

    def on_read(self, index: int, offset: int, value: bytes, *, is_committed: bool) -> None:
        """Check one record that a consumer read; ``is_committed``: with read_committed."""
        where = f"partition {index} offset {offset}"
        former = self.read[index].setdefault(offset, value)
        demand(former == value, f"{where}: {former!r} was read, now {value!r}")
        promised = self.acknowledged[index].get(offset, value)
        demand(promised == value, f"{where}: {promised!r} is acknowledged, {value!r} is read")
        if is_committed:
            transaction = self.transactions.get(value)
            demand(
                transaction is None
                or transaction.outcome in (Outcome.COMMITTING, Outcome.COMMITTED),
                f"{where}: {value!r} is read, its transaction is {transaction}",
            )
