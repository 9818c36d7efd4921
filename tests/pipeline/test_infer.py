"""The schema that `init` infers from records, and the file that it makes of it."""

import json
from collections.abc import Sequence
from pathlib import Path

import pytest

from examples.orders.events import orders
from kwire_pipeline import cli
from kwire_pipeline.config.ddl import find_field, parse_ddl
from kwire_pipeline.config.load import load
from kwire_pipeline.config.model import Source
from kwire_pipeline.errors import Failure
from kwire_pipeline.infer import infer_ddl


def of(*values: object) -> str | None:
    return infer_ddl(json.dumps(value).encode() for value in values)


@pytest.mark.parametrize(
    ("values", "ddl"),
    [
        ([{"a": 1, "b": "x", "c": True, "d": 1.5}], "a BIGINT, b STRING, c BOOLEAN, d DOUBLE"),
        ([{"a": 1}, {"a": 2.5}, {"b": None}], "a DOUBLE, b STRING"),
        ([{"a": 1}, {"a": "x"}], "a STRING"),
        ([{"a": None}, {"a": 3}], "a BIGINT"),
        ([{"at": "2026-11-22T10:00:00Z"}, {"at": "2026-11-22 10:00"}], "at TIMESTAMP"),
        ([{"at": "2026-11-22T10:00:00Z"}, {"at": "soon"}], "at STRING"),
        ([{"at": "2026-13-45T10:00:00Z"}], "at STRING"),
        ([{"a": [1, 2.5, None]}, {"a": []}], "a ARRAY<DOUBLE>"),
        ([{"a": {"b": 1}}, {"a": {"c": [{"d": "x"}]}}],
         "a STRUCT<b: BIGINT, c: ARRAY<STRUCT<d: STRING>>>"),
        ([{"a": {"b": 1}}, {"a": 5}], "a STRING"),
        ([{"a": {}}], "a STRING"),
        ([{"order id": 1}], "`order id` BIGINT"),
        ([{"Id": 1}, {"id": 2}], "Id BIGINT"),
        ([{"a": 1 << 70}], "a DOUBLE"),
        ([[1], 5, "x", None], None),
    ],
)  # fmt: skip
def test_types_of_fields(values: Sequence[object], ddl: str | None) -> None:
    assert of(*values) == ddl
    if ddl is not None:
        parse_ddl(ddl)


def test_a_type_that_is_rare_is_taken_for_damage() -> None:
    rare = [{"quantity": n} for n in range(40)] + [{"quantity": "a few"}]
    assert of(*rare) == "quantity BIGINT"
    assert of(*rare[:10], rare[-1]) == "quantity STRING"


def test_damaged_records_are_left_out() -> None:
    assert infer_ddl([None, b"", b"\xff", b'{"a": 1', b'{"a": 1}{"b": 2}', b'{"c": 1}']) == (
        "c BIGINT"
    )
    assert infer_ddl([b"[" * 100_000, b'{"c": 1}']) == "c BIGINT"


def orders_sample(_source: Source, count: int) -> list[bytes | None]:
    generated = orders(count, seed=1, damaged=0.1, late=0, start_ms=0, hours=2)
    return [event.value for event in generated]


def test_init_pins_the_schema_of_the_newest_records(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("kwire_pipeline.commands.init.sample", orders_sample)
    assert cli.main(["init", "orders.yaml"]) == 0
    assert "value.schema is that of 1000 records: correct its types" in capsys.readouterr().out
    fields = parse_ddl(load("orders.yaml", [], {}).value.schema or "")
    names = ("order_id", "quantity", "ordered_at")
    types = [field.type.name for name in names if (field := find_field(fields, [name]))]
    assert types == ["STRING", "BIGINT", "TIMESTAMP"]


def test_init_without_a_broker_says_that_the_schema_is_missing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def fail(_source: Source, _count: int) -> list[bytes | None]:
        raise Failure("no broker can be reached")

    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("kwire_pipeline.commands.init.sample", fail)
    assert cli.main(["init", "orders.yaml"]) == 0
    assert "add value.schema, which was not inferred: no broker can be reached" in (
        capsys.readouterr().out
    )
    assert cli.main(["check", "orders.yaml"]) == 2
    assert "value.schema: json needs a schema" in capsys.readouterr().out
