"""A change of the states of records, from the request until it is stored."""

from collections.abc import Iterable
from typing import NamedTuple

import attrs

from kwire.share.persister import StateBatch
from kwire.share.runs import RecordState, Run


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
