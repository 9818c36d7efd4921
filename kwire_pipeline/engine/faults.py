"""The places at which a test can end a run: between them, a batch is half done.

A run calls `reach` of its faults at each place; the default does nothing.
"""

import enum
from typing import Final, Protocol


class Place(enum.Enum):
    """A step of a batch, or of maintenance."""

    BEFORE_TABLE = "before-table"
    AFTER_TABLE = "after-table"
    AFTER_DEAD_LETTERS = "after-dead-letters"
    """Everything is written except the mark of the batch in Spark's checkpoint."""
    DURING_MAINTAIN = "during-maintain"


class Faults(Protocol):
    """The faults of a test: at a place, they raise an error or end the process."""

    def reach(self, place: Place) -> None: ...


class NoFaults:
    """The faults of a normal run: none."""

    def reach(self, place: Place) -> None:
        pass


NO_FAULTS: Final = NoFaults()
