"""Operations whose longest turn is over the budget, each with its ceiling and the reason.

A row above its ceiling fails like any other. An exception goes when its operation is sliced.
"""

from typing import Final, NamedTuple


class Accepted(NamedTuple):
    """An exception from the budget."""

    units: int
    """The most units of one turn, for the size of the row."""
    reason: str


ACCEPTED: Final[dict[str, Accepted]] = {}
