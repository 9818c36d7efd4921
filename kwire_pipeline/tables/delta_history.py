"""The versions of a Delta table that make up its current state.

RESTORE adds a version with the rows of an earlier one. The versions between the two remain in the
history, and so do their transactions, although their rows are gone.

Rules of this file: plain data only.
"""

import datetime
from collections.abc import Mapping, Sequence
from typing import Final

import attrs

RESTORE: Final = "RESTORE"
PARTS: Final = (100, 1000)
"""The numbers of the newest versions that are read before all of them are.

A run at an interval of 30 seconds makes 86,400 versions in the 30 days for which Delta keeps them.
"""


@attrs.frozen
class Version:
    """One version of a table, as its history shows it."""

    number: int
    at: datetime.datetime
    """The local time of its commit."""
    operation: str
    parameters: Mapping[str, str | None]
    metadata: str | None
    rows: int | None = None
    """The rows that it wrote; None if that is unknown."""

    @property
    def is_restore(self) -> bool:
        return self.operation == RESTORE


def current(history: Sequence[Version]) -> list[Version]:
    """Return the versions that make up the current state, oldest first.

    ``history`` is in order; it may lack old versions.
    """
    by_number = {version.number: version for version in history}
    chain: list[Version] = []
    version = history[-1] if history else None
    while version is not None:
        chain.append(version)
        number = restored_version(version, history) if version.is_restore else version.number - 1
        version = None if number is None else by_number.get(number)
    return chain[::-1]


def is_enough(newest: Sequence[Version], batches: Sequence[int]) -> bool:
    """Return whether the newest versions show that RESTORE has undone no batch of a pipeline.

    ``batches`` are the pipeline's among these versions. A run checks before each batch that its
    last one is still there, so only a RESTORE after the last batch but one can be unknown.
    """
    return len(batches) > 1 and not any(version.is_restore for version in newest)


def restored_version(version: Version, history: Sequence[Version]) -> int | None:
    """Return the version to which a RESTORE went back; None if the history lacks it."""
    number = version.parameters.get("version")
    if number is not None:
        return int(number)
    time = version.parameters.get("timestamp")
    if time is None:
        return None
    until = datetime.datetime.fromisoformat(time)
    if until.tzinfo is not None:
        until = until.astimezone().replace(tzinfo=None)
    earlier = [each.number for each in history if each.at <= until and each is not version]
    return max(earlier, default=None)
