"""The model of a pipeline's file: its keys, its values with a form of their own, its secrets."""

import datetime

import pytest

from kwire_pipeline.config.declare import Secret, keys, read_duration
from kwire_pipeline.config.model import Pipeline, Security, Source
from kwire_pipeline.config.secrets import redact, secrets_of
from kwire_pipeline.config.values import (
    Column,
    Partition,
    Root,
    Sort,
    Start,
    Transform,
    Trigger,
)
from tests.support.pipeline.orders import ORDERS


def test_defaults_lose_no_record() -> None:
    assert ORDERS.source.isolation.value == "read_committed"
    assert ORDERS.source.fail_on_data_loss
    assert ORDERS.source.start == Start()
    assert ORDERS.trigger.available_now


def test_every_key_has_a_path_a_meaning_and_a_default_that_reads() -> None:
    table = list(keys(Pipeline))
    assert len({key.name for key in table}) == len(table)
    for key in table:
        assert key.meaning.endswith("."), key.name
        if key.default not in (None, "{}", "[]"):
            key.read(key.default)
    assert {key.name for key in table if key.required} == {
        *("name", "source", "source.bootstrap", "table", "table.name", "checkpoint"),
        "expectations.NAME.check",
    }


@pytest.mark.parametrize(
    ("text", "column"),
    [
        ("value.customer.id", Column(Root.VALUE, ("customer", "id"))),
        ("key", Column(Root.KEY)),
        ("key.id", Column(Root.KEY, ("id",))),
        ("headers.trace.id", Column(Root.HEADERS, ("trace.id",))),
        ("offset", Column(Root.OFFSET)),
        ("timestamp_type", Column(Root.TIMESTAMP_TYPE)),
    ],
)
def test_places_of_columns(text: str, column: Column) -> None:
    assert Column.parse(text) == column


@pytest.mark.parametrize("text", ["customer.id", "value", "value.", "headers", "offset.x", ""])
def test_wrong_places_of_columns(text: str) -> None:
    with pytest.raises(ValueError, match=r"expected|no fields"):
        Column.parse(text)


@pytest.mark.parametrize(
    ("text", "partition"),
    [
        ("country", Partition("country")),
        ("days(ordered_at)", Partition("ordered_at", Transform.DAYS)),
        ("bucket(16, customer)", Partition("customer", Transform.BUCKET, 16)),
        ("truncate( 4 ,item )", Partition("item", Transform.TRUNCATE, 4)),
    ],
)
def test_partitions(text: str, partition: Partition) -> None:
    assert Partition.parse(text) == partition
    assert Partition.parse(str(partition)) == partition


@pytest.mark.parametrize(
    "text", ["day(x)", "days()", "bucket(x)", "days(3, x)", "to_date(a, b)", "a b", "bucket(0, x)"]
)
def test_wrong_partitions(text: str) -> None:
    with pytest.raises(ValueError, match="expected"):
        Partition.parse(text)


def test_sort_order() -> None:
    assert Sort.parse("ordered_at DESC") == Sort("ordered_at", descending=True)
    assert str(Sort.parse("item asc")) == "item"
    with pytest.raises(ValueError, match="expected a column"):
        Sort.parse("item down")


def test_starts() -> None:
    assert Start.parse("latest") == Start(at_end=True)
    assert Start.parse("1970-01-01T00:00:01Z") == Start(timestamp_ms=1000)
    assert Start.parse("1970-01-02") == Start(timestamp_ms=86_400_000)
    assert Start.parse({"orders": {"0": "7"}}) == Start(offsets={"orders": {0: 7}})
    for wrong in ("newest", {"orders": "7"}, {"orders": {"0": "x"}}, None):
        with pytest.raises(ValueError, match=r"expected|whole numbers"):
            Start.parse(wrong)


def test_triggers_and_durations() -> None:
    assert Trigger.parse("30 seconds").interval == datetime.timedelta(seconds=30)
    assert read_duration("7 days") == datetime.timedelta(days=7)
    for wrong in ("30", "soon", "3 fortnights", None):
        with pytest.raises(ValueError, match="30 seconds"):
            Trigger.parse(wrong)


def test_secrets_are_in_no_repr_and_in_no_text() -> None:
    security = Security(username="me", password="opensesame")
    options = {"kafka.ssl.key.password": Secret("shazam")}
    source = Source(bootstrap="b:1", security=security, options=options)
    assert "opensesame" not in repr(source)
    assert "shazam" not in repr(source)
    secrets = secrets_of(source)
    assert secrets == {"opensesame", "shazam"}
    assert redact("login with opensesame failed", secrets) == "login with *** failed"
