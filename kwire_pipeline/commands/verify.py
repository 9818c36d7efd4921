"""`kwire-pipeline verify`: each committed offset is once in the table or in the dead letters."""

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from kwire_pipeline.config.model import Pipeline
from kwire_pipeline.config.values import Action
from kwire_pipeline.engine import proof, source
from kwire_pipeline.engine.cluster import Cluster
from kwire_pipeline.engine.identity import check_cluster
from kwire_pipeline.engine.offline import State, state_of
from kwire_pipeline.engine.offsets import Offsets, dump, later
from kwire_pipeline.engine.parts import LETTERS, origin_of, shape_of
from kwire_pipeline.engine.proof import SPOT, Proof
from kwire_pipeline.engine.query import set_session
from kwire_pipeline.engine.session import open_session
from kwire_pipeline.errors import EXIT_FAILURE
from kwire_pipeline.records import frames


def verify(pipeline: Pipeline) -> int:
    """Compare topic and tables and print the result; 0 only if each offset is there once."""
    spark = open_session(pipeline)
    try:
        result = prove(spark, pipeline)
    finally:
        spark.stop()
    print("\n".join(result.words()))
    return 0 if result.is_clean else EXIT_FAILURE


def prove(spark: SparkSession, pipeline: Pipeline) -> Proof:
    """Compare the records that the topics still have with the tables."""
    set_session(spark)
    state = state_of(spark, pipeline)
    cluster = Cluster(spark, source.client(pipeline.source))
    try:
        topics = cluster.topics(state.identity.topics)
        topic_ids = {name: topic.topic_id for name, topic in topics.items()}
        check_cluster(state.identity, cluster.cluster_id(), topic_ids)
        beginnings = cluster.beginnings(topics.values())
        compacted = cluster.topics_with_compaction(topics)
    finally:
        cluster.close()
    first = state.identity.verify_from
    start = later(beginnings, state.identity.start if first is None else first)
    end = later(start, state.position)
    records = records_of(spark, pipeline, state, start, end)
    return proof.compare(records, written_of(pipeline, state, start, end), compacted)


def records_of(
    spark: SparkSession, pipeline: Pipeline, state: State, start: Offsets, end: Offsets
) -> DataFrame:
    """Return the offsets of the committed records, and whether an expectation drops the record."""
    options = source.options(pipeline, state.identity.topics, start)
    for name in ("maxOffsetsPerTrigger", "subscribePattern"):
        options.pop(name, None)
    options |= {"subscribe": ",".join(sorted(end)), "endingOffsets": dump(end)}
    raw = spark.read.format("kafka").options(**options).load()
    if not any(each.action is Action.DROP for each in pipeline.expectations.values()):
        return raw.select(*SPOT, F.lit(False).alias("dropped"))
    shape = shape_of(pipeline, state.identity.schema)
    classified = frames.classify(raw, shape)
    own = [F.col(f"{frames.OWN}{name}").alias(name) for name in SPOT]
    return classified.select(*own, (F.col(frames.CLASS) == frames.DROPPED).alias("dropped"))


def written_of(pipeline: Pipeline, state: State, start: Offsets, end: Offsets) -> DataFrame:
    """Return the offsets in the table and the dead letters."""
    table, letters = state.destinations.table, state.destinations.dead_letters
    origin = origin_of(pipeline)
    written = table.read().select(
        F.col(f"`{origin.topic}`").alias("topic"),
        F.col(f"`{origin.partition}`").alias("partition"),
        F.col(f"`{origin.offset}`").alias("offset"),
    )
    if letters is not None:
        written = written.unionAll(
            letters.read().select(LETTERS.topic, LETTERS.partition, LETTERS.offset)
        )
    return written.where(proof.within(start, end))
