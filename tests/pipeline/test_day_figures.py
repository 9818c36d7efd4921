"""The figures of a day: each batch once, from what the tables and the checkpoint know of it."""

import datetime

from kwire_pipeline.day.figures import (
    Day,
    Done,
    Step,
    batches_of,
    lag_begins,
    positions_at,
    span,
)
from kwire_pipeline.engine.offsets import Ranges
from kwire_pipeline.tables.table import Entry, History, Mark

START = datetime.datetime(2026, 11, 26, 10, 30, tzinfo=datetime.UTC)
MINUTE = datetime.timedelta(minutes=1)
HOUR = datetime.timedelta(hours=1)
NONE = History(())


def ranges(start: int, end: int, partition: int = 0) -> Ranges:
    return Ranges.parse(f'{{"orders":{{"{partition}":[{start},{end}]}}}}')


def entry(
    batch_id: int, start: int, end: int, rows: int | None, letters: int | None = None
) -> Entry:
    mark = Mark("p", batch_id, ranges(start, end), letter_count=letters)
    return Entry(mark=mark, at=START + batch_id * MINUTE, rows=rows)


def step(batch_id: int, own: Ranges | None = None) -> Step:
    ended = START + batch_id * MINUTE
    return Step(began=ended - datetime.timedelta(seconds=7), ended=ended, ranges=own)


def batch_at(at: datetime.datetime, rows: int | None, start: int = 0, batch_id: int = 0) -> Done:
    own = ranges(start, start + 10)
    return Done(batch_id=batch_id, at=at, ranges=own, rows=rows, letters=1)


def day(*batches: Done) -> Day:
    return Day(start=START, end=START + 24 * HOUR, batches=batches, lags={}, reasons={})


def test_batch_has_what_each_source_knows_of_it() -> None:
    """One batch has only dead letters, one neither rows nor letters, one is not in a checkpoint."""
    table = History((entry(0, 0, 10, 9, 1), entry(3, 30, 40, 10, 0)))
    letters = History((entry(0, 0, 10, 1, 1), entry(1, 10, 20, 10, 10)))
    steps = {0: step(0), 1: step(1), 2: step(2, ranges(20, 30))}
    batches = batches_of(table, letters, steps)
    assert [(b.batch_id, b.rows, b.letters, b.seconds) for b in batches] == [
        (0, 9, 1, 7.0),
        (1, 0, 10, 7.0),
        (2, 0, 0, 7.0),
        (3, 10, 0, None),
    ]
    assert [batch.ranges for batch in batches] == [ranges(n, n + 10) for n in (0, 10, 20, 30)]


def test_letters_of_a_topic_are_counted_without_a_mark() -> None:
    (batch,) = batches_of(NONE, History((entry(1, 10, 12, 2),)), {1: step(1, ranges(10, 20))})
    assert (batch.letters, batch.ranges) == (2, ranges(10, 20))


def test_rows_without_a_history_are_unknown_and_not_zero() -> None:
    """So is the number of rows of a change by key."""
    (batch,) = batches_of(None, NONE, {0: step(0, ranges(0, 10))})
    assert (batch.rows, batch.letters, batch.ranges.count) == (None, 0, 10)
    assert day(batch_at(START, None), batch_at(START, None)).rows is None
    assert day().rows == 0


def test_rows_before_a_cut_are_unknown_and_those_after_it_are_counted() -> None:
    """A batch without rows after the cut has none."""
    table = History((entry(2, 20, 30, 10),), since=START + 2 * MINUTE)
    steps = {number: step(number, ranges(10 * number, 10 * number + 10)) for number in range(4)}
    batches = batches_of(table, NONE, steps)
    assert [batch.rows for batch in batches] == [None, None, 10, 0]
    assert day(*batches).rows == 10


def test_hours_are_those_of_the_clock_and_add_up() -> None:
    """A day from half past ten has parts of 25 hours."""
    end = START + 24 * HOUR
    batches = [batch_at(at, 10) for at in (START, START + 29 * MINUTE, START + 30 * MINUTE, end)]
    hours = day(*batches).hours()
    assert [hour.start.hour for hour in hours] == [*range(10, 24), *range(11)]
    assert [hour.rows for hour in hours] == [20, 10, *[0] * 22, 10]
    assert [hour.letters for hour in hours] == [2, 1, *[0] * 22, 1]
    assert sum(hour.offsets for hour in hours) == day(*batches).offsets == 40


def test_day_from_a_full_hour_has_no_hour_before_it() -> None:
    start = START + 30 * MINUTE
    whole = Day(start=start, end=start + 24 * HOUR, batches=(), lags={}, reasons={})
    assert [hour.start for hour in whole.hours()][:1] == [start]


def test_positions_follow_the_batches() -> None:
    """Before the first known batch it is where that batch began."""
    batches = [batch_at(START + HOUR, 10, 100), batch_at(START + 3 * HOUR, 10, 110)]
    times = [START + n * HOUR for n in (0, 1, 2, 3)]
    positions = positions_at(times, batches, {"orders": {0: 120, 1: 7}})
    assert [positions[time]["orders"] for time in times] == [
        {0: 100, 1: 7},
        {0: 110, 1: 7},
        {0: 110, 1: 7},
        {0: 120, 1: 7},
    ]


def test_lag_is_shown_only_where_the_position_is_known() -> None:
    """Nothing was read before batch 0; before a cut, the position is not known."""
    first = START + HOUR
    assert lag_begins(START, [batch_at(first, 1, batch_id=7)], False) == START
    assert lag_begins(START, [batch_at(first, 1, batch_id=7)], True) == first
    assert lag_begins(START, [batch_at(first, 1, batch_id=0)], False) == first
    assert lag_begins(START, [], True) == START


def test_offsets_of_a_day_are_those_of_all_its_batches() -> None:
    batches = [batch_at(START, 1, 0), batch_at(START, 1, 10)]
    both = [*batches, Done(batch_id=2, at=START, ranges=ranges(5, 9, partition=1))]
    assert span(both) == Ranges((*ranges(0, 20).ranges, *ranges(5, 9, partition=1).ranges))
    assert span([]).ranges == ()
