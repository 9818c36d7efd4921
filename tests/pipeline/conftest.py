"""One local Spark session for all pipeline tests: starting it is most of their time."""

import os
import sys
from collections.abc import Iterator

import pytest
from pyspark.sql import SparkSession

from kwire_pipeline import versions
from kwire_pipeline.engine.session import QUICK
from tests.support.pipeline.quick_start import QUICK_START


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """py4j leaves sockets to the garbage collector, kafka-python reads its tables in an old way."""
    for item in items:
        if item.path.parent.name != "pipeline":
            continue
        item.add_marker(pytest.mark.filterwarnings("ignore::ResourceWarning"))
        item.add_marker(
            pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
        )
        item.add_marker(pytest.mark.filterwarnings("ignore:(read|open)_text is deprecated"))


@pytest.fixture(scope="session")
def spark() -> Iterator[SparkSession]:
    os.environ["PYSPARK_PYTHON"] = sys.executable
    builder = SparkSession.builder.master("local[1]")
    for key, text in QUICK.items():
        builder = builder.config(key, text)
    session = (
        builder.config("spark.jars.packages", versions.spark_avro(versions.installed_pyspark()))
        .config("spark.driver.extraJavaOptions", QUICK_START)
        .config("spark.ui.enabled", "false")
        .config("spark.sql.shuffle.partitions", "1")
        .config("spark.sql.session.timeZone", "UTC")
        .config("spark.sql.ansi.enabled", "false")
        .getOrCreate()
    )
    session.sparkContext.setLogLevel("ERROR")
    yield session
    session.stop()
