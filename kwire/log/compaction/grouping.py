"""Chooses which neighbouring segments are merged into one.

Rules: no I/O. Even if everything is kept, a new segment is at most ``segment.bytes`` large, its
indexes at most ``segment.index.bytes``, and all its offsets fit in the 31 bits that the indexes
have for them.
"""

from collections.abc import Sequence
from typing import Final, NamedTuple

RELATIVE_OFFSET_MAX: Final = (1 << 31) - 1


class Candidate(NamedTuple):
    """A segment that may be merged with its neighbours."""

    base_offset: int
    end_offset: int
    """The base offset of the next segment."""
    size: int
    index_size: int
    time_index_size: int


def groups(
    segments: Sequence[Candidate], *, segment_bytes: int, index_bytes: int
) -> list[list[Candidate]]:
    """Return the segments in groups, in order; a segment that is too large is its own group."""
    grouped: list[list[Candidate]] = []
    size = index_size = time_index_size = 0
    for segment in segments:
        size += segment.size
        index_size += segment.index_size
        time_index_size += segment.time_index_size
        if (
            grouped
            and size <= segment_bytes
            and index_size <= index_bytes
            and time_index_size <= index_bytes
            and _may_share_indexes(grouped[-1][0], segment)
        ):
            grouped[-1].append(segment)
            continue
        grouped.append([segment])
        size, index_size = segment.size, segment.index_size
        time_index_size = segment.time_index_size
    return grouped


def _may_share_indexes(first: Candidate, segment: Candidate) -> bool:
    """Return whether the indexes of ``first`` can hold the offsets of a later segment.

    An empty segment has no offsets, so it always fits.
    """
    last_offset = segment.end_offset - 1
    return not segment.size or last_offset - first.base_offset <= RELATIVE_OFFSET_MAX
