"""A dead letter is the same after its way through a topic."""

import datetime
from collections.abc import Sequence

from pyspark.sql import SparkSession
from pyspark.sql import functions as F
from pyspark.sql.types import Row

from kwire_pipeline.engine.offsets import Ranges
from kwire_pipeline.records.frames import LETTER
from kwire_pipeline.tables.letter_records import (
    HEADERS,
    KIND,
    LETTER_AT,
    LETTERS_IN,
    MARK,
    Owner,
    headers_of,
    letters_of,
    size_of,
)
from kwire_pipeline.tables.table import Mark

TIME = datetime.datetime(2026, 11, 23, 1, 2, 3, 456000, datetime.UTC)
MARKED = Mark("11", 3, Ranges.between({"t.1": {0: 5}}, {"t.1": {0: 9, 1: 4}}), letter_count=2)
LETTERS = [
    (b"key", None, [("kwire.topic", b"other"), ("h", None)], "t.1", 0, 5, TIME, 0, "null"),
    (None, b"\xff", None, "t.1", 1, 2, TIME, 1, 'not "JSON"; é'),
]


LAST = ("timestamp_type", "reason")


def as_bytes(field: object) -> object:
    return bytes(field) if isinstance(field, bytearray) else field


def records(spark: SparkSession, rows: Sequence[tuple[object, ...]]) -> list[Row]:
    letters = spark.createDataFrame(rows, LETTER)
    headers = headers_of(MARKED, Owner("orders", "shop.orders")).alias("headers")
    return letters.select("key", "value", headers).collect()


def test_letter_is_the_same_after_its_way_through_a_topic(spark: SparkSession) -> None:
    """Records of other writers are no letters, even if they lack headers or have such names."""
    rows = [(row.key, row.value, row.headers, TIME, 1, 7) for row in records(spark, LETTERS)]
    own = rows[0][2]
    others = [None, [], own[2:-1], own[:-1], [*own, own[0]], own[3:]]
    rows += [(b"k", b"v", headers, TIME, 1, 8) for headers in others]
    kind = f"key BINARY, value BINARY, headers {KIND}, timestamp TIMESTAMP"
    kind += ", partition INT, offset BIGINT"
    letters = letters_of(spark.createDataFrame(rows, kind))
    plain = letters.select(
        "key", "value", "topic", "partition", "offset", F.unix_millis("timestamp"), *LAST
    ).collect()
    assert [tuple(map(as_bytes, row)) for row in plain] == [
        (*row[:2], *row[3:6], 1_795_395_723_456, *row[7:]) for row in LETTERS
    ]
    headers = [row.headers for row in letters.select("headers").collect()]
    assert [(each.key, each.value) for each in headers[0]] == LETTERS[0][2]
    assert headers[1] is None
    places = [tuple(row) for row in letters.select(LETTERS_IN, LETTER_AT).collect()]
    assert places == [(1, 7)] * len(LETTERS)
    assert [tuple(row) for row in letters.select(*MARK).collect()] == [
        ("orders", "shop.orders", "11", "3", "2", '{"t.1":{"0":[5,9]}}'),
        ("orders", "shop.orders", "11", "3", "2", '{"t.1":{"1":[0,4]}}'),
    ]


def test_size_counts_key_value_and_headers(spark: SparkSession) -> None:
    large = (b"k" * 100, b"v" * 1000, [("h" * 10, b"x" * 50)], "t.1", 0, 5, TIME, 0, "r" * 30)
    (row,) = records(spark, [large])
    content = 1100 + sum(len(each.key) + len(each.value) for each in row.headers)
    frame = spark.createDataFrame([row], f"key BINARY, value BINARY, headers {KIND}")
    (size,) = frame.select(size_of().alias("size")).collect()[0]
    assert len(row.headers) == len(HEADERS) + 1
    assert content + 61 + 20 < size < content + 400
