"""The command `jars`: puts a pipeline's jars in a folder and prints how to use them in Spark."""

from collections.abc import Callable, Mapping
from pathlib import Path

from kwire_pipeline import versions
from kwire_pipeline.config.model import Pipeline
from kwire_pipeline.jars import fetch
from kwire_pipeline.java import find_java


def jars(
    pipeline: Pipeline,
    folder: str,
    file: str,
    environment: Mapping[str, str],
    write: Callable[[str], object],
) -> int:
    """Fetch the jars and print the two ways to use them in a session."""
    coordinates = versions.jars(versions.installed_pyspark(), pipeline)
    paths = fetch(find_java(environment), coordinates, Path(folder))
    for path in paths:
        write(str(path))
    main = Path(__file__).parent.parent / "__main__.py"
    write(f"\nIn {file}:\n\n    spark: {{jars: [{folder}]}}\n\nor from a shell:\n")
    write(f"    spark-submit --jars {','.join(map(str, paths))} {main} run {file}")
    return 0
