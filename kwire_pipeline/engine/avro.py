"""Avro in a session: the types that Spark gives a schema, and limits for damaged data.

A damaged record may claim that a text of two gigabytes follows. Avro would allocate that memory and
crash the JVM in every run. The lengths that Avro accepts are therefore limited, and a record that
exceeds them does not fit.
"""

from collections.abc import Mapping
from typing import Final

from py4j.protocol import Py4JError
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession
from pyspark.sql import functions as F
from pyspark.sql.types import DataType, NullType

from kwire_pipeline.config.declare import Secret
from kwire_pipeline.engine.storage import jvm_of
from kwire_pipeline.errors import Refusal
from kwire_pipeline.explain import sentence
from kwire_pipeline.records import avro
from kwire_pipeline.records.avro import AvroFields

LIMITS: Final = {
    "org.apache.avro.limits.bytes.maxLength": 64 << 20,
    "org.apache.avro.limits.string.maxLength": 64 << 20,
    "org.apache.avro.limits.collectionItems.maxLength": 4 << 20,
}
"""JVM properties for the longest bytes and strings, and the most items in an array or map."""
JAVA_OPTIONS: Final = ("spark.driver.extraJavaOptions", "spark.executor.extraJavaOptions")


def avro_limits(conf: Mapping[str, str]) -> dict[str, str]:
    """Return the options for starting JVMs; those from the configuration come last."""
    limits = " ".join(f"-D{name}={limit}" for name, limit in LIMITS.items())
    options = {key: f"{limits} {conf.get(key, '')}".strip() for key in JAVA_OPTIONS}
    return {
        key: Secret(text) if isinstance(conf.get(key), Secret) else text
        for key, text in options.items()
    }


def limit_driver(spark: SparkSession) -> None:
    """Set the limits in a driver that spark-submit has started, unless it has its own limits."""
    system = jvm_of(spark).java.lang.System
    for name, limit in LIMITS.items():
        if system.getProperty(name) is None:
            system.setProperty(name, str(limit))


def avro_fields(schema: str, key: str, *, is_plain: bool = True) -> AvroFields:
    """Return the decoding of a schema from the file; raise Refusal if Spark cannot read it."""
    spark = SparkSession.active()
    limit_driver(spark)
    trial = AvroFields(kind=NullType(), reader=schema)
    try:
        envelope = trial.parse(F.lit(None).cast("binary")).alias("envelope")
        kind: DataType = spark.range(0).select(envelope.getField(avro.VALUE)).schema[0].dataType
    except (PySparkException, Py4JError, ValueError) as error:
        raise Refusal(f"{key}: Spark does not accept this schema: {sentence(str(error))}") from None
    return AvroFields(kind=kind, reader=schema, writers=None if is_plain else {})
