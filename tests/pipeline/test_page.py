"""docs/pipeline.md: its examples load, and its table of versions is the one that is used."""

import json
import re
from pathlib import Path

import pytest

from examples.orders.events import HOUR_MS, orders
from kwire_pipeline import versions
from kwire_pipeline.cli import COMMANDS
from kwire_pipeline.config.document import overlay, read_document
from kwire_pipeline.config.load import Flag, build
from kwire_pipeline.config.template import Template
from kwire_pipeline.many.plan import plan_tables
from tests.support.envelopes import envelope_schema

PAGE = (Path(__file__).resolve().parents[2] / "docs" / "pipeline.md").read_text()
EXAMPLES = re.findall(r"```yaml\n(.*?)```", PAGE, re.DOTALL)
INLINE = re.findall(r"`((?:source|spark|trigger|transform): [^`]+)`", PAGE)
ENVIRONMENT = {
    "KAFKA_PASSWORD": "x",
    "REGISTRY_PASSWORD": "x",
    "SLACK_WEBHOOK": "https://hooks.example/1",
}
AVRO_SCHEMA = (
    '{"type": "record", "name": "Order", "fields": [{"name": "ordered_at", "type": '
    '{"type": "long", "logicalType": "timestamp-millis"}}]}'
)
JSON_SCHEMA = (
    '{"properties": {"ordered_at": {"type": "string", "format": "date-time"}}, "type": "object"}'
)
ENVELOPE = envelope_schema([{"name": "order_id", "type": "string"}])
SCHEMA = (
    "order_id STRING NOT NULL, item STRING, quantity INT, price DOUBLE, country STRING, "
    "address STRUCT<city: STRING>, ordered_at TIMESTAMP"
)


def test_the_page_has_examples() -> None:
    assert len(EXAMPLES) >= 4
    assert len(INLINE) >= 3


OF_MANY = [example for example in EXAMPLES if "{topic}" in example]


@pytest.mark.parametrize("example", [*(e for e in EXAMPLES[1:] if e not in OF_MANY), *INLINE])
def test_examples_fit_into_the_smallest_file(example: str) -> None:
    values = dict(read_document("page", EXAMPLES[0], ENVIRONMENT).top)
    for key, value in read_document("page", example.replace("...", "a:1"), ENVIRONMENT).top.items():
        values = overlay(values, (key,), value)
    document = read_document("page", "name: orders", {})
    flags = [Flag("key.format", "string")]
    if "schema: latest" not in example:
        flags.append(Flag("value.schema", schema_for(example)))
    build(type(document)("page", values, {}), flags)


def schema_for(example: str) -> str:
    """Return a schema that can stand for the file or the columns of an example."""
    if "json-registry" in example:
        return JSON_SCHEMA
    if "avro" not in example:
        return SCHEMA
    return ENVELOPE if "debezium" in example else AVRO_SCHEMA


def test_smallest_file_of_the_page_is_complete() -> None:
    build(read_document("page", EXAMPLES[0], {}))


def test_file_for_many_tables_is_complete() -> None:
    (example,) = OF_MANY
    template = Template.of(read_document("page", example, {}), [], {})
    (plan,) = plan_tables(template, ["shop.web-orders"], ())
    assert plan.pipeline is not None
    for shown in (plan.table, plan.pipeline.name, plan.pipeline.checkpoint):
        assert f"`{shown}`" in PAGE


def test_versions_of_the_page_are_those_in_use() -> None:
    rows = dict(re.findall(r"^\| (4\.\d\.\d) \| (.*) \|$", PAGE, re.MULTILINE))
    assert tuple(rows) == versions.CHECKED
    for version, row in rows.items():
        release = versions.release_of(version)
        java, iceberg, delta, _ = row.split(" | ")
        assert java == f"{release.java[0]} to {release.java[1]}"
        for coordinate, shown in ((release.iceberg, iceberg), (release.delta, delta)):
            if coordinate is not None:
                _, artifact, number = coordinate.split(":")
                assert shown == f"{artifact.removesuffix('_2.13')} {number}"
            else:
                assert shown == "there is none"


def test_every_command_and_exit_code_is_on_the_page() -> None:
    for name, command in COMMANDS.items():
        places = [each.name.upper() for each in command.options if not each.name.startswith("--")]
        words = " ".join([name, "FILE", *places])
        assert f"| `{words}` |" in PAGE
    assert "0: done. 1: a failure that a rerun may cure" in PAGE


def test_revenue_on_the_page_is_that_of_the_events() -> None:
    """The events of `events.py --count 10000` differ between runs in their times only."""
    revenue: dict[str, float] = {}
    events = orders(10_000, seed=1, damaged=0.01, late=0.02, start_ms=7 * HOUR_MS, hours=48)
    for event in events:
        try:
            order = json.loads(event.value)
        except ValueError:
            continue
        if "order_id" in order and isinstance(order["quantity"], int):
            sold = order["quantity"] * order["price"]
            revenue[order["item"]] = revenue.get(order["item"], 0.0) + sold
    assert len(revenue) == 5
    for item, amount in revenue.items():
        assert f"{item:8} {amount:12,.2f}" in PAGE
