"""`kwire-pipeline test`: samples of records, and the rows and dead letters that they become."""

import json
import sys
from decimal import Decimal
from pathlib import Path
from typing import Any

import attrs
import pytest
from pyspark.sql import SparkSession

from kwire_pipeline import cli
from kwire_pipeline.commands import test as command
from kwire_pipeline.config.load import load
from kwire_pipeline.config.model import Pipeline
from kwire_pipeline.engine.session import set_session
from kwire_pipeline.engine.trial import Trial
from kwire_pipeline.errors import Refusal
from kwire_pipeline.samples import Results, differences, fill_in, find_samples, read_sample

SCHEMA = (
    "id STRING NOT NULL, price DECIMAL(10,2), at TIMESTAMP, tags ARRAY<STRING>, "
    "more STRUCT<n: INT, at: TIMESTAMP>"
)
FILE = f"""
name: orders
source: {{bootstrap: "127.0.0.1:1", topics: [orders]}}
value: {{format: json, schema: "{SCHEMA}"}}
table: {{format: delta, warehouse: lake, name: shop.orders}}
dead_letters: {{table: shop.dead}}
expectations:
  cheap: {{check: "price < 100"}}
  known: {{check: "id <> 'x'", action: drop}}
  sane: {{check: "price > 0", action: fail}}
checkpoint: lake/checkpoint
"""


def pipeline(tmp_path: Path, text: str = FILE) -> Pipeline:
    file = tmp_path / "orders.yaml"
    file.write_text(text)
    return load(str(file), [], {})


def sample(tmp_path: Path, **whole: Any) -> Path:
    path = tmp_path / "sample.json"
    path.write_text(json.dumps(whole))
    return path


def try_out(spark: SparkSession, tmp_path: Path, text: str, **whole: Any) -> Results:
    set_session(spark)
    trial = Trial.prepare(spark, pipeline(tmp_path, text), str(tmp_path / "scratch"))
    return trial.run(read_sample(sample(tmp_path, **whole), "orders"))


def test_records_become_rows_and_letters_as_in_a_run(spark: SparkSession, tmp_path: Path) -> None:
    results = try_out(
        spark,
        tmp_path,
        FILE,
        records=[
            {"value": {"id": "a", "price": 3.5, "at": "2026-05-01T12:00:00Z", "more": {"n": 1}}},
            {"value": "not json", "key": "k", "headers": {"trace": "1"}},
            {"value": {"id": "b", "price": 200}},
            {"value": {"id": "x", "price": 1}},
            {"value_base64": "/w==", "partition": 1, "offset": 7},
        ],
    )
    (row,) = results.rows
    assert (row["id"], row["price"], row["tags"]) == ("a", Decimal("3.5"), None)
    assert row["more"] == {"n": 1, "at": None}
    assert (row["kafka_topic"], row["kafka_partition"], row["kafka_offset"]) == ("orders", 0, 0)
    assert row["kafka_timestamp"] == "2000-01-01T00:00:00.000Z"
    spots = [(letter["partition"], letter["offset"]) for letter in results.letters]
    assert spots == [(0, 1), (0, 2), (1, 7)]
    assert [letter.get("value") for letter in results.letters[:2]] == [
        "not json",
        '{"id": "b", "price": 200}',
    ]
    assert results.letters[0]["key"] == "k"
    assert results.letters[1]["reason"] == "expectation not met: cheap"
    assert results.letters[2]["value_base64"] == "/w=="
    assert results.rejected == []
    assert {("at",), ("more", "at"), ("kafka_timestamp",)} == results.times


def test_expectation_that_refuses_a_batch_is_named(spark: SparkSession, tmp_path: Path) -> None:
    results = try_out(spark, tmp_path, FILE, records=[{"value": {"id": "a", "price": -1}}])
    assert results.rejected == ["sane"]


def test_table_changed_by_key_has_the_last_change(spark: SparkSession, tmp_path: Path) -> None:
    text = FILE.replace(
        "name: shop.orders}", "name: shop.orders, mode: upsert, keys: [id], tombstones: delete}"
    )
    text = text.replace("expectations:", "key: {format: string}\ncolumns: {id: key}\nexpectations:")
    results = try_out(
        spark,
        tmp_path,
        text,
        records=[
            {"key": "a", "value": {"id": "-", "price": 1}},
            {"key": "b", "value": {"id": "-", "price": 2}},
            {"key": "a", "value": {"id": "-", "price": 3}},
            {"key": "b", "value": None},
        ],
    )
    assert [(row["id"], row["price"]) for row in results.rows] == [("a", 3)]
    assert not [name for name in results.rows[0] if name.startswith("__")]
    assert results.letters == []


def test_transform_is_applied(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "twice_of_samples.py").write_text(
        "def twice(frame):\n    return frame.unionAll(frame.selectExpr('*'))\n"
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    text = FILE + "transform: twice_of_samples:twice\n"
    results = try_out(spark, tmp_path, text, records=[{"value": {"id": "a", "price": 1}}])
    assert [row["id"] for row in results.rows] == ["a", "a"]


RESULTS = Results(
    rows=[{"id": "a", "n": Decimal("1.50"), "at": "2026-05-01T12:00:00.000Z", "s": {"x": None}}],
    letters=[{"offset": 1, "reason": "no"}],
    rejected=[],
    times=frozenset({("at",)}),
)


@pytest.mark.parametrize(
    ("expected", "lines"),
    [
        ({"rows": [{"id": "a"}], "letters": [{"reason": "no"}]}, []),
        (
            {
                "rows": [{"n": 1.5, "at": "2026-05-01T14:00:00+02:00", "s": {}}],
                "letters": [{}],
            },
            [],
        ),
        (
            {"rows": [{"id": "b", "N": 1}], "letters": [{"offset": "1"}]},
            [
                'rows[0].id is "a", expected "b"',
                "rows[0].N: there are only id, n, at, s",
                'letters[0].offset is 1, expected "1"',
            ],
        ),
        (
            {"rows": [{"at": "2026-05-01T12:00:01Z"}, {"id": "c"}], "letters": []},
            [
                'rows[0].at is "2026-05-01T12:00:00.000Z", expected "2026-05-01T12:00:01Z"',
                'rows[1] is missing: {"id": "c"}',
                'letters[0] is not expected: {"offset": 1, "reason": "no"}',
            ],
        ),
        (
            {"rows": [{"s": {"x": 1}}], "letters": [{}], "rejected": ["sane"]},
            [
                "rejected by no expectation, expected sane",
                'rows[0].s is {"x": null}, expected {"x": 1}',
            ],
        ),
        (
            {"letters": [{}]},
            [
                'rows are not named in the file; they are [{"id": "a", "n": 1.50, '
                '"at": "2026-05-01T12:00:00.000Z", "s": {"x": null}}]'
            ],
        ),
        (
            {"rows": [{"n": True, "at": None}], "letters": [{}]},
            [
                "rows[0].n is 1.50, expected true",
                'rows[0].at is "2026-05-01T12:00:00.000Z", expected null',
            ],
        ),
    ],
)
def test_differences_are_named(tmp_path: Path, expected: dict[str, Any], lines: list[str]) -> None:
    case = read_sample(sample(tmp_path, records=[], **expected), "orders")
    assert list(differences(case, RESULTS)) == lines


def test_results_are_written_where_the_file_names_none(tmp_path: Path) -> None:
    path = sample(tmp_path, records=[{"value": "a"}], letters=[{"offset": 5}])
    assert fill_in(read_sample(path, "orders"), RESULTS) == ["rows"]
    whole = json.loads(path.read_text())
    assert whole["records"] == [{"value": "a"}]
    assert whole["rows"][0]["n"] == 1.5
    assert whole["letters"] == [{"offset": 5}], "what somebody expects is not overwritten"
    before = path.read_text()
    assert fill_in(read_sample(path, "orders"), RESULTS) == []
    assert path.read_text() == before


def test_numbers_keep_their_digits(tmp_path: Path) -> None:
    """A record is what its producer sent, and a written result is the one that was found."""
    path, value = tmp_path / "sample.json", '{"a": 0.12345678901234567890, "b": 1.10, "c": 1E+400}'
    path.write_text(f'{{"records": [{{"value": {value}}}]}}')
    case = read_sample(path, "orders")
    assert case.records[0].value == value.encode()
    exact = [{"price": Decimal("12345678901234567890.123456789")}]
    results = attrs.evolve(RESULTS, rows=exact, letters=[], rejected=[])
    assert fill_in(case, results) == ["rows", "letters"]
    assert list(differences(read_sample(path, "orders"), results)) == []
    assert "1.10" in path.read_text()


@pytest.mark.parametrize(
    ("whole", "words"),
    [
        ({}, 'a sample is an object with a list of "records"'),
        ({"records": [1]}, "records[0] is not an object"),
        ({"records": [{"valeu": 1}]}, "records[0]: no valeu here, only topic, partition"),
        ({"records": [], "row": []}, "no row here, only records, rows, letters, rejected"),
        ({"records": [], "rows": {}}, "rows must be a list"),
        ({"records": [], "letters": [1]}, "letters must be a list of objects"),
        ({"records": [{"partition": -1}]}, "records[0]: partition must be a number from 0"),
        ({"records": [{"partition": True}]}, "records[0]: partition must be a number from 0"),
        ({"records": [{"offset": 4}, {"offset": 4}]}, "records[1]: offset 4 comes after offset 4"),
        ({"records": [{"timestamp": "noon"}]}, "records[0]: timestamp must be a time such as"),
        ({"records": [{"value_base64": "?"}]}, "records[0]: value_base64 is not Base64"),
        ({"records": [{"value_base64": "\u00fc"}]}, "records[0]: value_base64 is not Base64"),
        ({"records": [{"headers": []}]}, "records[0]: headers must be an object"),
    ],
)
def test_wrong_sample_is_refused_by_its_place(
    tmp_path: Path, whole: dict[str, Any], words: str
) -> None:
    with pytest.raises(Refusal) as refused:
        read_sample(sample(tmp_path, **whole), "orders")
    assert words in str(refused.value)
    assert "sample.json" in str(refused.value)


def test_samples_are_the_files_of_a_folder(tmp_path: Path) -> None:
    with pytest.raises(Refusal, match="has no samples: write one, such as"):
        find_samples(str(tmp_path))
    for name in ("b.json", "a.json", "note.txt"):
        (tmp_path / name).write_text("{}")
    assert [path.name for path in find_samples(str(tmp_path))] == ["a.json", "b.json"]
    assert find_samples(str(tmp_path / "b.json")) == [tmp_path / "b.json"]


def test_command_runs_every_sample_without_brokers(
    spark: SparkSession,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr(command, "open_session", lambda *_, **__: spark)
    monkeypatch.setattr(SparkSession, "stop", lambda _: None)
    monkeypatch.setattr(sys, "path", [*sys.path])
    pipeline(tmp_path)
    good, bad = {"id": "a", "price": 1}, {"id": "b", "price": 1}
    folder = tmp_path / "samples"
    folder.mkdir()
    sample(folder, records=[{"value": good}]).rename(folder / "new.json")
    sample(folder, records=[{"value": bad}], rows=[{"id": "a"}], letters=[]).rename(
        folder / "old.json"
    )
    arguments = ["test", str(tmp_path / "orders.yaml"), str(folder)]
    assert cli.main(arguments) == 2
    output = capsys.readouterr()
    assert "wrong  old: 1 row, 0 dead letters\n       rows[0].id is" in output.out
    assert "wrong  new: 1 row, 0 dead letters\n       rows are not named" in output.out
    assert output.err == (
        "kwire-pipeline: 2 of 2 samples differ: correct the pipeline or the sample\n"
    )
    assert cli.main([*arguments, "--write"]) == 2
    assert "wrote  new: rows and letters; look at them\nok     new" in capsys.readouterr().out
    (folder / "old.json").unlink()
    assert cli.main(arguments) == 0
    assert capsys.readouterr().out == "ok     new: 1 row, 0 dead letters\n"


def test_session_of_samples_needs_no_brokers_tables_or_cluster(tmp_path: Path) -> None:
    from kwire_pipeline import versions
    from kwire_pipeline.engine.trial import without_tables

    local = without_tables(
        attrs.evolve(
            pipeline(tmp_path), spark=attrs.evolve(pipeline(tmp_path).spark, master="yarn")
        )
    )
    assert versions.packages("4.0.0", local, connector=False) == ()
    assert local.spark.master == "local[2]"
