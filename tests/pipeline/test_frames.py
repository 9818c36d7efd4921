"""A record becomes a row or a dead letter with its reason; none is lost, none is guessed."""

import datetime
import json
from unittest.mock import MagicMock

import attrs
import pytest
from pyspark.sql import DataFrame, Row, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.types import LongType, StructField, StructType

from kwire_pipeline.config.values import Action, Column, Format, TimestampUnit
from kwire_pipeline.engine.schema import parse_ddl
from kwire_pipeline.engine.shape_and_tables import RAW_DDL
from kwire_pipeline.errors import Refusal
from kwire_pipeline.records import frames
from kwire_pipeline.records.changes import Changes
from kwire_pipeline.records.frames import Shape, classify, misfits, rows
from tests.support.pipeline.frames import plan, topic

DDL = (
    "id BIGINT NOT NULL, name STRING, amount DOUBLE, at TIMESTAMP, tags ARRAY<STRING>, "
    "buyer STRUCT<code: STRING NOT NULL, since: TIMESTAMP>, level TINYINT, levels ARRAY<TINYINT>, "
    "day DATE, days MAP<STRING, DATE>"
)
DAY = datetime.date(2026, 11, 1)


@pytest.fixture(scope="module")
def shape(spark: SparkSession) -> Shape:
    """The shape of most tests; Spark's JVM parses its schema."""
    return Shape(
        format=Format.JSON,
        schema=parse_ddl(DDL, "value.schema"),
        units={"at": TimestampUnit.MILLIS},
        columns={"key": Column.parse("key"), "city": Column.parse("headers.city")},
    )


@pytest.mark.parametrize(("text", "field"), [("value.Buyer", "buyer"), ("value.ID", "Id")])
def test_place_names_a_field_in_any_case(text: str, field: str) -> None:
    """The rules of the file accept it, as Spark does."""
    fields = MagicMock()
    fields.kind = StructType([StructField(name, LongType()) for name in ("Id", "buyer")])
    frames._at(Column.parse(text), fields, MagicMock())
    assert fields.field.call_args.args[1] == field
    with pytest.raises(Refusal, match=r"the value has no field buyers\.x"):
        frames._at(Column.parse("value.buyers.x"), fields, MagicMock())


GOOD = [
    b'{"id": 1, "name": "a", "amount": 1.5, "at": 1763719200000, "tags": ["x"]}',
    b' {"id": 2} ',
    b'{"id": 3, "unknown": true}',
    b'{"id": 4, "name": null, "amount": 2}',
    b'{"id": 99, "id": 5}',
    b'{"id": 6, "buyer": {"code": "c", "since": "2026-11-21T10:00:00+01:00"}, "level": -128, '
    b'"levels": [127], "day": "2026-11-01", "days": {"due": "2026-12-24T18:00:00Z"}}',
]
MISFITS = [
    (None, "the value is null"),
    (b"not json", "not JSON"),
    (b'{"id": 1', "not JSON"),
    (b"", "not JSON"),
    (b'{"id": 1, "name": "\xff"}', "not UTF-8"),
    (b"\xff\xfe", "not UTF-8"),
    (b"17", "not a JSON object"),
    (b'[{"id": 1}]', "not a JSON object"),
    (b"null", "not a JSON object"),
    (b'{"id": 1}{"id": 2}', "text after the JSON value"),
    (b'{"id": 1} garbage', "text after the JSON value"),
    (b'{"id": 1}}', "text after the JSON value"),
    (b'{"id": 1},{"id": 2}', "text after the JSON value"),
    (b'{"id": 1},{}', "text after the JSON value"),
    (b'{"id": 1},', "text after the JSON value"),
    (b'{"id": 1},"x":2', "text after the JSON value"),
    (b'{"id": 1},"id":{}', "text after the JSON value"),
    (b'{"id": 1}],"x":[{}', "text after the JSON value"),
    (b'{"id": 1}],"value":[{"id": 2}', "text after the JSON value"),
    (b'{"id": "seven"}', "id is not bigint"),
    (b'{"id": 7, "amount": "much"}', "amount is not double"),
    (b'{"id": 7, "at": "yesterday"}', "at is no timestamp in millis"),
    (b'{"id": 7, "at": 99999999999999999}', "at is no timestamp in millis"),
    # With millions of digits instead, Java would divide for hours.
    (b'{"id": 7, "at": "1e-1000"}', "at is no timestamp in millis"),
    (b'{"id": 7, "at": "0E-0001000"}', "at is no timestamp in millis"),
    (b'{"id": 7, "buyer": {"code": "c", "since": 1763719200}}', "buyer is no timestamp"),
    (b'{"id": 7, "buyer": {"code": "c", "since": "10:00:00-05:00"}}', "buyer is no timestamp"),
    (b'{"id": 7, "buyer": {"code": "c", "since": "T10:00:00-05:00"}}', "buyer is no timestamp"),
    (b'{"id": 7, "buyer": {}}', "buyer lacks a required field"),
    (b'{"id": 7, "level": 128}', "level is not tinyint"),
    (b'{"id": 7, "level": 40000}', "level is not tinyint"),
    (b'{"id": 7, "levels": [1, 255]}', "levels is not array<tinyint>"),
    (b'{"id": 7, "day": "20261101"}', "day is not date"),
    (b'{"id": 7, "day": "2026-02-30"}', "day is not date"),
    (b'{"id": 7, "days": {"due": "20261224"}}', "days is not map<string,date>"),
    (b'{"name": "none"}', "id is missing"),
    (b'{"id": null}', "id is missing"),
]


@pytest.fixture(scope="module")
def batch(spark: SparkSession, shape: Shape) -> DataFrame:
    """A batch with all of the records above, classified."""
    values = [*GOOD, *(value for value, _ in MISFITS)]
    return classify(topic(spark, list(values)), shape).persist()


@pytest.fixture(scope="module")
def table(batch: DataFrame, shape: Shape) -> list[Row]:
    return rows(batch, shape).collect()


@pytest.fixture(scope="module")
def letters(batch: DataFrame, shape: Shape) -> dict[int, Row]:
    return {row.offset: row for row in misfits(batch, shape).collect()}


def test_fitting_records_become_rows(table: list[Row]) -> None:
    assert [row.id for row in table] == [1, 2, 3, 4, 5, 6]
    assert (table[0].name, table[0].amount, table[0].tags) == ("a", 1.5, ["x"])
    assert (table[5].day, table[5].days) == (DAY, {"due": datetime.date(2026, 12, 24)})
    assert [row.kafka_offset for row in table] == list(range(len(GOOD)))


def test_timestamps_have_the_unit_of_their_field(batch: DataFrame, shape: Shape) -> None:
    """Milliseconds are no seconds: 1763719200000 is in 2025, not in the year 57,860."""
    text = rows(batch, shape).select(
        F.col("at").cast("string"), F.col("buyer.since").cast("string")
    )
    first, *_, last = text.collect()
    assert first[0] == "2025-11-21 10:00:00"
    assert last[1] == "2026-11-21 09:00:00"


def test_names_of_a_file_compare_without_regard_to_case(spark: SparkSession, shape: Shape) -> None:
    values: list[bytes | None] = [b'{"id": 1, "name": "a", "at": 1763719200000}']
    chosen = attrs.evolve(shape, units={"AT": TimestampUnit.MILLIS}, omit=("Name",))
    (row,) = rows(classify(topic(spark, values), chosen), chosen).collect()
    assert row.at.year == 2025
    assert "name" not in row


def test_tinyint_keeps_its_range_and_type(batch: DataFrame, shape: Shape) -> None:
    """Spark alone would make -128 of 128; the misfits above have the numbers out of range."""
    frame = rows(batch, shape).select("level", "levels")
    assert frame.schema.simpleString() == "struct<level:tinyint,levels:array<tinyint>>"
    assert tuple(frame.collect()[-1]) == (-128, [127])


def test_last_of_duplicate_keys_counts(table: list[Row]) -> None:
    assert table[4].id == 5


def test_rows_have_columns_of_key_and_headers(table: list[Row]) -> None:
    assert table[0].key == bytearray(b"\x00\xff")
    assert table[0].city == "Basel"


@pytest.mark.parametrize("number", range(len(MISFITS)))
def test_misfit_is_a_dead_letter_with_its_reason(letters: dict[int, Row], number: int) -> None:
    value, reason = MISFITS[number]
    letter = letters[len(GOOD) + number]
    assert letter.reason == reason
    assert letter.value == (None if value is None else bytearray(value))


def test_dead_letter_is_the_record_unchanged(letters: dict[int, Row]) -> None:
    letter = letters[len(GOOD)]
    assert letter.key == bytearray(b"\x00\xff")
    assert letter.headers == [
        Row(key="city", value=bytearray(b"Bern")),
        Row(key="city", value=bytearray(b"Basel")),
    ]
    assert (letter.topic, letter.partition, letter.timestamp_type) == ("t", 0, 1)
    assert len(letters) == len(MISFITS)


def test_a_record_is_parsed_once(
    spark: SparkSession, shape: Shape, tmp_path_factory: pytest.TempPathFactory
) -> None:
    folder = str(tmp_path_factory.mktemp("raw") / "raw")
    topic(spark, list(GOOD)).write.parquet(folder)
    batch = classify(spark.read.schema(RAW_DDL).parquet(folder), shape).persist()
    for frame in (rows(batch, shape), batch.groupBy(frames.CLASS).count()):
        assert plan(frame).count("from_json(") == 1
        assert plan(frame).count("FileScan") == 1
    batch.unpersist()


def test_number_with_a_huge_exponent_takes_no_time(spark: SparkSession) -> None:
    """Java would write out its digits for a DECIMAL, for hours."""
    shape = Shape(
        format=Format.JSON,
        schema=parse_ddl("n DECIMAL(10,2), s STRING", "value.schema"),
    )
    huge = [b"1e600000000", b"-1.5E-600000000", b'"1e600000000"', b'"1\\u0065600000000"']
    small = [b"1e2", b"0.5", b'"2e1"']
    values = [b'{"s": "sha256:4e1234 \\"a\\":1e12345", "n": %s}' % n for n in (*huge, *small)]
    batch = classify(topic(spark, list(values)), shape)
    assert [float(row.n) for row in rows(batch, shape).collect()] == [100, 0.5, 20]
    reasons = [row.reason for row in misfits(batch, shape).collect()]
    assert reasons == ["a number has too large an exponent"] * len(huge)


def test_header_in_a_column_is_text(spark: SparkSession, shape: Shape) -> None:
    """Readers of other languages stop at a column of texts with other bytes."""
    headers = [("city", bytearray(b"Bern")), ("city", bytearray(b"\xff"))]
    raw = topic(spark, [b'{"id": 1}', b"{"])
    kind = raw.schema["headers"].dataType
    broken = raw.drop("headers").join(spark.createDataFrame([(headers,)], ["headers"]))
    broken = broken.withColumn("headers", F.col("headers").cast(kind))
    batch = classify(broken.select(raw.columns), shape)
    assert rows(batch, shape).collect() == []
    assert [row.reason for row in misfits(batch, shape).collect()] == [
        "headers.city: not UTF-8",
        "not JSON; headers.city: not UTF-8",
    ]


def test_expectations_count_drop_or_refuse_rows(spark: SparkSession) -> None:
    shape = Shape(
        format=Format.JSON,
        schema=parse_ddl("id BIGINT, n INT", "value.schema"),
        expectations={
            "small": ("n < 10", Action.DROP),
            "positive": ("n > 0", Action.DEAD_LETTER),
            "even": ("n % 2 = 0", Action.WARN),
            "divides": ("10 / n > 0", Action.WARN),
        },
    )
    values = [
        b'{"id": 1, "n": 4}',
        b'{"id": 2, "n": 3}',
        b'{"id": 3, "n": 12}',
        b'{"id": 4, "n": 0}',
    ]
    batch = classify(topic(spark, [*values, b'{"id": 5}']), shape)
    assert [row.id for row in rows(batch, shape).collect()] == [1, 2]
    unmet = {row["kafka_offset"]: row[frames.UNMET] for row in batch.collect()}
    assert unmet == {
        0: [],
        1: ["even"],
        2: ["small"],
        3: ["positive", "divides"],
        4: ["small", "positive", "even", "divides"],
    }
    (zero, absent) = misfits(batch, shape).collect()
    assert zero.reason == "expectation not met: positive, divides"
    assert absent.value == bytearray(b'{"id": 5}')


def test_raw_bytes_and_text_have_one_column(spark: SparkSession) -> None:
    values = [b"plain", b"\xff", None]
    raw = Shape(format=Format.RAW)
    assert [r.value for r in rows(classify(topic(spark, list(values)), raw), raw).collect()] == [
        bytearray(b"plain"), bytearray(b"\xff"), None,
    ]  # fmt: skip
    text = Shape(format=Format.STRING)
    batch = classify(topic(spark, list(values)), text)
    assert [row.value for row in rows(batch, text).collect()] == ["plain", None]
    assert [row.reason for row in misfits(batch, text).collect()] == ["not UTF-8"]


@pytest.mark.parametrize(
    ("ddl", "prefix"), [("kafka_offset INT", "kafka_"), ("ID INT, id INT", "x_"), ("__a INT", "x_")]
)
def test_two_columns_of_one_name_are_refused(spark: SparkSession, ddl: str, prefix: str) -> None:
    shape = Shape(format=Format.JSON, schema=parse_ddl(ddl, "value.schema"), origin_prefix=prefix)
    with pytest.raises(Refusal, match="column"):
        shape.check()


def test_columns_are_derived_from_fields_and_places_and_may_replace_fields(
    spark: SparkSession,
) -> None:
    """The last value is no JSON; its letter has the record as it was."""
    shape = Shape(
        format=Format.JSON,
        schema=parse_ddl("email STRING, first STRING, last STRING, n STRING", "value.schema"),
        columns={
            "email": Column.parse("concat('***', right(email, 3))"),
            "name": Column.parse("concat_ws(' ', first, last)"),
            "town": Column.parse("headers.city"),
            "big": Column.parse("upper(town)"),
            "number": Column.parse("CAST(n AS INT) + kafka_offset"),
        },
        omit=("first", "last", "n"),
        expectations={"masked": ("email LIKE '***%'", Action.DEAD_LETTER)},
    )
    shape.check()
    values = [
        b'{"email": "ann@x.ch", "first": "Ann", "last": "Lee", "n": "5"}',
        b'{"email": "bob@x.de", "n": "many"}',
        b'{"email": "eve@x.fr"',
    ]
    batch = classify(topic(spark, [*values]), shape)
    names = ("email", "name", "town", "big", "number")
    assert shape.names[:5] == names
    assert [tuple(row[name] for name in names) for row in rows(batch, shape).collect()] == [
        ("***.ch", "Ann Lee", "Basel", "BASEL", 5), ("***.de", "", "Basel", "BASEL", None),
    ]  # fmt: skip
    (letter,) = misfits(batch, shape).collect()
    assert (bytes(letter.value), letter.reason) == (values[2], "not JSON")


def test_key_that_is_an_expression_may_not_be_null(spark: SparkSession) -> None:
    shape = Shape(
        format=Format.JSON,
        schema=parse_ddl("region STRING, n INT", "value.schema"),
        columns={"id": Column.parse("region || '-' || n")},
        changes=Changes(keys=("id",)),
    )
    batch = classify(topic(spark, [b'{"region": "a", "n": 1}', b'{"n": 2}']), shape)
    assert [row[frames.CLASS] for row in batch.collect()] == [frames.GOOD, frames.KEYLESS]


LOCAL_TIMES = {
    "2026-11-01T10:00:00": "2026-11-01T10:00:00",
    " 2026-11-1 10:00:00.25 ": "2026-11-01T10:00:00.250000",
    "2026-11-01": "2026-11-01T00:00:00",
    "2026": None,
    "202611": None,
    "20261101": None,
    "10:00:00": None,
    "2026-11-01T10:00:00Z": None,
    "2026-11-01T10:00:00+01:00": None,
    "2026-11-01 10:00:00 UTC": None,
    "2026-11-31": None,
}


def test_local_time_needs_a_date_and_has_no_zone(spark: SparkSession) -> None:
    """Spark reads bare digits as a year."""
    schema = parse_ddl("at TIMESTAMP_NTZ, more ARRAY<TIMESTAMP_NTZ>", "value.schema")
    shape = Shape(format=Format.JSON, schema=schema)
    values: list[bytes | None] = [
        json.dumps({"at": text, "more": [text]}).encode() for text in LOCAL_TIMES
    ]
    batch = classify(topic(spark, [*values, b'{"at": 2026}', b'{"at": null}']), shape)
    expected = {n: text for n, text in enumerate(LOCAL_TIMES.values()) if text is not None}
    table = {row.kafka_offset: row for row in rows(batch, shape).collect()}
    assert table.pop(len(values) + 1).at is None
    assert {n: row.at.isoformat() for n, row in table.items()} == expected
    assert all(row.more == [row.at] for row in table.values())
    reasons = {row.reason for row in misfits(batch, shape).collect()}
    assert reasons == {"at is no timestamp; more is no timestamp", "at is no timestamp"}
