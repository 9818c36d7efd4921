"""The Spark session of all tests with a broker: the connector, Iceberg, Delta and S3.

A JVM gets its packages when it starts, so the tests of a run share one session.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

from pyspark.sql import SparkSession

from kwire_pipeline import versions
from kwire_pipeline.config.values import TableFormat
from kwire_pipeline.engine.session import QUICK
from tests.support.pipeline.quick_start import QUICK_START

EXTENSIONS = (
    "org.apache.iceberg.spark.extensions.IcebergSparkSessionExtensions",
    "io.delta.sql.DeltaSparkSessionExtension",
)
S3 = (
    "org.apache.hadoop:hadoop-aws:3.4.1",
    "org.apache.iceberg:iceberg-aws-bundle:1.11.0",
    "software.amazon.awssdk:s3-transfer-manager:2.44.4",
)
"""The packages that a user adds for S3; the SDK has the version of Iceberg's bundle."""
LEFT_OUT = "software.amazon.awssdk:bundle"
"""The whole SDK, half a gigabyte, of which Hadoop's S3A needs the two parts above."""


def quick_start(folder: Path) -> dict[str, str]:
    """Return what a process needs in its environment so that its own JVM starts quickly."""
    defaults = folder / "spark-conf"
    defaults.mkdir(exist_ok=True)
    line = f"spark.driver.extraJavaOptions {QUICK_START}\n"
    (defaults / "spark-defaults.conf").write_text(line)
    return {"SPARK_CONF_DIR": str(defaults)}


def open_session(warehouse: Path) -> SparkSession:
    """Open the session; tables of the catalog ``kwire`` are in the warehouse."""
    os.environ["PYSPARK_PYTHON"] = sys.executable
    pyspark = versions.installed_pyspark()
    packages = (
        versions.kafka_source(pyspark),
        versions.table_package(pyspark, TableFormat.ICEBERG),
        versions.spark_avro(pyspark),
        versions.table_package(pyspark, TableFormat.DELTA),
        *S3,
    )
    builder = SparkSession.builder.master("local[2]")
    for key, text in QUICK.items():
        builder = builder.config(key, text)
    session = (
        builder.config("spark.jars.packages", ",".join(packages))
        .config("spark.jars.excludes", LEFT_OUT)
        .config("spark.driver.extraJavaOptions", QUICK_START)
        .config("spark.driver.memory", "2g")
        .config("spark.ui.enabled", "false")
        .config("spark.ui.showConsoleProgress", "false")
        .config("spark.sql.shuffle.partitions", "2")
        .config("spark.databricks.delta.snapshotPartitions", "1")
        .config("spark.sql.session.timeZone", "UTC")
        .config("spark.sql.extensions", ",".join(EXTENSIONS))
        .config(
            "spark.sql.catalog.spark_catalog", "org.apache.spark.sql.delta.catalog.DeltaCatalog"
        )
        .config("spark.sql.catalog.kwire", "org.apache.iceberg.spark.SparkCatalog")
        .config("spark.sql.catalog.kwire.type", "hadoop")
        .config("spark.sql.catalog.kwire.cache-enabled", "false")
        .config("spark.sql.catalog.kwire.warehouse", str(warehouse))
        .getOrCreate()
    )
    session.sparkContext.setLogLevel("ERROR")
    return session
