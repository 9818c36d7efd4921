"""The in-flight offsets of a share partition, as runs of offsets in the same state.

Runs do not overlap and are sorted. Offsets between two runs hold no records. A run is split only
where part of it changes state, so a batch that is acquired and acknowledged as a whole costs one
object. A run is never split while a change of it is being written.
"""

import enum
from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator
from math import inf
from typing import NamedTuple

import attrs

from kwire.share.persister import StateBatch


class RecordState(enum.IntEnum):
    """The delivery state of a record; the values are those that are stored."""

    AVAILABLE = 0
    ACQUIRED = 1
    ACKNOWLEDGED = 2
    ARCHIVED = 4


@attrs.define(eq=False, repr=False)
class Run:
    """Offsets in the same state; both offsets are inclusive."""

    first: int
    last: int
    state: RecordState
    delivery_count: int
    batch_size: int
    """The number of offsets in the batch in which these were first acquired."""
    member: str = ""
    """The member that holds acquired records."""
    deadline: float = inf
    """The time at which the acquisition lock ends."""
    change: "Change | None" = None
    """The change that is being written. Until it is stored, the run keeps its state, but nobody
    else may change it."""
    next_state: RecordState = RecordState.AVAILABLE
    """The state after :attr:`change`."""

    @property
    def size(self) -> int:
        return self.last - self.first + 1

    @property
    def is_available(self) -> bool:
        """True if a member may acquire the records now."""
        return self.state is RecordState.AVAILABLE

    @property
    def is_complete(self) -> bool:
        """True if the records are never delivered again."""
        return self.state >= RecordState.ACKNOWLEDGED

    @property
    def will_be_complete(self) -> bool:
        """True if the records are complete once the current change is stored."""
        state = self.state if self.change is None else self.next_state
        return state >= RecordState.ACKNOWLEDGED

    def acquire(self, member: str, deadline: float) -> None:
        """Give available records to a member."""
        self.state, self.member, self.deadline = RecordState.ACQUIRED, member, deadline
        self.delivery_count += 1

    def settle(self, state: RecordState, delivery_count: int) -> None:
        """Move to a state in which no member holds the records."""
        self.state, self.delivery_count = state, delivery_count
        self.member, self.deadline = "", inf


class Move(NamedTuple):
    """A run of acquired records, and its state after the change."""

    run: Run
    state: RecordState
    delivery_count: int


@attrs.define(eq=False, repr=False)
class Change:
    """Moves that are stored together; the runs adopt their new states only after that."""

    moves: list[Move] = attrs.field(factory=list)

    def add(self, run: Run, state: RecordState, delivery_count: int) -> None:
        """Reserve a run for this change."""
        run.change, run.next_state = self, state
        self.moves.append(Move(run, state, delivery_count))

    def batches(self) -> list[StateBatch]:
        """Return the states to store."""
        return join(
            StateBatch(run.first, run.last, state, count) for run, state, count in self.moves
        )


def _first(run: Run) -> int:
    return run.first


def _last(run: Run) -> int:
    return run.last


@attrs.define(eq=False, repr=False)
class Runs:
    """The runs of one share partition, in the order of their offsets."""

    _runs: list[Run] = attrs.field(factory=list)

    def __len__(self) -> int:
        return len(self._runs)

    def __iter__(self) -> Iterator[Run]:
        return iter(self._runs)

    def overlapping(self, first: int, last: int) -> list[Run]:
        """Return the runs that have offsets in the range."""
        runs = self._runs
        begin = bisect_left(runs, first, key=_last)
        return runs[begin : bisect_right(runs, last, begin, key=_first)]

    def isolate(self, first: int, last: int) -> list[Run]:
        """Split the runs at the ends of the range, and return the runs in it."""
        self._split(first)
        self._split(last + 1)
        return self.overlapping(first, last)

    def _split(self, offset: int) -> None:
        """Split the run that contains ``offset``, if any, so that a run begins there."""
        runs = self._runs
        index = bisect_left(runs, offset, key=_last)
        if index == len(runs) or runs[index].first >= offset:
            return
        run = runs[index]
        assert run.change is None, "a run whose change is being written must stay whole"
        runs.insert(index + 1, attrs.evolve(run, first=offset))
        run.last = offset - 1

    def append(self, run: Run) -> None:
        """Add a run after all others."""
        assert not self._runs or self._runs[-1].last < run.first, "runs must be in order"
        self._runs.append(run)

    def drop_before(self, offset: int) -> None:
        """Remove all offsets before ``offset``, in any state."""
        runs = self._runs
        del runs[: bisect_left(runs, offset, key=_last)]
        if runs and runs[0].first < offset:
            runs[0].first = offset

    def drop_complete(self) -> bool:
        """Remove the complete runs at the start; return whether there were any."""
        count = 0
        for run in self._runs:
            if not run.is_complete:
                break
            count += 1
        del self._runs[:count]
        return count > 0


def join(batches: Iterable[StateBatch]) -> list[StateBatch]:
    """Join neighbours with equal states; ``batches`` are in the order of their offsets."""
    joined: list[StateBatch] = []
    for batch in batches:
        if joined:
            last = joined[-1]
            if last.last_offset + 1 == batch.first_offset and last[2:] == batch[2:]:
                joined[-1] = last._replace(last_offset=batch.last_offset)
                continue
        joined.append(batch)
    return joined
