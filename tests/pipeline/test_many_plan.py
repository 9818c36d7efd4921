"""A file for many tables: each topic gets a pipeline of its own, or a problem of its own."""

from pathlib import Path

import pytest

from kwire_pipeline.config.declare import Secret
from kwire_pipeline.config.document import ConfigError, read_document
from kwire_pipeline.config.load import Flag
from kwire_pipeline.config.model import Pipeline
from kwire_pipeline.config.template import Template, load_any
from kwire_pipeline.config.values import Start
from kwire_pipeline.errors import Refusal
from kwire_pipeline.many.plan import plan_tables, select
from tests.support.pipeline.many import MANY, template
from tests.support.pipeline.orders import SMALLEST


def test_each_topic_has_its_own_table_letters_checkpoint_and_name() -> None:
    (plan,) = plan_tables(template(), ["shop.web-orders"], ())
    assert plan.table == "raw.shop_web_orders"
    pipeline = plan.pipeline
    assert pipeline is not None
    assert pipeline.name == "raw.shop.web-orders"
    assert pipeline.source.topics == ("shop.web-orders",)
    assert pipeline.source.pattern is None
    assert pipeline.table.name == "raw.shop_web_orders"
    assert pipeline.dead_letters.table == "raw.shop_web_orders_dead"
    assert pipeline.checkpoint == "lake/checkpoint/tables/shop.web-orders"


def test_file_with_topic_in_its_table_is_for_many_tables(tmp_path: Path) -> None:
    file = tmp_path / "raw.yaml"
    file.write_text(MANY)
    assert isinstance(load_any(str(file), [], {}), Template)
    single = load_any(str(file), [Flag("table.name", "raw.all"), *LETTERS_OF_ONE], {})
    assert isinstance(single, Pipeline)
    file.write_text(SMALLEST)
    assert isinstance(load_any(str(file), [], {}), Pipeline)


LETTERS_OF_ONE = [Flag("dead_letters.table", "raw.dead")]


def test_schema_of_a_topic_is_in_a_file_of_the_topic(tmp_path: Path) -> None:
    """A topic without its file has a problem, which names the file; the others have none."""
    (tmp_path / "a.ddl").write_text("id BIGINT NOT NULL")
    (tmp_path / "b.ddl").write_text("id BIGINTT")
    text = MANY.replace("{format: string}", '{format: json, schema: "@{topic}.ddl"}')
    many = Template.of(read_document(f"{tmp_path}/raw.yaml", text, {}), [], {})
    plans = {plan.topic: plan for plan in plan_tables(many, ["a", "b", "c"], ())}
    assert plans["a"].pipeline is not None
    assert plans["a"].pipeline.value.schema == "id BIGINT NOT NULL"
    assert "BIGINTT" in str(plans["b"].problem)
    assert f"{tmp_path}/raw.yaml:3: value.schema: c.ddl cannot be read" in str(plans["c"].problem)


def test_names_replace_the_template_for_some_topics() -> None:
    flags = (Flag("table.names", "{shop.orders: sales.orders}"),)
    plans = plan_tables(template(MANY, *flags), ["shop.items", "shop.orders"], ())
    assert [plan.table for plan in plans] == ["raw.shop_items", "sales.orders"]


@pytest.mark.parametrize(
    ("topics", "started", "loser", "other"),
    [
        (["a.b", "a_b"], (), "a_b", "a.b"),
        (["a.b", "a_b"], ("a_b",), "a.b", "a_b"),
        (["orders", "Orders"], (), "orders", "Orders"),
        (["orders", "orders_dead"], (), "orders_dead", "orders"),
    ],
)
def test_topic_whose_table_is_taken_is_refused_and_the_first_goes_on(
    topics: list[str], started: tuple[str, ...], loser: str, other: str
) -> None:
    plans = {plan.topic: plan for plan in plan_tables(template(), topics, started)}
    assert plans[other].pipeline is not None
    assert plans[loser].pipeline is None
    assert f"is the table of topic {other} already" in str(plans[loser].problem)


def test_table_in_the_folder_of_another_is_refused() -> None:
    flags = (Flag("table.names", "{archive: raw.orders.archive}"),)
    plans = {p.topic: p for p in plan_tables(template(MANY, *flags), ["archive", "orders"], ())}
    assert plans["archive"].pipeline is not None
    assert "share a folder" in str(plans["orders"].problem)


def test_topic_that_appears_later_is_read_from_its_first_record() -> None:
    many = template(MANY, Flag("source.start", "latest"))
    first = plan_tables(many, ["a"], ())
    assert first[0].pipeline is not None
    assert first[0].pipeline.source.start == Start(at_end=True)
    later = {plan.topic: plan.pipeline for plan in plan_tables(many, ["a", "b"], ["a"], first=())}
    assert later["a"] is not None
    assert later["b"] is not None
    assert later["a"].source.start == Start(at_end=True)
    assert later["b"].source.start == Start()


def test_offsets_in_the_file_are_those_of_their_topic() -> None:
    topics = (Flag("source.topics", "[a, b]"), Flag("source.start", "{a: {0: 7}, b: {0: 8}}"))
    text = MANY.replace('pattern: "shop[.].*"', "topics: [x]")
    plans = plan_tables(template(text, *topics), ["a", "b"], ())
    starts = [plan.pipeline.source.start.offsets for plan in plans if plan.pipeline is not None]
    assert starts == [{"a": {0: 7}}, {"b": {0: 8}}]


def test_secret_stays_hidden_in_the_pipelines_of_topics() -> None:
    text = MANY.replace("name: raw\n", "name: raw\nregistry: {url: 'http://r', password: '${P}', ")
    text = text.replace("'${P}', ", "'${P}', username: u}\n")
    text = text.replace("{format: string}", '{format: avro-registry, schema: "${S}"}')
    schema = '{"type": "record", "name": "{topic}", "fields": []}'
    many = Template.of(read_document("raw.yaml", text, {"P": "x", "S": schema}), [], {})
    (plan,) = plan_tables(many, ["orders"], ())
    assert plan.pipeline is not None, plan.problem
    assert isinstance(plan.pipeline.registry.password, Secret)
    assert isinstance(plan.pipeline.value.schema, Secret)


@pytest.mark.parametrize(
    ("flags", "error"),
    [
        ((Flag("trigger", "x"),), "--trigger: expected available-now"),
        ((Flag("table.name", "{topic}"),), "'topic' is not NAMESPACE.TABLE"),
        (
            (Flag("table.format", "parquet"), Flag("dead_letters.table", "raw.dead")),
            "add {topic} to its name",
        ),
        (
            (Flag("table.format", "delta"), Flag("dead_letters.table", "raw.dead")),
            "add {topic} to its name",
        ),
        ((Flag("table.keys", "id"),), "keys are for mode: upsert"),
    ],
)
def test_problem_of_all_topics_is_one_of_the_file(flags: tuple[Flag, ...], error: str) -> None:
    with pytest.raises(ConfigError) as caught:
        template(MANY, *flags)
    assert error in str(caught.value)


@pytest.mark.parametrize("key", ["table.names", "limits.parallel_tables"])
def test_keys_of_many_tables_have_no_effect_on_one(tmp_path: Path, key: str) -> None:
    file = tmp_path / "orders.yaml"
    file.write_text(SMALLEST)
    value = "{orders: a.b}" if key == "table.names" else "2"
    with pytest.raises(ConfigError, match=r"no effect without \{topic\} in table\.name"):
        load_any(str(file), [Flag(key, value)], {})


def test_command_for_one_table_names_a_table_that_is_there() -> None:
    plans = plan_tables(template(), ["a", "b"], ())
    assert [plan.topic for plan in select(plans, "raw.b")] == ["b"]
    assert len(select(plans, None)) == 2
    with pytest.raises(Refusal, match=r"--table raw\.c: .* are raw\.a, raw\.b"):
        select(plans, "raw.c")


def test_table_of_a_topic_that_is_gone_is_not_given_to_another() -> None:
    (plan,) = plan_tables(template(), ["a_b"], ["a.b"])
    assert "raw.a_b is the table of topic a.b already" in str(plan.problem)


def test_topic_whose_folder_would_be_hidden_is_refused() -> None:
    (plan,) = plan_tables(template(), [".a"], ())
    assert "begins with a dot" in str(plan.problem)
