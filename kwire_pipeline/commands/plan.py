"""The command `plan`: every key in force and the packages of the session; nothing is written."""

from kwire_pipeline import versions
from kwire_pipeline.config.describe import describe
from kwire_pipeline.config.model import Pipeline


def plan(pipeline: Pipeline) -> int:
    """Print a line for each key that has a value, defaults marked and secrets hidden."""
    pyspark = versions.installed_pyspark()
    lines = [*describe(pipeline), f"pyspark: {pyspark}"]
    lines += [f"package: {name}" for name in versions.packages(pyspark, pipeline)]
    print("\n".join(lines))
    return 0
