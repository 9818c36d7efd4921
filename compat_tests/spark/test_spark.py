"""Spark's built-in Kafka source and sink: exact counts and checksums, restarts in between."""

import json
import time
import uuid
from collections.abc import Callable
from pathlib import Path

import pytest
from kafka import KafkaAdminClient, KafkaProducer, TopicPartition
from kafka.admin import NewTopic
from pyspark.errors.exceptions.captured import StreamingQueryException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from compat_tests.harness.broker import Broker

MILLION = 1_000_000
BASE_MS = int(time.time() * 1000) - 3_600_000


def create(broker: Broker, topic: str, partitions: int = 3) -> None:
    admin = KafkaAdminClient(bootstrap_servers=broker.address)
    admin.create_topics([NewTopic(topic, partitions, 1)])
    admin.close()


def numbers(spark: SparkSession, start: int, end: int) -> DataFrame:
    """Return records whose value contains their number."""
    return spark.range(start, end, numPartitions=2).select(
        F.col("id").cast("string").alias("key"),
        F.concat(F.lit("record "), F.col("id").cast("string")).alias("value"),
    )


def write(frame: DataFrame, broker: Broker, topic: str) -> None:
    sink = frame.write.format("kafka").option("kafka.bootstrap.servers", broker.address)
    sink.option("topic", topic).save()


def read(spark: SparkSession, broker: Broker, **options: str) -> DataFrame:
    source = spark.read.format("kafka").option("kafka.bootstrap.servers", broker.address)
    return source.options(**options).load()


def digest(frame: DataFrame) -> tuple[int, int, int]:
    """Return the count, the distinct keys, and a checksum that does not depend on order."""
    row = frame.select(
        F.count("*").alias("n"),
        F.countDistinct("key").alias("keys"),
        F.sum(F.crc32(F.col("value"))).alias("sum"),
    ).first()
    assert row is not None
    return row.n, row.keys, row.sum


@pytest.mark.long
def test_a_million_records_through_query_and_broker_restarts(
    spark: SparkSession, own_broker: Broker, topic: str, tmp_path: Path
) -> None:
    """Records are read once by a batch and by a stopped stream, despite a broker kill."""
    expected = digest(numbers(spark, 0, MILLION))
    create(own_broker, topic)
    write(numbers(spark, 0, MILLION // 2), own_broker, topic)
    stream(spark, own_broker, topic, tmp_path, batches=1)
    own_broker.kill()
    own_broker.restart()
    write(numbers(spark, MILLION // 2, MILLION), own_broker, topic)
    assert digest(read(spark, own_broker, subscribe=topic)) == expected
    stream(spark, own_broker, topic, tmp_path, batches=None)
    table = spark.read.parquet(str(tmp_path / "table"))
    assert digest(table) == expected
    gaps = table.groupBy("partition").agg(
        (F.max("offset") - F.min("offset") + 1 - F.count("*")).alias("gaps")
    )
    assert {row.gaps for row in gaps.collect()} == {0}


def stream(
    spark: SparkSession, broker: Broker, topic: str, folder: Path, batches: int | None
) -> None:
    """Read the topic into a table to its end, or for some batches and then stop."""
    source = (
        spark.readStream.format("kafka")
        .option("kafka.bootstrap.servers", broker.address)
        .option("subscribe", topic)
        .option("startingOffsets", "earliest")
        .option("maxOffsetsPerTrigger", "200000")
        .load()
    )
    query = (
        source.select(
            F.col("key").cast("string"), F.col("value").cast("string"), "partition", "offset"
        )
        .writeStream.format("parquet")
        .option("path", str(folder / "table"))
        .option("checkpointLocation", str(folder / "checkpoint"))
        .trigger(availableNow=True)
        .start()
    )
    if batches is None:
        query.awaitTermination()
        return
    while query.isActive and len(query.recentProgress) < batches:
        query.awaitTermination(1)
    query.stop()


@pytest.fixture(scope="module")
def filled_topic(spark: SparkSession, broker: Broker) -> str:
    """A topic of 3 partitions with a thousand records in each."""
    topic = f"spark-filled-{uuid.uuid4()}"
    create(broker, topic)
    producer = KafkaProducer(bootstrap_servers=broker.address)
    sent = [
        producer.send(
            topic,
            key=str(number).encode(),
            value=b"record %d" % number,
            partition=number % 3,
            headers=[("number", str(number).encode())],
            timestamp_ms=BASE_MS + number,
        )
        for number in range(3000)
    ]
    for future in sent:
        future.get(60)
    producer.close()
    return topic


def test_offsets_given_as_json(spark: SparkSession, broker: Broker, filled_topic: str) -> None:
    frame = read(
        spark,
        broker,
        subscribe=filled_topic,
        startingOffsets=json.dumps({filled_topic: {"0": 10, "1": -2, "2": 990}}),
        endingOffsets=json.dumps({filled_topic: {"0": 20, "1": 5, "2": -1}}),
    )
    counts = {
        (row.partition, row.n)
        for row in frame.groupBy("partition").agg(F.count("*").alias("n")).collect()
    }
    assert counts == {(0, 10), (1, 5), (2, 10)}


def test_offsets_given_as_timestamps(
    spark: SparkSession, broker: Broker, filled_topic: str
) -> None:
    frame = read(
        spark,
        broker,
        subscribe=filled_topic,
        startingTimestamp=str(BASE_MS + 300),
        endingTimestamp=str(BASE_MS + 600),
    )
    keys = sorted(int(row.key) for row in frame.select(F.col("key").cast("string")).collect())
    assert keys == list(range(300, 600))


def test_headers_both_ways(
    spark: SparkSession, broker: Broker, filled_topic: str, topic: str
) -> None:
    source = read(spark, broker, subscribe=filled_topic, includeHeaders="true")
    write(source.select("key", "value", "headers"), broker, topic)
    copied = read(spark, broker, subscribe=topic, includeHeaders="true")
    rows = copied.select(F.col("key").cast("string"), "headers").collect()
    assert len(rows) == 3000
    assert all(row.headers[0].key == "number" for row in rows)
    assert all(bytes(row.headers[0].value).decode() == row.key for row in rows)


def test_ways_to_choose_partitions(spark: SparkSession, broker: Broker, filled_topic: str) -> None:
    assert read(spark, broker, subscribePattern=f"{filled_topic}|no-such-.*").count() == 3000
    assert read(spark, broker, assign=json.dumps({filled_topic: [0, 2]})).count() == 2000
    many = read(spark, broker, subscribe=filled_topic, minPartitions="12")
    assert many.rdd.getNumPartitions() >= 12
    assert many.count() == 3000


def test_lost_data_is_noticed(
    spark: SparkSession, broker: Broker, topic: str, tmp_path: Path
) -> None:
    """A stream whose next offsets were deleted fails with the default options."""
    create(broker, topic, 1)
    write(numbers(spark, 0, 1000), broker, topic)
    stream(spark, broker, topic, tmp_path, batches=None)
    write(numbers(spark, 1000, 2000), broker, topic)
    admin = KafkaAdminClient(bootstrap_servers=broker.address)
    admin.delete_records({TopicPartition(topic, 0): 1500})
    admin.close()
    with pytest.raises(StreamingQueryException):
        stream(spark, broker, topic, tmp_path, batches=None)


def test_kafka_to_kafka_with_foreach_batch(
    spark: SparkSession,
    broker: Broker,
    filled_topic: str,
    unique: Callable[[str], str],
    tmp_path: Path,
) -> None:
    target = unique("target")
    create(broker, target)

    def copy(batch: DataFrame, number: int) -> None:
        del number
        write(
            batch.select("key", F.upper(F.col("value").cast("string")).alias("value")),
            broker,
            target,
        )

    source = spark.readStream.format("kafka").options(
        **{
            "kafka.bootstrap.servers": broker.address,
            "subscribe": filled_topic,
            "startingOffsets": "earliest",
        }
    )
    query = (
        source.load()
        .writeStream.foreachBatch(copy)
        .option("checkpointLocation", str(tmp_path / "checkpoint"))
        .trigger(availableNow=True)
        .start()
    )
    query.awaitTermination()
    values = read(spark, broker, subscribe=target).select(F.col("value").cast("string")).collect()
    assert sorted(row.value for row in values) == sorted(f"RECORD {n}" for n in range(3000))
