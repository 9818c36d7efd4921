"""Commands for many tables: a line or an exit code for each, or for the one that is named."""

import datetime
import json
import xml.etree.ElementTree as ElementTree
from collections.abc import Callable
from pathlib import Path
from typing import Any, cast

import attrs
import pytest
from pyspark.sql import SparkSession

from kwire_pipeline import cli
from kwire_pipeline.broker import Brokers
from kwire_pipeline.commands import check, run, status, tables
from kwire_pipeline.commands.status import Status
from kwire_pipeline.commands.tables import Chosen, on_tables
from kwire_pipeline.commands.test import pipeline_of
from kwire_pipeline.config.model import Pipeline
from kwire_pipeline.day.figures import DAY, Day
from kwire_pipeline.engine.reporting.figures import Tally
from kwire_pipeline.errors import EXIT_FAILURE, EXIT_REFUSAL, Failure, Refusal
from kwire_pipeline.many.plan import plan_tables
from kwire_pipeline.many.runs import Outcome
from kwire_pipeline.many.state import Problem
from tests.support.pipeline.many import MANY, template
from tests.support.pipeline.orders import ORDERS

TOPICS = ["a", "b", "new"]


class Session:
    """A session that does nothing."""

    def stop(self) -> None:
        pass

    def newSession(self) -> "Session":
        return self


@pytest.fixture
def three(monkeypatch: pytest.MonkeyPatch) -> list[Chosen]:
    """Three tables, of which one has no checkpoint yet, in a session that does nothing."""
    listed = [
        Chosen(plan=plan, is_started=plan.topic != "new")
        for plan in plan_tables(template(), TOPICS, ())
    ]
    for module in (tables, status):
        monkeypatch.setattr(module, "choose", lambda *_: listed)
    monkeypatch.setattr(tables, "open_session", lambda _: Session())
    return listed


def test_command_goes_on_after_a_table_that_fails(
    three: list[Chosen], capsys: pytest.CaptureFixture[str]
) -> None:
    def act(spark: SparkSession, pipeline: Pipeline) -> int:
        print(f"works on {pipeline.table.name}")
        if pipeline.table.name == "raw.a":
            raise Failure("no broker answers")
        return 0

    assert on_tables(template(), None, act) == EXIT_FAILURE
    output = capsys.readouterr()
    assert output.out.splitlines() == [
        "raw.a (topic a):",
        "works on raw.a",
        "raw.b (topic b):",
        "works on raw.b",
        "raw.new (topic new): not written yet",
    ]
    assert output.err == "kwire-pipeline: raw.a: no broker answers\n"


def test_exit_code_is_the_highest_of_all_tables(three: list[Chosen]) -> None:
    codes = {"raw.a": EXIT_REFUSAL, "raw.b": EXIT_FAILURE}
    act: Callable[[SparkSession, Pipeline], int] = lambda _, pipeline: codes[pipeline.table.name]  # noqa: E731
    assert on_tables(template(), None, act) == EXIT_REFUSAL


def test_table_that_no_run_could_write_is_a_problem_of_each_command(
    three: list[Chosen], capsys: pytest.CaptureFixture[str]
) -> None:
    three[2] = attrs.evolve(three[2], failure=Problem("its schema is gone", EXIT_REFUSAL))
    assert on_tables(template(), None, lambda *_: 0) == EXIT_REFUSAL
    assert "raw.new: not written: its schema is gone" in capsys.readouterr().err


def status_of(spark: SparkSession, pipeline: Pipeline) -> Status:
    """Return the status of a table without rows."""
    return Status(
        name=pipeline.name,
        table=pipeline.table.name,
        position={},
        ends={},
        lag=0,
        batch_id=1,
        is_half_done=False,
        rows=0,
        files=0,
        bytes=0,
        dead_letters={},
    )


def test_status_shows_which_tables_the_last_run_could_not_write(
    three: list[Chosen],
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(status, "read_status", status_of)
    three[1] = attrs.evolve(three[1], failure=Problem("it was dropped", EXIT_REFUSAL))
    three[2] = attrs.evolve(three[2], failure=Problem("its schema is gone", EXIT_REFUSAL))
    assert status.status(template(), as_json=True) == EXIT_REFUSAL
    lines = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert {line["table"]: line["problem"] for line in lines} == {
        "raw.a": None,
        "raw.b": "it was dropped",
        "raw.new": "its schema is gone",
    }
    status.status(template())
    output = capsys.readouterr()
    assert "the last run failed: it was dropped" in output.out
    assert "raw.new (topic new): not written: its schema is gone" in output.out
    assert output.err == "kwire-pipeline: raw.new: not written: its schema is gone\n"


def test_page_has_each_table_also_one_that_cannot_be_read(
    three: list[Chosen], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    def read(spark: SparkSession, pipeline: Pipeline) -> Status:
        if pipeline.table.name == "raw.b":
            raise Failure("the catalog is away")
        return status_of(spark, pipeline)

    def day(spark: SparkSession, pipeline: Pipeline, now: datetime.datetime) -> Day:
        return Day(start=now - DAY, end=now, batches=(), lags={now: 0}, reasons={})

    monkeypatch.setattr(status, "read_status", read)
    monkeypatch.setattr(status, "read_day", day)
    path = tmp_path / "day.html"
    assert status.status(template(), page=str(path)) == EXIT_FAILURE
    rows = ElementTree.parse(path).findall(".//table[@class='overview']/tbody/tr")
    assert [["".join(cell.itertext()) for cell in row][:3] for row in rows] == [
        ["raw.b", "b", "no figures"],
        ["raw.a", "", "fine"],
        ["raw.new", "new", "not written yet"],
    ]
    assert "There are no figures: the catalog is away" in path.read_text()


def test_page_in_a_folder_that_is_not_there_is_refused_at_once(tmp_path: Path) -> None:
    with pytest.raises(Refusal, match="there is no such folder"):
        status.status(template(), page=str(tmp_path / "none" / "day.html"))


def test_check_has_a_line_for_each_table(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    topics = {"shop.a": 1, "shop.b": 3, "other": 1}
    monkeypatch.setattr(check, "look_up", lambda *_, **__: Brokers("b:1", "id", topics))
    monkeypatch.setattr(check, "check_java", lambda *_: 17)
    monkeypatch.chdir(tmp_path)
    (tmp_path / "shop.a.ddl").write_text("id BIGINT")
    text = MANY.replace("{format: string}", '{format: json, schema: "@{topic}.ddl"}')
    lines: list[str] = []
    with pytest.raises(Refusal, match="1 check failed: table: "):
        check.check(template(text), {}, lines.append)
    own = [line for line in lines if line.split()[1] == "table" and "raw." in line]
    assert own[0] == "ok    table     raw.shop_a (topic shop.a)"
    assert own[1].startswith("wrong table     raw.shop_b: raw.yaml:3: value.schema: shop.b.ddl")
    assert len(own) == 2


def test_topics_that_are_not_there_are_no_problem_of_the_brokers(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The run of the other tables begins; `check` names the topic."""
    monkeypatch.setattr(check, "look_up", lambda *_, **__: Brokers("b:1", "id", {"a": 1}))
    monkeypatch.setattr(check, "check_java", lambda *_: 17)
    many = template(MANY.replace('pattern: "shop[.].*"', "topics: [a, b]"))
    check.preflight(many, {})
    lines: list[str] = []
    with pytest.raises(Refusal, match="1 check failed: table: "):
        check.check(many, {}, lines.append)
    assert lines[-1] == "wrong table     raw.b: the topic b does not exist: create it"


@pytest.mark.parametrize("command", ["run", "status", "verify", "replay", "maintain", "plan"])
def test_table_of_another_file_is_refused(
    command: str, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: Any
) -> None:
    monkeypatch.setattr(cli, "preflight", lambda *_, **__: None)
    file = tmp_path / "orders.yaml"
    file.write_text(MANY.replace("{topic}", "orders"))
    assert cli.main([command, str(file), "--table", "raw.items"]) == EXIT_REFUSAL
    error = "--table raw.items: the table of this file is raw.orders"
    assert capsys.readouterr().err == f"kwire-pipeline: {error}\n"


def test_samples_are_of_a_topic_that_is_named() -> None:
    assert pipeline_of(template(), "shop.a").table.name == "raw.shop_a"
    assert pipeline_of(ORDERS, None) is ORDERS
    with pytest.raises(Refusal, match="add --topic"):
        pipeline_of(template(), None)
    with pytest.raises(Refusal, match="is for a file with"):
        pipeline_of(ORDERS, "a")


def test_run_of_many_tables_prints_all_rows_and_ends_with_the_problems(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    outcome = Outcome(
        tally=Tally(batches=2, rows=7),
        table_count=3,
        problems={"raw.a": Problem("it was dropped", EXIT_REFUSAL)},
    )
    monkeypatch.setattr(run, "open_session", lambda _: cast(SparkSession, Session()))
    monkeypatch.setattr(run, "run_tables", lambda *_: outcome)
    with pytest.raises(Refusal, match=r"1 of 3 tables failed: raw\.a \(it was dropped\)"):
        run.run(template())
    assert capsys.readouterr().out.startswith("7 rows, ")
