"""The history of a pipeline's batches, read from its tables, Spark's checkpoint and the brokers.

Nothing is stored for it. Snapshots of Iceberg and versions of Delta have the marks of batches until
they expire; Spark keeps the last hundred batches in the checkpoint, whose files show how long each
of them took; and the brokers know which offset a topic had reached at a time.

Rules of this file: nothing is written.
"""

import datetime
from collections.abc import Mapping

import attrs
from pyspark.sql import SparkSession

from kwire_pipeline.config.model import Pipeline
from kwire_pipeline.config.values import Mode
from kwire_pipeline.day.figures import (
    DAY,
    Day,
    Done,
    Step,
    batches_of,
    by_batch,
    full_hours,
    lag_begins,
    positions_at,
    span,
)
from kwire_pipeline.engine import offsets
from kwire_pipeline.engine.batch import by_reason
from kwire_pipeline.engine.cluster import Cluster, topics_left
from kwire_pipeline.engine.offline import State, checkpoint_name, read_entry, state_of
from kwire_pipeline.engine.offsets import Ranges
from kwire_pipeline.engine.storage import Folder
from kwire_pipeline.errors import Refusal
from kwire_pipeline.tables.table import LETTERS, History, Letters, of_topics


@attrs.frozen
class Steps:
    """The batches of a day in a checkpoint."""

    by_batch: Mapping[int, Step]
    since: datetime.datetime | None
    """The time before which the checkpoint forgot the batches; None if it has the whole day."""


def read_day(spark: SparkSession, pipeline: Pipeline, now: datetime.datetime) -> Day:
    """Return the 24 hours before a time."""
    state = state_of(spark, pipeline)
    start = now - DAY
    letters = state.destinations.dead_letters
    table_history = history_of(state.destinations.table, state, start)
    # Without dead letters, a batch has none.
    letter_history = History(()) if letters is None else history_of(letters, state, start)
    if pipeline.table.mode is Mode.UPSERT and table_history is not None:
        # A MERGE also counts the rows of the files that it rewrites.
        entries = (attrs.evolve(entry, rows=None) for entry in table_history.entries)
        table_history = attrs.evolve(table_history, entries=tuple(entries))
    counted = {*by_batch(table_history), *by_batch(letter_history)}
    checkpoint = Folder(spark, pipeline.checkpoint).at(checkpoint_name(state.identity.pipeline_id))
    steps = read_steps(checkpoint, start, counted, state)
    batches = batches_of(table_history, letter_history, steps.by_batch)
    batches = [batch for batch in batches if batch.at >= start]
    histories = [each for each in (table_history, letter_history) if each is not None]
    cuts = [each.since for each in histories if each.since is not None and each.since > start]
    if table_history is None and steps.since is not None:
        cuts.append(steps.since)
    return Day(
        start=start,
        end=now,
        batches=tuple(batches),
        lags=read_lags(spark, pipeline, state, lag_times(start, now, batches, bool(cuts)), batches),
        reasons={} if letters is None else reasons_of(letters, state, span(batches)),
        since=max(cuts, default=None),
        steps_since=steps.since,
    )


def history_of(table: Letters, state: State, start: datetime.datetime) -> History | None:
    """Return the batches of a table; none if the table does not exist yet."""
    if not table.exists():
        return History(())
    return table.history(state.identity.pipeline_id, start)


def read_steps(
    checkpoint: Folder, start: datetime.datetime, counted: set[int], state: State
) -> Steps:
    """Return the batches that ended after a time; those not yet counted have their offsets."""
    began = {int(name): at for name, at in checkpoint.times("offsets").items() if name.isdigit()}
    ended = {int(name): at for name, at in checkpoint.times("commits").items() if name.isdigit()}
    steps = {
        batch_id: Step(
            began=began[batch_id],
            ended=at,
            ranges=None if batch_id in counted else ranges_of(checkpoint, batch_id, state),
        )
        for batch_id, at in ended.items()
        if at >= start and batch_id in began
    }
    first = min(steps, default=0)
    is_whole = first == 0 or first - 1 in ended
    return Steps(steps, None if is_whole else steps[first].ended)


def ranges_of(checkpoint: Folder, batch_id: int, state: State) -> Ranges | None:
    """Return the offsets of a batch in the checkpoint; None if its predecessor is gone."""
    try:
        first = state.identity.start if batch_id == 0 else read_entry(checkpoint, batch_id - 1)
        return Ranges.between(first, read_entry(checkpoint, batch_id))
    except Refusal:
        return None


def lag_times(
    start: datetime.datetime, end: datetime.datetime, batches: list[Done], cut: bool
) -> list[datetime.datetime]:
    """Return the times at which the lag is shown."""
    first = lag_begins(start, batches, cut)
    return [*(hour for hour in full_hours(start, end) if hour >= first), end]


def read_lags(
    spark: SparkSession,
    pipeline: Pipeline,
    state: State,
    times: list[datetime.datetime],
    batches: list[Done],
) -> Mapping[datetime.datetime, int]:
    """Return the lag at some times, the last of which is now."""
    positions = positions_at(times, batches, state.position)
    with Cluster.of(spark, pipeline) as cluster:
        topics = topics_left(pipeline, cluster, state.identity.topics).values()
        lags = {
            time: offsets.lag(
                positions[time], cluster.at_time(topics, round(time.timestamp() * 1000))
            )
            for time in times[:-1]
        }
        return {**lags, times[-1]: offsets.lag(state.position, cluster.ends(topics))}


def reasons_of(letters: Letters, state: State, ranges: Ranges) -> Mapping[str, int]:
    """Count the dead letters of some offsets by reason."""
    if not ranges.ranges or not letters.exists():
        return {}
    own = of_topics(letters.read(), state.identity.topics)
    return by_reason(own.where(LETTERS.condition(ranges)))
