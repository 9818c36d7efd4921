"""The Spark session with the Kafka connector, one for all Spark tests."""

import os
import sys
from collections.abc import Iterator

import pytest
from pyspark.sql import SparkSession

from kwire_pipeline.versions import installed_pyspark, kafka_source


@pytest.fixture(scope="session")
def spark() -> Iterator[SparkSession]:
    os.environ["PYSPARK_PYTHON"] = sys.executable
    session = (
        SparkSession.builder.master("local[2]")
        .config("spark.jars.packages", kafka_source(installed_pyspark()))
        .config("spark.ui.enabled", "false")
        .config("spark.sql.shuffle.partitions", "2")
        .config("spark.sql.session.timeZone", "UTC")
        .getOrCreate()
    )
    session.sparkContext.setLogLevel("ERROR")
    yield session
    session.stop()
