"""`kwire-pipeline replay`: put dead letters through today's schema and expectations.

Letters that now fit are appended to the table and then deleted from the dead letters. A letter
whose offset is already in the table (because a replay ended between the two steps) is only deleted,
so each record stays in exactly one of the tables. In a table that is changed by key, letters become
changes; a letter that is older than the last change of its key is only deleted. Letters from other
topics belong to other pipelines and stay in the table of dead letters.
"""

import attrs
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from kwire_pipeline.commands.show import warner
from kwire_pipeline.commands.tables import on_tables
from kwire_pipeline.config.model import Pipeline
from kwire_pipeline.config.template import Loaded
from kwire_pipeline.config.values import Action, Mode, TableFormat
from kwire_pipeline.engine import identity, source
from kwire_pipeline.engine.batch import count, rejections
from kwire_pipeline.engine.by_key.letters import apply_letters, check_readable
from kwire_pipeline.engine.cluster import Cluster
from kwire_pipeline.engine.faults import NO_FAULTS, Faults, Place
from kwire_pipeline.engine.following import stored_schema
from kwire_pipeline.engine.offline import State, check_offsets, holding
from kwire_pipeline.engine.offsets import Offsets
from kwire_pipeline.engine.preparation import check_tables, prepare_tables
from kwire_pipeline.engine.schemas import classifying, schemas_of
from kwire_pipeline.engine.session import set_session
from kwire_pipeline.engine.shape_and_tables import origin_of, shape_of
from kwire_pipeline.engine.storage import Folder
from kwire_pipeline.engine.written import Written
from kwire_pipeline.errors import Refusal
from kwire_pipeline.records import frames
from kwire_pipeline.records.frames import Shape
from kwire_pipeline.tables.table import LETTERS, of_topics

SPOT = LETTERS.spot


def replay(loaded: Loaded, *, table: str | None = None) -> int:
    """Replay the dead letters and print how many became rows."""
    return on_tables(loaded, table, replay_table)


def replay_table(spark: SparkSession, pipeline: Pipeline) -> int:
    """Replay the dead letters of one table."""
    count, rest = replay_letters(spark, pipeline)
    became = (
        "became rows"
        if pipeline.table.mode is Mode.APPEND
        else "were applied by key, or were older than the last change of their key"
    )
    print(f"{count:,} dead letters {became}, {rest:,} still do not fit")
    return 0


def replay_letters(
    spark: SparkSession, pipeline: Pipeline, faults: Faults = NO_FAULTS
) -> tuple[int, int]:
    """Replay; return how many letters became rows, and how many remain."""
    set_session(spark)
    if pipeline.table.format is TableFormat.PARQUET:
        raise Refusal(
            "replay needs dead letters that can be deleted: table.format iceberg or delta"
        )
    if pipeline.dead_letters.topic is not None:
        raise Refusal(
            "replay needs dead letters that can be deleted, which records of a topic cannot be: "
            f"run a second pipeline with source.topics [{pipeline.dead_letters.topic}] into the "
            "same table"
        )
    folder = Folder(spark, pipeline.checkpoint)
    with holding(spark, pipeline, warner(pipeline)) as (lease, state):
        check_offsets(pipeline, state, "replay")
        letters, topics = state.destinations.dead_letters, state.identity.topics
        if letters is None:
            raise Refusal("the pipeline has no table of dead letters: there is nothing to replay")
        shape = shape_of(pipeline, stored_schema(pipeline, state.identity))
        check_tables(pipeline, state.destinations, is_new_start=False)
        prepare_tables(spark, pipeline, shape, state.destinations)
        own = of_topics(letters.read(), topics)
        raw = own.withColumnRenamed("timestamp_type", "timestampType").drop("reason")
        schemas = schemas_of(pipeline, folder, state.identity.pipeline_id)
        with classifying(raw, shape, schemas) as (batch, shape):
            check_rows(batch, shape)
            lease.check()
            if pipeline.table.mode is Mode.UPSERT:
                full_shape = shape if schemas is None else schemas.shape(shape)
                later = Later(spark, pipeline, state, full_shape)
                spots = apply_letters(batch, shape, state.destinations, later)
            else:
                spots = append_letters(batch, shape, pipeline, state)
            faults.reach(Place.AFTER_TABLE)
            lease.check()
            # Once its letters are gone and its mark has expired, the newest batch would look lost.
            Written.read(folder).without(letters.name).write(folder)
            count = letters.delete_letters(spots)
        return count, of_topics(letters.read(), topics).count()


@attrs.frozen
class Later:
    """The records of the topics from given offsets up to the checkpoint's."""

    spark: SparkSession
    pipeline: Pipeline
    state: State
    shape: Shape

    def __call__(self, start: Offsets) -> DataFrame:
        """Classify the records; raise Refusal if the topics may lack deletions among them."""
        with Cluster.of(self.spark, self.pipeline) as cluster:
            topics = cluster.topics(start)
            topic_ids = {name: topic.topic_id for name, topic in topics.items()}
            cluster_id = cluster.cluster_id()
            # The brokers were asked only about the letters' topics.
            identity.check_cluster(self.state.identity, cluster_id, topic_ids, may_lack=True)
            beginnings = cluster.beginnings(topics.values())
            policies = cluster.topic_settings(topics, "cleanup.policy")
        check_readable(start, beginnings, policies)
        position = self.state.position
        end = {t: {p: position[t][p] for p in partitions} for t, partitions in start.items()}
        raw = source.records(self.spark, self.pipeline, start, end)
        return frames.classify(raw, self.shape)


def append_letters(batch: DataFrame, shape: Shape, pipeline: Pipeline, state: State) -> DataFrame:
    """Append the letters that are rows now, and return the topics and offsets of all rows."""
    table, origin = state.destinations.table, origin_of(pipeline)
    written = origin.spots(table.read()).toDF(*origin.spot)
    rows = state.destinations.rows_of(batch, shape)
    table.add(rows.join(written, list(origin.spot), "left_anti"))
    return origin.spots(table.read())


def check_rows(batch: DataFrame, shape: Shape) -> None:
    """Raise Refusal if a letter would become a row that an expectation with ``fail`` rejects."""
    if not any(action is Action.FAIL for _, action in shape.expectations.values()):
        return
    unmet = count(batch.where(F.col(frames.CLASS) == frames.GOOD), shape).unmet
    for words in rejections(shape.expectations, unmet):
        raise Refusal(
            f"{words} and would come from dead letters: no letter is moved; set the expectation's "
            "action to dead-letter, so that they remain dead letters"
        )
