"""Names for the events of a cleaning pass, to show that the histories reach all of them."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise
from typing import Final

from compat_tests.compaction.comparison import Cleaned
from compat_tests.compaction.view import Batch
from kwire.records import compression
from kwire.records.header import CODEC_MASK, CONTROL, DELETE_HORIZON, LOG_APPEND_TIME

FEATURES: Final = frozenset(
    {
        *(f"rebuilt: {name}" for name in compression.NAMES),
        *("merged segments", "emptied segment", "full map", "keyless record dropped"),
        *("horizon set", "horizon kept", "horizon kept as batch was rebuilt"),
        *("tombstone kept", "tombstone removed", "marker removed", "marker kept without data"),
        *("empty batch", "empty control batch", "empty batch removed"),
        *("aborted entry kept", "aborted entry removed", "append time rebuilt"),
        *("segments too wide to merge", "dirty log start"),
    }
)


def features(cleaned: Cleaned) -> frozenset[str]:
    """Return the names of what happened in a pass."""
    return frozenset(_of_segments(cleaned)) | frozenset(
        feature
        for before, after in _pairs(cleaned)
        for feature in (_of_batch(before, after) if after else _of_removed(before))
    )


def _pairs(cleaned: Cleaned) -> Iterator[tuple[Batch, Batch | None]]:
    after = {batch.base_offset: batch for batch in cleaned.after.all_batches()}
    for batch in cleaned.before.all_batches():
        yield batch, after.get(batch.base_offset)


def _of_segments(cleaned: Cleaned) -> Iterator[str]:
    before, after, answer = cleaned.before, cleaned.after, cleaned.answer
    if len(after.batches) < len(before.batches):
        yield "merged segments"
    if any(not after.batches.get(base, [0]) for base, batches in before.batches.items() if batches):
        yield "emptied segment"
    if answer["clean_end"] < answer["uncleanable"]:
        yield "full map"
    if answer["keyless_dropped"]:
        yield "keyless record dropped"
    if cleaned.job.start_offset > min(after.batches):
        yield "dirty log start"
    bases = [base for base in sorted(after.batches) if base <= answer["clean_end"]]
    if any(later - base > 1 << 31 for base, later in pairwise(bases)):
        yield "segments too wide to merge"
    entries = [
        {entry for part in view.aborted.values() for entry in part} for view in (before, after)
    ]
    if entries[1]:
        yield "aborted entry kept"
    if entries[0] - entries[1]:
        yield "aborted entry removed"


def _of_removed(before: Batch) -> Iterator[str]:
    if not before.entries:
        yield "empty batch removed"
    elif before.attributes & CONTROL:
        yield "marker removed"
    elif before.delete_horizon_ms is not None and before.entries[0].value is None:
        yield "tombstone removed"


def _of_batch(before: Batch, after: Batch) -> Iterator[str]:
    is_rebuilt = 0 < len(after.entries) < len(before.entries)
    if is_rebuilt:
        yield f"rebuilt: {compression.NAMES[after.attributes & CODEC_MASK]}"
        if after.attributes & LOG_APPEND_TIME:
            yield "append time rebuilt"
    if after.attributes & DELETE_HORIZON:
        if not before.attributes & DELETE_HORIZON:
            yield "horizon set"
        else:
            yield "horizon kept as batch was rebuilt" if is_rebuilt else "horizon kept"
        yield "marker kept without data" if after.attributes & CONTROL else "tombstone kept"
    if not after.entries:
        yield "empty control batch" if after.attributes & CONTROL else "empty batch"
