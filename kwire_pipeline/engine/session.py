"""The Spark session of a pipeline: packages, jars, the catalog of its tables, and options.

Rules of this file: pyspark starts the JVM with its configuration on the command line, which every
user of the machine can read, so secrets are passed later, through py4j, once the JVM runs. Spark
hides options by their names, in its event log, its pages and `SET`; the configuration lists the
names of all secrets.
"""

import re
from collections.abc import Mapping
from typing import Final

from py4j.protocol import Py4JJavaError
from pyspark import SparkConf, SparkContext
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from kwire_pipeline import signals, versions
from kwire_pipeline.config.declare import Secret
from kwire_pipeline.config.model import Pipeline
from kwire_pipeline.config.values import CatalogType, Format, TableFormat
from kwire_pipeline.engine.avro import avro_limits
from kwire_pipeline.engine.launch import launch
from kwire_pipeline.engine.shipping import ship
from kwire_pipeline.engine.storage import Folder
from kwire_pipeline.explain import start_problem
from kwire_pipeline.jars import jar_files

QUICK: Final = {
    # Spark compiles the parts of each query to classes, and keeps 100 of them by default. Runs of
    # two tables of Delta need more, and then each run would compile all of them again.
    "spark.sql.codegen.cache.maxEntries": "1000",
    # For each column, pyspark would tell Spark in several calls which line of Python made it.
    "spark.python.sql.dataFrameDebugging.enabled": "false",
    # Spark keeps the plans and figures of the last thousand queries, jobs and stages for its pages,
    # which a pipeline does not show.
    "spark.sql.ui.retainedExecutions": "10",
    "spark.ui.retainedJobs": "10",
    "spark.ui.retainedStages": "10",
    "spark.ui.retainedTasks": "100",
    # Otherwise Spark clones the session for each frame that is cached, so for each batch, and up to
    # 4.0.1 no session is ever freed (SPARK-54753). The first setting is about bucketed tables, the
    # second lets a cached frame have fewer partitions than its query has without adaptive planning.
    "spark.sql.sources.bucketing.autoBucketedScan.enabled": "false",
    "spark.sql.optimizer.canChangeCachedPlanOutputPartitioning": "true",
}
"""The options that only save time and memory."""
DEFAULTS: Final = {
    **QUICK,
    "spark.sql.session.timeZone": "UTC",
    "spark.sql.ansi.enabled": "false",
    # Spark's default counts nanoseconds, so other readers of Parquet and Delta, such as Arrow, read
    # wrong times before 1678 and after 2262, and the files have no bounds to skip them by.
    "spark.sql.parquet.outputTimestampType": "TIMESTAMP_MICROS",
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
}
ICEBERG_EXTENSIONS: Final = "org.apache.iceberg.spark.extensions.IcebergSparkSessionExtensions"
DELTA_EXTENSIONS: Final = "io.delta.sql.DeltaSparkSessionExtension"
REDACTION: Final = "spark.redaction.regex"
SECRET_NAMES: Final = "(?i)secret|password|token|access[.]?key"
"""Spark's own default."""
AT_LAUNCH: Final = (
    *("spark.master", "spark.driver.", "spark.submit.", "spark.jars", "spark.files"),
    *("spark.archives", "spark.kerberos.", "spark.yarn.", "spark.pyspark."),
)
"""The prefixes of keys that have an effect only while spark-submit starts the JVM."""
PARTITIONS: Final = (
    "spark.sql.shuffle.partitions",
    "spark.databricks.delta.snapshotPartitions",
    "spark.sql.sources.parallelPartitionDiscovery.parallelism",
)
"""The settings with the numbers of tasks: shuffles, reads of Delta's log, and listing files."""


def configuration(pipeline: Pipeline, pyspark: str, *, connector: bool = True) -> Mapping[str, str]:
    """Return Spark's configuration; the user's settings win, but extensions are appended."""
    user = dict(pipeline.spark.conf)
    chosen = dict(DEFAULTS)
    chosen["spark.jars.packages"] = ",".join(
        versions.packages(pyspark, pipeline, connector=connector)
    )
    chosen["spark.jars"] = ",".join(jar_files(pipeline.spark.jars))
    extensions = user.pop("spark.sql.extensions", "")
    match pipeline.table.format:
        case TableFormat.ICEBERG:
            chosen |= iceberg_catalog(pipeline)
            extensions = _comma_list(ICEBERG_EXTENSIONS, extensions)
        case TableFormat.DELTA:
            chosen["spark.sql.catalog.spark_catalog"] = (
                "org.apache.spark.sql.delta.catalog.DeltaCatalog"
            )
            extensions = _comma_list(DELTA_EXTENSIONS, extensions)
    chosen["spark.sql.extensions"] = extensions
    if {pipeline.key.format, pipeline.value.format} & {Format.AVRO, Format.AVRO_REGISTRY}:
        user |= avro_limits(user)
    whole = {**{key: text for key, text in chosen.items() if text}, **user}
    return whole | redaction(whole)


def redaction(chosen: Mapping[str, str]) -> dict[str, str]:
    """Return the option with the patterns of all secrets, if any, after the user's own pattern."""
    names = [re.escape(key) for key, text in chosen.items() if isinstance(text, Secret)]
    return {REDACTION: "|".join([chosen.get(REDACTION, SECRET_NAMES), *names])} if names else {}


def launch_configuration(chosen: Mapping[str, str]) -> dict[str, str]:
    """Return the configuration for starting the JVM, without secrets that can follow later."""
    return {
        key: text
        for key, text in chosen.items()
        if not isinstance(text, Secret) or key.startswith(AT_LAUNCH)
    }


def iceberg_catalog(pipeline: Pipeline) -> dict[str, str]:
    """Return the configuration of the Iceberg catalog."""
    catalog = pipeline.table.catalog
    prefix = f"spark.sql.catalog.{catalog.name}"
    # A stream writes in its own session, so a table cached by this session becomes stale.
    chosen = {
        prefix: "org.apache.iceberg.spark.SparkCatalog",
        f"{prefix}.cache-enabled": "false",
    }
    if catalog.type is CatalogType.GLUE:
        chosen[f"{prefix}.catalog-impl"] = "org.apache.iceberg.aws.glue.GlueCatalog"
    else:
        chosen[f"{prefix}.type"] = catalog.type.value
    if catalog.uri is not None:
        chosen[f"{prefix}.uri"] = catalog.uri
    if pipeline.table.warehouse is not None:
        chosen[f"{prefix}.warehouse"] = pipeline.table.warehouse
    return chosen | {f"{prefix}.{key}": text for key, text in catalog.options.items()}


def open_session(pipeline: Pipeline, *, connector: bool = True) -> SparkSession:
    """Open a session on the pipeline's master, Spark's own, or local[*].

    Without the ``connector`` it reads and writes no topics. Raises Refusal for options that Spark
    rejects, and Failure for problems that a rerun may cure.
    """
    chosen = {"spark.app.name": f"kwire-pipeline {pipeline.name}"}
    chosen |= configuration(pipeline, versions.installed_pyspark(), connector=connector)
    if pipeline.spark.master is not None:
        chosen["spark.master"] = pipeline.spark.master
    launch(SparkConf().setAll(list(launch_configuration(chosen).items())))
    try:
        with signals.keep_handlers():
            SparkContext.getOrCreate(SparkConf().setAll(list(chosen.items())))
        builder = SparkSession.builder
        for key, text in chosen.items():
            builder = builder.config(key, text)
        spark = builder.getOrCreate()
        spark.sparkContext.setLogLevel("ERROR")
        spark.conf.get("spark.sql.shuffle.partitions")  # Only now does Spark parse the SQL options.
    except (Py4JJavaError, PySparkException) as error:
        raise start_problem(error) from None
    set_warehouse(spark, pipeline)
    ship(spark, pipeline.transform)
    return spark


def set_warehouse(spark: SparkSession, pipeline: Pipeline) -> None:
    """Give the Hadoop catalog its warehouse as a full URL.

    A table stores the paths of its files as its catalog spells them. A relative path would mean a
    different folder on each executor of a cluster, and `remove_orphan_files` would not recognize
    the table's own files.
    """
    table = pipeline.table
    is_folder = table.catalog.type is CatalogType.HADOOP and table.warehouse is not None
    if table.format is TableFormat.ICEBERG and is_folder:
        key = f"spark.sql.catalog.{table.catalog.name}.warehouse"
        warehouse = spark.conf.get(key)
        assert warehouse is not None, "the session is configured with it"
        spark.conf.set(key, Folder(spark, warehouse).full_url())


def set_session(spark: SparkSession) -> None:
    """Set the options that affect results: a failing SQL expression is null, times are in UTC.

    If a name occurs twice in a JSON object, the last value is used, also in variants.

    A streaming query has no adaptive execution, so Spark's default of 200 partitions would create
    hundreds of tasks for each small batch, as would Delta's default of 50 for each read of its log.
    Delta's VACUUM lists files with 10,000 tasks by default, several times per table.
    """
    spark.conf.set("spark.sql.ansi.enabled", "false")
    spark.conf.set("spark.sql.session.timeZone", "UTC")
    spark.conf.set("spark.sql.variant.allowDuplicateKeys", "true")
    set_parallelism(spark)


def set_parallelism(spark: SparkSession) -> None:
    """Set the numbers of tasks that the user has not set to the number of cores.

    Executors of a cluster may join after the start, so each batch sets the numbers again. It does
    so in the session of its frame, because Spark's checkpoint would restore the numbers of the
    first batch.
    """
    context = spark.sparkContext
    cores = str(context.defaultParallelism)
    for key in PARTITIONS:
        if not context._conf.contains(key):  # `getConf` copies every option with two calls each.
            spark.conf.set(key, cores)


def _comma_list(*parts: str) -> str:
    return ",".join(part for part in parts if part)
