"""The figures of a pipeline's last 24 hours, from what tables and checkpoint know of its batches.

Rules of this file: plain data only. A number that nobody stored is None, not zero.
"""

import datetime
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Final

import attrs

from kwire_pipeline.engine.offsets import Offsets, Ranges, later, offsets_of, with_absent
from kwire_pipeline.tables.table import Entry, History

DAY: Final = datetime.timedelta(days=1)
HOUR: Final = datetime.timedelta(hours=1)


@attrs.frozen(kw_only=True)
class Step:
    """A batch in Spark's checkpoint."""

    began: datetime.datetime
    """The time when its offsets were chosen."""
    ended: datetime.datetime
    ranges: Ranges | None = None
    """None if the checkpoint was not asked for them."""


@attrs.frozen(kw_only=True)
class Done:
    """A batch that is written."""

    batch_id: int
    at: datetime.datetime
    ranges: Ranges
    rows: int | None = None
    letters: int | None = None
    seconds: float | None = None
    """The time from the choice of its offsets to its end; None if the checkpoint forgot it."""


@attrs.frozen(kw_only=True)
class Hour:
    """The sums of an hour."""

    start: datetime.datetime
    offsets: int
    rows: int | None
    letters: int | None


@attrs.frozen(kw_only=True)
class Day:
    """The last 24 hours of one table."""

    start: datetime.datetime
    end: datetime.datetime
    batches: tuple[Done, ...]
    lags: Mapping[datetime.datetime, int]
    """The records with an earlier timestamp that were not written yet, at some times."""
    reasons: Mapping[str, int]
    """The dead letters of these batches that are still there, by reason."""
    since: datetime.datetime | None = None
    """The time before which nothing is known of rows and dead letters; None if all is known."""
    steps_since: datetime.datetime | None = None
    """The same for the durations of batches."""

    @property
    def offsets(self) -> int:
        return sum(batch.ranges.count for batch in self.batches)

    @property
    def rows(self) -> int | None:
        return total(batch.rows for batch in self.batches)

    @property
    def letters(self) -> int | None:
        return total(batch.letters for batch in self.batches)

    def hours(self) -> list[Hour]:
        """Return the hours of the clock that the day has a part of: the first and last are cut."""
        hours = []
        for start in full_hours(self.start - HOUR, self.end):
            own = [batch for batch in self.batches if start <= batch.at < start + HOUR]
            hours.append(
                Hour(
                    start=start,
                    offsets=sum(batch.ranges.count for batch in own),
                    rows=total(batch.rows for batch in own),
                    letters=total(batch.letters for batch in own),
                )
            )
        return hours


def total(numbers: Iterable[int | None]) -> int | None:
    """Return the sum of the numbers that are known; None if none of several is."""
    values = list(numbers)
    counted = [value for value in values if value is not None]
    return sum(counted) if counted or not values else None


def full_hours(start: datetime.datetime, end: datetime.datetime) -> list[datetime.datetime]:
    """Return the full hours of the clock after a time, up to another."""
    hour = start.replace(minute=0, second=0, microsecond=0) + HOUR
    hours = []
    while hour <= end:
        hours.append(hour)
        hour += HOUR
    return hours


def batches_of(
    table: History | None, letters: History | None, steps: Mapping[int, Step]
) -> list[Done]:
    """Join what a table, its dead letters and the checkpoint know of each batch.

    A batch that is in none of the tables had no rows and no dead letters: all its records were
    dropped.
    """
    rows, misfits = by_batch(table), by_batch(letters)
    batches = []
    for batch_id in sorted({*rows, *misfits, *steps}):
        row, misfit, step = rows.get(batch_id), misfits.get(batch_id), steps.get(batch_id)
        entries = [entry for entry in (row, misfit) if entry is not None]
        at = step.ended if step is not None else max(entry.at for entry in entries)
        ranges = next((entry.mark.ranges for entry in entries), Ranges(()))
        if row is None and step is not None and step.ranges is not None:
            ranges = step.ranges  # A topic of dead letters knows only some partitions.
        counts = [entry.mark.letter_count for entry in entries]
        letter_count = next((count for count in counts if count is not None), None)
        if letter_count is None:
            letter_count = _count(misfit, letters, at)
        batches.append(
            Done(
                batch_id=batch_id,
                at=at,
                ranges=ranges,
                rows=_count(row, table, at),
                letters=letter_count,
                seconds=None if step is None else (step.ended - step.began).total_seconds(),
            )
        )
    return sorted(batches, key=lambda batch: batch.at)


def _count(entry: Entry | None, history: History | None, at: datetime.datetime) -> int | None:
    """Return a batch's rows; 0 if the history would have them, None if it is gone or absent."""
    if entry is not None:
        return entry.rows
    is_gone = history is None or (history.since is not None and at < history.since)
    return None if is_gone else 0


def by_batch(history: History | None) -> dict[int, Entry]:
    """Return the entries of a history by the number of the batch."""
    return {} if history is None else {entry.mark.batch_id: entry for entry in history.entries}


def span(batches: Iterable[Done]) -> Ranges:
    """Return the smallest range of each partition that covers all batches."""
    starts = starts_of(batches := list(batches))
    ends: Offsets = {}
    for batch in batches:
        ends = later(ends, batch.ranges.ends)
    return Ranges.between(starts, ends)


def starts_of(batches: Iterable[Done]) -> Offsets:
    """Return the first offset of each partition in some batches."""
    parts = sorted((part for batch in batches for part in batch.ranges.ranges), reverse=True)
    return offsets_of((part.topic, part.partition, part.start) for part in parts)


def positions_at(
    times: Collection[datetime.datetime], batches: Sequence[Done], now: Offsets
) -> dict[datetime.datetime, Offsets]:
    """Return the offsets that were read at some times; ``now`` are the current ones."""
    positions = {}
    for time in times:
        position = with_absent(starts_of(batches), now)
        for batch in batches:
            if batch.at <= time:
                position = later(position, batch.ranges.ends)
        positions[time] = position
    return positions


def lag_begins(
    day_start: datetime.datetime, batches: Sequence[Done], cut: bool
) -> datetime.datetime:
    """Return the first time at which the offsets that were read are known.

    That is the day's start, if the batch before the first known one was written before it: the
    history is not ``cut``, and there is such a batch.
    """
    if batches and (cut or batches[0].batch_id == 0):
        return max(day_start, batches[0].at)
    return day_start
