"""Fields of JSON keys are columns; a key that does not fit makes its record a dead letter."""

import datetime

import pytest
from pyspark.sql import SparkSession

from kwire_pipeline.config.values import Column, Format, TimestampUnit
from kwire_pipeline.engine.schema import parse_ddl
from kwire_pipeline.engine.session import set_session
from kwire_pipeline.errors import Refusal
from kwire_pipeline.records.frames import Shape, classify, misfits, rows
from tests.support.pipeline.frames import key_frame


def json_keys(ddl: str, *, columns: dict[str, str]) -> Shape:
    return Shape(
        format=Format.STRING,
        key_format=Format.JSON,
        key_schema=parse_ddl(ddl, "key.schema"),
        key_units={"at": TimestampUnit.MILLIS},
        columns={name: Column.parse(place) for name, place in columns.items()},
    )


def test_fields_of_keys_are_columns(spark: SparkSession) -> None:
    set_session(spark)
    shape = json_keys(
        "id BIGINT, at TIMESTAMP, place STRUCT<city: STRING>",
        columns={"customer": "key.id", "since": "key.at", "city": "key.place.city", "whole": "key"},
    )
    keys = [b'{"id": 1, "at": 1763719200000, "place": {"city": "Bern"}}', None, b"{}"]
    first, second, third = rows(classify(key_frame(spark, keys), shape), shape).collect()
    when = datetime.datetime(2025, 11, 21, 10, tzinfo=datetime.UTC)
    assert (first.customer, first.city) == (1, "Bern")
    assert first.since.timestamp() == when.timestamp() == first.whole.at.timestamp()
    assert (second.customer, second.whole, third.customer) == (None, None, None)


def test_keys_that_do_not_fit_are_dead_letters(spark: SparkSession) -> None:
    shape = json_keys("id BIGINT NOT NULL", columns={"id": "key.id"})
    batch = classify(key_frame(spark, [b'{"id": 1}', b'{"id": "x"}', b"{}", b"\xff", None]), shape)
    assert [row.id for row in rows(batch, shape).collect()] == [1]
    assert [row.reason for row in misfits(batch, shape).orderBy("offset").collect()] == [
        "key: id is not bigint",
        "key: id is missing",
        "key: not UTF-8",
        "key: null",
    ]


def test_a_place_that_the_key_lacks_is_refused(spark: SparkSession) -> None:
    shape = json_keys("id BIGINT", columns={"id": "key.no"})
    with pytest.raises(Refusal, match="the key has no field no"):
        classify(key_frame(spark, []), shape)
