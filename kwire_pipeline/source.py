"""The source of the job: the options of Spark's Kafka source, and the stream itself."""

from pyspark.sql import DataFrame, SparkSession

from kwire_pipeline.settings import SOURCE_DEFAULTS, Settings


def options(settings: Settings) -> dict[str, str]:
    """Return the source's options: the user's, over the job's defaults."""
    chosen = {**SOURCE_DEFAULTS, "kafka.bootstrap.servers": settings.bootstrap_servers}
    if not {"subscribe", "subscribePattern", "assign"} & settings.source_options.keys():
        chosen["subscribe"] = settings.topic
    return {**chosen, **settings.source_options}


def stream(spark: SparkSession, settings: Settings) -> DataFrame:
    """Return the topic as an unbounded frame: key, value, topic, partition, offset, timestamp."""
    return spark.readStream.format("kafka").options(**options(settings)).load()
