"""The Spark session: the jars for this version of Spark, and the catalog for Iceberg.

The versions are a set that works together; `docs/compatibility.md` says how that was tested.
"""

from typing import Final

from pyspark.sql import SparkSession

from kwire_pipeline.settings import Settings

SCALA: Final = "2.13"
SPARK: Final = "4.0.0"
KAFKA_SOURCE: Final = f"org.apache.spark:spark-sql-kafka-0-10_{SCALA}:{SPARK}"
ICEBERG: Final = f"org.apache.iceberg:iceberg-spark-runtime-4.0_{SCALA}:1.11.0"
CATALOG: Final = "kwire"


def configuration(settings: Settings) -> dict[str, str]:
    """Return Spark's configuration for the job: the user's, over the job's defaults."""
    packages = [KAFKA_SOURCE]
    chosen = {
        "spark.sql.session.timeZone": "UTC",
        "spark.ui.enabled": "false",
        "spark.sql.streaming.forceDeleteTempCheckpointLocation": "true",
    }
    if settings.format == "iceberg":
        packages.append(ICEBERG)
        chosen["spark.sql.extensions"] = (
            "org.apache.iceberg.spark.extensions.IcebergSparkSessionExtensions"
        )
        if settings.warehouse is not None:
            catalog = f"spark.sql.catalog.{CATALOG}"
            chosen[catalog] = "org.apache.iceberg.spark.SparkCatalog"
            chosen[f"{catalog}.type"] = "hadoop"
            chosen[f"{catalog}.warehouse"] = settings.warehouse
    chosen["spark.jars.packages"] = ",".join(packages)
    return {**chosen, **settings.conf}


def open_session(settings: Settings) -> SparkSession:
    """Open a session with the job's configuration, on the user's master or Spark's default."""
    builder = SparkSession.builder.appName(f"kwire-pipeline {settings.topic}")
    for key, value in configuration(settings).items():
        builder = builder.config(key, value)
    if settings.master is not None:
        builder = builder.master(settings.master)
    return builder.getOrCreate()
