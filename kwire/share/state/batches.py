"""Merges batches of delivery states.

A list of batches is sorted, its batches do not overlap, and neighbours with the same delivery are
one batch. Of two deliveries of an offset, the larger delivery count wins; if the counts are equal,
the larger state wins. So a write that arrives late or twice changes nothing. This is Kafka's order;
Kafka leaves some neighbours unmerged.
"""

from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Sequence
from operator import itemgetter
from typing import Final

from kwire.share.persister import UNINITIALIZED, StateBatch

_FIRST: Final = itemgetter(0)
_LAST: Final = itemgetter(1)


def merge(
    stored: Sequence[StateBatch], written: Iterable[StateBatch], start_offset: int
) -> list[StateBatch]:
    """Return the stored batches after a write, without offsets before ``start_offset``.

    A start offset of -1 keeps all offsets.
    """
    merged = list(stored)
    for batch in written:
        if batch.last_offset < batch.first_offset:
            continue
        if not merged or merged[-1].last_offset + 1 < batch.first_offset:
            merged.append(batch)
            continue
        # Neighbours are included, because they may become one batch with the new one.
        low = bisect_left(merged, batch.first_offset - 1, key=_LAST)
        high = bisect_right(merged, batch.last_offset + 1, key=_FIRST)
        merged[low:high] = _join(_overlaid(merged[low:high], batch))
    if start_offset != UNINITIALIZED:
        del merged[: bisect_left(merged, start_offset, key=_LAST)]
        if merged and merged[0].first_offset < start_offset:
            merged[0] = merged[0]._replace(first_offset=start_offset)
    return merged


def _overlaid(run: Sequence[StateBatch], new: StateBatch) -> Iterable[StateBatch]:
    """Yield the pieces of ``run`` and ``new``; each offset has the delivery that wins."""
    place = new.first_offset  # The first offset of `new` that is not decided yet.
    for old in run:
        if place < min(old.first_offset, new.last_offset + 1):
            yield new._replace(
                first_offset=place, last_offset=min(old.first_offset - 1, new.last_offset)
            )
        first, last = (
            max(old.first_offset, new.first_offset),
            min(old.last_offset, new.last_offset),
        )
        if first > last or _rank(old) >= _rank(new):
            yield old
        else:
            if old.first_offset < first:
                yield old._replace(last_offset=first - 1)
            yield new._replace(first_offset=first, last_offset=last)
            if last < old.last_offset:
                yield old._replace(first_offset=last + 1)
        place = max(place, old.last_offset + 1)
    if place <= new.last_offset:
        yield new._replace(first_offset=place)


def _join(pieces: Iterable[StateBatch]) -> list[StateBatch]:
    """Return sorted pieces, with neighbours of equal delivery joined."""
    joined: list[StateBatch] = []
    for piece in pieces:
        if (
            joined
            and joined[-1].last_offset + 1 == piece.first_offset
            and _rank(joined[-1]) == _rank(piece)
        ):
            joined[-1] = joined[-1]._replace(last_offset=piece.last_offset)
        else:
            joined.append(piece)
    return joined


def _rank(batch: StateBatch) -> tuple[int, int]:
    return batch.delivery_count, batch.delivery_state
