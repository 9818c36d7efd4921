"""`kwire-pipeline verify`: each committed offset is in the table or dead letters exactly once.

For a table that is changed by key, it proves that each key has its last change.
"""

from collections.abc import Sequence
from typing import Final

import attrs
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F

from kwire_pipeline.commands.show import show
from kwire_pipeline.commands.tables import on_tables
from kwire_pipeline.config.model import Pipeline
from kwire_pipeline.config.template import Loaded
from kwire_pipeline.config.values import Action, Mode, Tombstones
from kwire_pipeline.engine import proof, source
from kwire_pipeline.engine.by_key.key_proof import KeyProof, Sides, compare_keys
from kwire_pipeline.engine.by_key.upsert import all_changes
from kwire_pipeline.engine.cluster import Cluster, may_lack_topics, topics_left
from kwire_pipeline.engine.identity import check_cluster
from kwire_pipeline.engine.offline import State, state_of
from kwire_pipeline.engine.offsets import Offsets, later
from kwire_pipeline.engine.proof import SPOT, Proof
from kwire_pipeline.engine.schemas import classifying, schemas_of
from kwire_pipeline.engine.session import set_session
from kwire_pipeline.engine.shape_and_tables import origin_of, shape_of
from kwire_pipeline.engine.storage import Folder
from kwire_pipeline.errors import Failure, Refusal
from kwire_pipeline.records import frames
from kwire_pipeline.records.frames import DELETES, Shape
from kwire_pipeline.tables.table import other_writers

NO_END: Final = (1 << 63) - 1


def verify(loaded: Loaded, *, table: str | None = None) -> int:
    """Compare topics and tables and print the results; fail unless each offset appears once."""
    return on_tables(loaded, table, verify_table)


def verify_table(spark: SparkSession, pipeline: Pipeline) -> int:
    """Verify one table and print the result; raise Failure unless each offset is there once."""
    result = prove(spark, pipeline)
    show(pipeline, result.words())
    if not result.is_clean:
        raise Failure(f"{pipeline.table.name} does not agree with the topics: {result.problem}")
    return 0


def prove(spark: SparkSession, pipeline: Pipeline) -> Proof | KeyProof:
    """Compare the records that the topics still have with the tables."""
    set_session(spark)
    state = state_of(spark, pipeline)
    is_by_key = pipeline.table.mode is Mode.UPSERT
    if is_by_key and state.identity.has_replaced_topic:
        raise Refusal(
            f"{pipeline.table.name} has rows of a former topic of the same name, whose offsets "
            "do not say which change of a key is the last: run with --from-start to verify it"
        )
    if is_by_key and state.is_half_done:
        raise Refusal(
            f"pipeline {pipeline.name} has a batch that is half done, whose changes hide earlier "
            "ones: let a run finish it first"
        )
    with Cluster.of(spark, pipeline) as cluster:
        topics = topics_left(pipeline, cluster, state.identity.topics)
        topic_ids = {name: topic.topic_id for name, topic in topics.items()}
        may_lack = may_lack_topics(pipeline)
        check_cluster(state.identity, cluster.cluster_id(), topic_ids, may_lack=may_lack)
        beginnings = cluster.beginnings(topics.values())
        compacted = cluster.topics_with_compaction(topics)
    first = state.identity.verify_from
    start = later(beginnings, state.identity.start if first is None else first)
    end = later(start, state.position)
    # A deleted topic has no records to compare with.
    start, end = ({name: each[name] for name in topics} for each in (start, end))
    raw = source.records(spark, pipeline, start, end)
    if is_by_key:
        return prove_keys(raw, pipeline, state, (start, end), compacted)
    row_counts = made_by_transform(raw, pipeline, state)
    records = with_drops(raw, pipeline, state, row_counts)
    written, former = written_of(pipeline, state, (start, end), row_counts, compacted), 0
    if state.identity.has_replaced_topic:
        written, former = proof.with_timestamps_of(written, raw)
    result = proof.compare(records, written, compacted)
    return attrs.evolve(
        result,
        former=former,
        letter_copies=copies_of(state),
        other_writers=other_writers(state.destinations.tables, pipeline.name, topics),
    )


def made_by_transform(raw: DataFrame, pipeline: Pipeline, state: State) -> DataFrame | None:
    """Return how many rows the transform makes of each record; None without a transform."""
    if state.destinations.transform is None:
        return None
    shape = known_shape(pipeline, state)
    rows = state.destinations.rows_of(frames.classify(raw, shape), shape)
    return proof.made_of(origin_of(pipeline).spots(rows))


def with_drops(
    raw: DataFrame, pipeline: Pipeline, state: State, row_counts: DataFrame | None
) -> DataFrame:
    """Return the offsets of records, and whether the pipeline drops or ignores each record.

    ``row_counts`` has the number of rows of each record, if there is a transform; a record may have
    no rows. If old dead letters may have expired, also return whether the record is a dead letter.
    """
    drops = any(each.action is Action.DROP for each in pipeline.expectations.values())
    letters = state.destinations.dead_letters
    may_lack_old = letters is not None and letters.may_lack_old()
    ignores = pipeline.table.tombstones is Tombstones.IGNORE
    if not drops and not may_lack_old and not ignores and row_counts is None:
        return raw.select(*SPOT, F.lit(False).alias("dropped"))
    shape = known_shape(pipeline, state)
    is_dropped = F.col(frames.CLASS).isin(frames.DROPPED, frames.IGNORED)
    is_letter = F.col(frames.CLASS).isin(*frames.LETTERS)
    records = frames.classify(raw, shape).select(
        *own_spot(shape),
        is_dropped.alias("dropped"),
        is_letter.alias("expired"),
        (F.col(frames.CLASS) == frames.GOOD).alias("good"),
    )
    records = records.withColumn("expired", F.col("expired") & may_be_gone(state))
    if row_counts is not None:
        is_omitted = F.col("good") & F.col("made").isNull()
        records = records.join(row_counts, list(SPOT), "left")
        records = records.withColumn("dropped", F.col("dropped") | is_omitted)
    return records.select(*SPOT, "dropped", "expired")


def may_be_gone(state: State) -> Column:
    """Return the condition that retention may have removed the dead letter of a record."""
    letters = state.destinations.dead_letters
    if letters is None or not letters.may_lack_old():
        return F.lit(False)
    start = letters.kept_from(state.identity.pipeline_id)
    end = {topic: dict.fromkeys(partitions, NO_END) for topic, partitions in start.items()}
    return ~proof.within(start, end)


def copies_of(state: State) -> int:
    """Return the number of dead letters that occur more than once in their topic."""
    letters = state.destinations.dead_letters
    return 0 if letters is None else letters.copies()


def known_shape(pipeline: Pipeline, state: State) -> Shape:
    """Return the shape of rows, including the writers' schemas that runs got from the registry."""
    shape = shape_of(pipeline, state.identity.schema)
    folder = Folder(SparkSession.active(), pipeline.checkpoint)
    schemas = schemas_of(pipeline, folder, state.identity.pipeline_id)
    return shape if schemas is None else schemas.shape(shape)


def prove_keys(
    raw: DataFrame,
    pipeline: Pipeline,
    state: State,
    bounds: tuple[Offsets, Offsets],
    compacted: Sequence[str],
) -> KeyProof:
    """Compare the last change of each key with the rows, and the misfits with the dead letters."""
    start, end = bounds
    shape = known_shape(pipeline, state)
    table, letters = state.destinations.table, state.destinations.dead_letters
    origin = shape.origin[: len(SPOT)]
    with classifying(raw, shape, None) as (batch, _):
        spots = batch.select(*own_spot(shape), F.col(frames.CLASS).alias("class"))
        rows = origin_of(pipeline).spots(table.read())
        # A letter that would fit today remains a letter; a row that would not remains a row.
        misfits = spots.where(F.col("class").isin(*frames.LETTERS)).join(
            rows, list(SPOT), "left_anti"
        )
        written = spots.limit(0).select(*SPOT)
        if letters is not None:
            written = letters.read().select(*SPOT).where(proof.within(start, end))
        expected = misfits.select(*SPOT).unionAll(
            spots.join(written, list(SPOT), "left_semi").select(*SPOT)
        )
        columns = {"dropped": F.lit(False), "expired": may_be_gone(state)}
        judged = proof.compare(expected.distinct().withColumns(columns), written, compacted)
        judged = attrs.evolve(judged, letter_copies=copies_of(state))
        changes = all_changes(batch, shape, state.destinations.transform)
        if state.destinations.deletions is not None:
            # Deletions whose records the topics no longer have.
            deletions = state.destinations.deletions.read().where(~proof.within(start, end, origin))
            deletions = deletions.withColumn(DELETES, F.lit(True))
            changes = changes.unionByName(deletions, allowMissingColumns=True)
        names = [F.col(f"`{name}`") for name in origin]
        is_letter = [column == F.col(name) for column, name in zip(names, SPOT, strict=True)]
        sides = Sides(
            changes=changes.join(written, is_letter, "left_anti"),
            rows=table.read(),
            keys=shape.changes.keys,
            sequence=shape.changes.sequence,
            origin=origin,
            start=start,
            end=end,
            compacted=compacted,
        )
        return compare_keys(sides, spots.count(), judged)


def own_spot(shape: Shape) -> list[Column]:
    """Return the topic, partition and offset columns of a classified batch."""
    return frames.origin(shape)[: len(SPOT)]


def written_of(
    pipeline: Pipeline,
    state: State,
    bounds: tuple[Offsets, Offsets],
    row_counts: DataFrame | None,
    compacted: Sequence[str],
) -> DataFrame:
    """Return the offsets and timestamps in the table and the dead letters.

    ``row_counts`` has the number of rows of each record, if there is a transform; ``compacted`` are
    topics that may lack records.
    """
    table, letters = state.destinations.table, state.destinations.dead_letters
    timestamp = F.col(f"`{pipeline.table.origin_prefix}timestamp`").alias("timestamp")
    written = origin_of(pipeline).spots(table.read(), timestamp)
    if row_counts is not None:
        written = proof.per_record(written, row_counts, compacted)
    if letters is not None:
        written = written.unionAll(letters.read().select(*SPOT, "timestamp"))
    return written.where(proof.within(*bounds))
