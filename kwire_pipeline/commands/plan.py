"""The command `plan`: every effective key, the session's packages, and what a run would change."""

from kwire_pipeline import versions
from kwire_pipeline.commands.show import show
from kwire_pipeline.config.describe import describe
from kwire_pipeline.config.model import Pipeline
from kwire_pipeline.engine.planning import plan_run
from kwire_pipeline.engine.session import open_session


def plan(pipeline: Pipeline) -> int:
    """Print each key with its value, defaults marked and secrets hidden, then the plan of a run."""
    pyspark = versions.installed_pyspark()
    lines = [*describe(pipeline), f"pyspark: {pyspark}"]
    lines += [f"package: {name}" for name in versions.packages(pyspark, pipeline)]
    show(pipeline, lines)
    show(pipeline, changes(pipeline))
    return 0


def changes(pipeline: Pipeline) -> list[str]:
    """Return what a run would do to the tables; this needs Spark and the brokers."""
    spark = open_session(pipeline)
    try:
        return plan_run(spark, pipeline)
    finally:
        spark.stop()
