"""The results of walking over a batch's records with :mod:`kwire.speedups`."""

from typing import NamedTuple


class CheckedRecords(NamedTuple):
    """The records of a produced batch, none of them damaged."""

    keyless: list[int]
    """The indexes of records without a key, at most the first 1000."""
    are_offsets_consecutive: bool
    """True if the offset deltas are 0, 1, 2 and so on."""
    min_delta: int
    """The smallest timestamp delta, in milliseconds from the batch's base timestamp; 0 for a batch
    without records."""
    max_delta: int
    """The largest timestamp delta; 0 for a batch without records."""


class Retained(NamedTuple):
    """The records of a batch that compaction keeps."""

    ranges: list[tuple[int, int]]
    """The byte ranges of the kept records in the payload, end exclusive; adjacent ranges are
    merged."""
    record_count: int
    """The number of kept records."""
    keyless_count: int
    """The number of records that are dropped because they have no key."""
    has_tombstones: bool
    """True if a kept record has no value."""
    first_delta: int
    """The timestamp delta of the first kept record in milliseconds; 0 if none is kept."""
    max_delta: int
    """The largest timestamp delta of a kept record in milliseconds; 0 if none is kept."""
