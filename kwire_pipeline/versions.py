"""The versions of Spark's parts that fit together: one table, checked by the pipeline's tests.

Rules of this file: the connector has the version of the installed pyspark. A user's packages are
added to the pipeline's and do not replace any. A mismatch is a Refusal before Spark starts, because
Spark would only fail later with a missing class. Nothing here starts a process or uses the network.
"""

import importlib.metadata
import re
from collections.abc import Iterator, Mapping
from pathlib import PurePath
from typing import Final

import attrs

from kwire_pipeline.config.model import Pipeline
from kwire_pipeline.config.values import Format, TableFormat
from kwire_pipeline.errors import Refusal

SCALA: Final = "2.13"
PIN: Final = "4.0.0"
"""The version that the extra `pipeline` installs."""


@attrs.frozen(kw_only=True)
class Release:
    """The parts that a minor version of Spark needs. All packages are for Scala 2.13."""

    java: tuple[int, int]
    """The first and the last Java version that this Spark version runs on."""
    iceberg: str | None
    """None if there is no runtime for it."""
    delta: str
    kafka_clients: str
    commons_pool: str
    delta_storage: str = "4.4.0"


RELEASES: Final[Mapping[str, Release]] = {
    "4.0": Release(
        java=(17, 22),
        iceberg="org.apache.iceberg:iceberg-spark-runtime-4.0_2.13:1.11.0",
        delta="io.delta:delta-spark_4.0_2.13:4.4.0",
        kafka_clients="3.9.0",
        commons_pool="2.12.0",
    ),
    "4.1": Release(
        java=(17, 22),
        iceberg="org.apache.iceberg:iceberg-spark-runtime-4.1_2.13:1.12.0",
        delta="io.delta:delta-spark_4.1_2.13:4.4.0",
        kafka_clients="3.9.2",
        commons_pool="2.13.1",
    ),
    "4.2": Release(
        java=(17, 25),
        iceberg=None,
        delta="io.delta:delta-spark_4.2_2.13:4.4.0",
        kafka_clients="3.9.2",
        commons_pool="2.13.1",
    ),
}
"""By Spark version. Java 23 and later lack a method that Hadoop calls in Spark 4.0 and 4.1."""
CHECKED: Final = ("4.0.0", "4.1.3", "4.2.0")
"""The versions with which pipelines have been run."""
TOKEN_PROVIDERS: Final[Mapping[str, str]] = {"4.1.3": "4.0.0", "4.2.0": "4.0.0"}
"""Versions whose token provider was missing in Maven when checked, each with one that works."""

WITHOUT_AVRO: Final = ("4.1.3", "4.2.0")
"""Versions whose spark-avro was missing in Maven when checked."""


def installed_pyspark() -> str:
    """Return the version of the installed pyspark; raise Refusal if it is not installed."""
    try:
        return importlib.metadata.version("pyspark")
    except importlib.metadata.PackageNotFoundError:
        raise Refusal(f"pyspark is not installed: pip install pyspark=={PIN}") from None


def release_of(pyspark: str) -> Release:
    """Return the release for a version of pyspark; raise Refusal if it is not supported."""
    minor = ".".join(pyspark.split(".")[:2])
    if minor not in RELEASES:
        raise Refusal(
            f"pyspark {pyspark} is not supported (4.0, 4.1 and 4.2 are): pip install pyspark=={PIN}"
        )
    return RELEASES[minor]


def packages(pyspark: str, pipeline: Pipeline, *, connector: bool = True) -> tuple[str, ...]:
    """Return the Maven coordinates for a session: the pipeline's, then the user's.

    If jars are configured, they contain the pipeline's packages, so only the user's are returned.
    Only a session that reads and writes topics needs the ``connector``.
    """
    check_packages(pyspark, pipeline)
    own = () if pipeline.spark.jars else own_packages(pyspark, pipeline)
    if not connector:
        own = tuple(name for name in own if name != kafka_source(pyspark))
    return tuple(dict.fromkeys((*own, *pipeline.spark.packages)))


def own_packages(pyspark: str, pipeline: Pipeline) -> tuple[str, ...]:
    """Return the Maven coordinates that the pipeline itself needs; the connector comes first."""
    chosen = [kafka_source(pyspark)]
    if pipeline.table.format is not TableFormat.PARQUET:
        chosen.append(table_package(pyspark, pipeline.table.format))
    formats = {pipeline.key.format, pipeline.value.format}
    if formats & {Format.AVRO, Format.AVRO_REGISTRY}:
        chosen.append(spark_avro(pyspark))
    return tuple(chosen)


def kafka_source(pyspark: str) -> str:
    """Return the Maven coordinates of Spark's Kafka source and sink."""
    release_of(pyspark)
    return f"org.apache.spark:spark-sql-kafka-0-10_{SCALA}:{pyspark}"


def spark_avro(pyspark: str) -> str:
    """Return the Maven coordinates of Spark's Avro; raise Refusal if Maven lacks it."""
    if pyspark in WITHOUT_AVRO:
        raise Refusal(
            f"Maven has no spark-avro for pyspark {pyspark}: pip install pyspark=={PIN}, or give "
            "its jar with spark.jars"
        )
    return f"org.apache.spark:spark-avro_{SCALA}:{pyspark}"


def table_package(pyspark: str, table_format: TableFormat) -> str:
    """Return the Maven coordinates of a table format; raise Refusal if Spark has none."""
    release = release_of(pyspark)
    if table_format is TableFormat.DELTA:
        return release.delta
    if release.iceberg is None:
        raise Refusal(
            f"Iceberg has no runtime for pyspark {pyspark}: pip install 'pyspark<4.2', or set "
            "table.format to delta"
        )
    return release.iceberg


def jars(pyspark: str, pipeline: Pipeline) -> tuple[str, ...]:
    """Return the Maven coordinates of every jar that a session needs besides Spark's own.

    The list is complete: none of the jars needs another that Spark lacks. The user's packages come
    last, without their dependencies.
    """
    release = release_of(pyspark)
    check_packages(pyspark, pipeline)
    provider = TOKEN_PROVIDERS.get(pyspark, pyspark)
    complete = [
        *own_packages(pyspark, pipeline),
        f"org.apache.spark:spark-token-provider-kafka-0-10_{SCALA}:{provider}",
        f"org.apache.kafka:kafka-clients:{release.kafka_clients}",
        f"org.apache.commons:commons-pool2:{release.commons_pool}",
    ]
    if pipeline.table.format is TableFormat.DELTA:
        complete.append(f"io.delta:delta-storage:{release.delta_storage}")
    return tuple(dict.fromkeys((*complete, *pipeline.spark.packages)))


# Mismatches --------------------------------------------------------------------------------------
OWN_MODULE: Final = re.compile(
    r"(spark-(?:sql-kafka-0-10|token-provider-kafka-0-10|avro|protobuf))_(2\.\d+)[-:](\d[\w.]*?)"
    r"(?:\.jar)?"
)


def check_packages(pyspark: str, pipeline: Pipeline) -> None:
    """Raise Refusal if a user's package or jar is made for another version of Spark."""
    for problem in mismatches(pyspark, pipeline):
        raise Refusal(problem)


def mismatches(pyspark: str, pipeline: Pipeline) -> Iterator[str]:
    """Yield a sentence for each package or jar of the user that does not fit this pyspark."""
    minor = ".".join(pyspark.split(".")[:2])
    for package in pipeline.spark.packages:
        if package.count(":") != 2:
            yield f"spark.packages: {package!r} is not GROUP:ARTIFACT:VERSION"
            continue
        yield from _mismatch("spark.packages", package.partition(":")[2], pyspark)
        if (
            runtime := re.search(r"(?:iceberg-spark-runtime-|delta-spark_)(\d\.\d)_", package)
        ) and (runtime[1] != minor):
            yield f"spark.packages: {package} is for Spark {runtime[1]}, and pyspark is {pyspark}"
    for jar in pipeline.spark.jars:
        yield from _mismatch("spark.jars", PurePath(jar).name, pyspark)


def _mismatch(key: str, name: str, pyspark: str) -> Iterator[str]:
    match = OWN_MODULE.fullmatch(name.replace("org.apache.spark_", ""))
    if match is None:
        return
    module, scala, version = match.groups()
    if scala != SCALA:
        yield f"{key}: {name} is for Scala {scala}, and pyspark {pyspark} has {SCALA}"
    elif version != pyspark and module != "spark-token-provider-kafka-0-10":
        yield f"{key}: {name} does not fit the installed pyspark {pyspark}"
