"""The plan of a run: where it begins, and what it changes in the tables. Nothing is written."""

from pyspark.sql import SparkSession

from kwire_pipeline.config.model import Pipeline
from kwire_pipeline.engine import identity, schema
from kwire_pipeline.engine.cluster import Cluster, topics_of
from kwire_pipeline.engine.following import at_start
from kwire_pipeline.engine.identity import Begin, Intent
from kwire_pipeline.engine.offline import check_definition, checkpoint_name, half_done
from kwire_pipeline.engine.preparation import check_mode
from kwire_pipeline.engine.query import facts_of, read_identity
from kwire_pipeline.engine.session import set_session
from kwire_pipeline.engine.shape_and_tables import destinations_of, rows_schema, shape_of
from kwire_pipeline.engine.storage import Folder

BEGINNINGS = {
    Begin.NEW: "a run begins at source.start",
    Begin.CONTINUE: "a run continues at the checkpoint's offsets",
}


def plan_run(spark: SparkSession, pipeline: Pipeline) -> list[str]:
    """Return what a run would do; raise the Refusal with which it would end."""
    set_session(spark)
    folder = Folder(spark, pipeline.checkpoint)
    stored = read_identity(folder)
    destinations = destinations_of(spark, pipeline)
    pipeline = at_start(pipeline, stored, folder, destinations)
    shape = shape_of(pipeline, pipeline.value.schema)
    with Cluster.of(spark, pipeline) as cluster:
        topics = topics_of(pipeline, cluster)
        facts = facts_of(pipeline, stored, folder, destinations, cluster, topics, Intent.CONTINUE)
    if destinations.dead_letters is not None:
        destinations.dead_letters.check_ready()
    begin = identity.decide(
        pipeline.name, pipeline.checkpoint, pipeline.table.name, stored, facts, Intent.CONTINUE
    )
    lines = [BEGINNINGS[begin]]
    if stored is not None and half_done(folder.at(checkpoint_name(stored.pipeline_id))) is not None:
        check_definition(spark, pipeline, stored, folder)
        lines.append("a batch is half done: a run finishes it first")
    if stored is not None and stored.pending_deletion:
        lines.append("a run first deletes the rows, as one with --from-start has begun to")
    rows = rows_schema(spark, shape, destinations.transform)
    if not destinations.table.exists():
        columns = ", ".join(f"{f.name} {f.dataType.simpleString()}" for f in rows.fields)
        return [*lines, f"a run creates {pipeline.table.name} ({columns})"]
    check_mode(destinations.table, shape.changes.rule, pipeline.table.name)
    destinations.table.check_partitions()
    changes = schema.difference(destinations.table.columns(), rows)
    schema.check(changes, pipeline.table.evolution, pipeline.table.name)
    if not changes:
        return [*lines, f"{pipeline.table.name} has all columns"]
    return [*lines, *(f"{pipeline.table.name}: {line}" for line in changes.words())]
