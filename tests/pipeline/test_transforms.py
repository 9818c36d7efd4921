"""A record fits the declared shape or is a dead letter with its reason; none is lost."""

import datetime

import pytest
from pyspark.errors import ParseException
from pyspark.sql import DataFrame, SparkSession

from kwire_pipeline.settings import Partition
from kwire_pipeline.transforms import dead_letters, decode, rows, schema_of

DDL = "id BIGINT NOT NULL, name STRING, amount DOUBLE, at TIMESTAMP, tags ARRAY<STRING>"
WHEN = datetime.datetime(2026, 11, 21, 12, 0, tzinfo=datetime.UTC)

FITTING = [
    b'{"id": 1, "name": "a", "amount": 1.5, "at": "2026-11-21T10:00:00Z", "tags": ["x"]}',
    b'{"id": 2}',
    b'{"id": 3, "unknown": true}',  # more than declared is not wrong
    b'{"id": 4, "name": null}',
    b'{"id": 5, "amount": 2}',
]
MISFITS = [
    (b"not json", "not JSON"),
    (b'{"id": 1', "not JSON"),
    (b"", "not JSON"),
    (None, "the value is null"),
    (b'{"id": "seven"}', "id is not bigint"),
    (b'{"id": 7, "amount": "much"}', "amount is not double"),
    (b'{"id": 7, "at": "yesterday"}', "at is not timestamp"),
    (b'{"name": "none"}', "id is missing"),
    (b'{"id": null}', "id is missing"),
    (b"17", "not of the declared shape"),
    (b"\xff\xfe", "not JSON"),
]


def topic(spark: SparkSession, values: list[bytes | None]) -> DataFrame:
    """Records as Spark's Kafka source gives them."""
    data = [
        (b"k", None if v is None else bytearray(v), "t", 0, offset, WHEN)
        for offset, v in enumerate(values)
    ]
    shape = (
        "key BINARY, value BINARY, topic STRING, partition INT, offset BIGINT, timestamp TIMESTAMP"
    )
    return spark.createDataFrame(data, shape)


def test_fitting_records_become_rows(spark: SparkSession) -> None:
    schema = schema_of(DDL)
    decoded = decode(topic(spark, list(FITTING)), schema)
    table = rows(decoded, schema, [Partition(name="day", expression="to_date(at)")]).collect()
    assert [row.id for row in table] == [1, 2, 3, 4, 5]
    assert table[0].name == "a"
    assert table[0].tags == ["x"]
    assert table[0].day == datetime.date(2026, 11, 21)
    assert [row.kafka_offset for row in table] == [0, 1, 2, 3, 4]
    assert table[0].kafka_key == "k"
    assert dead_letters(decoded).count() == 0


@pytest.mark.parametrize(("value", "reason"), MISFITS)
def test_misfits_keep_their_bytes_and_get_a_reason(
    spark: SparkSession, value: bytes | None, reason: str
) -> None:
    schema = schema_of(DDL)
    decoded = decode(topic(spark, [value]), schema)
    assert rows(decoded, schema, []).count() == 0
    (letter,) = dead_letters(decoded).collect()
    assert letter.raw == (None if value is None else bytearray(value))
    assert letter.error == reason
    assert (letter.kafka_topic, letter.kafka_partition, letter.kafka_offset) == ("t", 0, 0)


def test_schema_without_columns_is_refused(spark: SparkSession) -> None:
    with pytest.raises(ParseException, match="not a list of columns"):
        schema_of("INT")
