"""The command `plan`: every effective key, the session's packages, and what a run would change."""

from pyspark.sql import SparkSession

from kwire_pipeline import versions
from kwire_pipeline.commands.show import show
from kwire_pipeline.commands.tables import on_tables
from kwire_pipeline.config.describe import describe
from kwire_pipeline.config.model import Pipeline
from kwire_pipeline.config.template import Loaded, common_of
from kwire_pipeline.engine.planning import plan_run


def plan(loaded: Loaded, *, table: str | None = None) -> int:
    """Print each key with its value, defaults marked and secrets hidden, then the plan of a run."""
    pyspark, common = versions.installed_pyspark(), common_of(loaded)
    lines = [*describe(common), f"pyspark: {pyspark}"]
    lines += [f"package: {name}" for name in versions.packages(pyspark, common)]
    show(common, lines)
    return on_tables(loaded, table, show_changes, with_new=True)


def show_changes(spark: SparkSession, pipeline: Pipeline) -> int:
    """Print what a run would do to the tables; this needs Spark and the brokers."""
    show(pipeline, plan_run(spark, pipeline))
    return 0
