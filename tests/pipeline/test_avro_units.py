"""A writer's logical types and the reader's: adapted, refused, or left alone."""

import json

import pytest

from kwire_pipeline.records.avro_units import reading_of

MILLIS = {"type": "long", "logicalType": "timestamp-millis"}
MICROS = {"type": "long", "logicalType": "timestamp-micros"}
LOCAL = {"type": "long", "logicalType": "local-timestamp-millis"}
NANOS = {"type": "long", "logicalType": "timestamp-nanos"}
DAY = {"type": "int", "logicalType": "date"}
CENTS = {"type": "bytes", "logicalType": "decimal", "precision": 10, "scale": 2}
FINE = {"type": "bytes", "logicalType": "decimal", "precision": 12, "scale": 4}
WHOLE = {"type": "bytes", "logicalType": "decimal", "precision": 10}


def record(kind: object, **more: object) -> dict[str, object]:
    return {"type": "record", "name": "Order", "fields": [{"name": "at", "type": kind}], **more}


@pytest.mark.parametrize(
    ("writer", "reader", "adapted"),
    [
        (MICROS, MILLIS, MICROS),
        (MILLIS, MICROS, MILLIS),
        (MICROS, LOCAL, {**LOCAL, "logicalType": "local-timestamp-micros"}),
        (["null", MICROS], ["null", MILLIS], ["null", MICROS]),
        (MICROS, ["null", MILLIS], ["null", MICROS]),
        (["string", MICROS, "null"], MILLIS, MICROS),
        ({"type": "array", "items": MICROS}, {"type": "array", "items": MILLIS}, None),
        ({"type": "map", "values": ["null", MICROS]}, {"type": "map", "values": MILLIS}, None),
        ({"type": MICROS}, {"type": MILLIS}, None),
    ],
)
def test_times_are_read_in_the_unit_of_their_writer(
    writer: object, reader: object, adapted: object
) -> None:
    """Both are TIMESTAMP in Spark; Avro alone would take one for the other."""
    reading = reading_of(json.dumps(record(writer)), json.dumps(record(reader)))
    text = json.dumps(record(reader)).replace("timestamp-millis", "timestamp-micros")
    assert json.loads(reading.reader) == (json.loads(text) if adapted is None else record(adapted))
    assert reading.problems == ()


@pytest.mark.parametrize(
    ("writer", "reader", "problem"),
    [
        (FINE, CENTS, "at is decimal(12,4), and decimal(10,2) in the file's schema"),
        (CENTS, WHOLE, "at is decimal(10,2), and decimal(10,0) in the file's schema"),
        (DAY, MILLIS, "at is date, and timestamp-millis in the file's schema"),
        (NANOS, MICROS, "at is timestamp-nanos, and timestamp-micros in the file's schema"),
        (["null", FINE], ["null", CENTS], "at is decimal(12,4), and decimal(10,2) in the"),
    ],
)
def test_numbers_that_mean_something_else_are_not_read(
    writer: object, reader: object, problem: str
) -> None:
    (text,) = reading_of(json.dumps(record(writer)), json.dumps(record(reader))).problems
    assert text.startswith(problem)


@pytest.mark.parametrize(
    ("writer", "reader"),
    [
        (CENTS, {**CENTS, "precision": 20}),
        ("long", MILLIS),
        (MILLIS, "long"),
        ({"type": "string", "logicalType": "uuid"}, "string"),
        ({"type": "long", "logicalType": "mine"}, MILLIS),
        (["null", "string"], MILLIS),
        ({"type": "record", "name": "Part", "fields": []}, MILLIS),
        ("Other", MILLIS),
    ],
)
def test_other_types_are_left_to_avro(writer: object, reader: object) -> None:
    text = json.dumps(record(reader))
    reading = reading_of(json.dumps(record(writer)), text)
    assert (reading.reader, reading.problems) == (text, ())


def test_types_are_found_by_name_and_fields_by_alias() -> None:
    """The second part of a Debezium envelope names the type of the first."""
    row = {"type": "record", "name": "shop.Row", "fields": [{"name": "old", "type": MICROS}]}
    fields = [{"name": "before", "type": ["null", row]}, {"name": "after", "type": "shop.Row"}]
    writer = {"type": "record", "name": "Envelope", "namespace": "shop", "fields": fields}
    own = {"type": "record", "name": "Own", "fields": [
        {"name": "new", "aliases": ["old"], "type": MILLIS}, {"name": "more", "type": "int"},
    ]}  # fmt: skip
    reader = {"type": "record", "name": "E", "fields": [{"name": "after", "type": ["null", own]}]}
    reading = reading_of(json.dumps(writer), json.dumps(reader))
    assert '"logicalType": "timestamp-micros"' in reading.reader
    assert "timestamp-millis" not in reading.reader
