"""Editors accept the files that load, and mark what `check` would reject in a single key."""

import json
import re
from pathlib import Path

import jsonschema  # type: ignore[import-untyped]
import pytest
import yaml

from kwire_pipeline import cli
from kwire_pipeline.config.declare import keys
from kwire_pipeline.config.editor_schema import editor_schema
from kwire_pipeline.config.model import Pipeline

DOCS = Path(__file__).resolve().parents[2] / "docs"
EXAMPLES = [
    text
    for page in ("pipeline.md", "object-stores.md")
    for text in re.findall(r"```yaml\n(.*?)```", (DOCS / page).read_text(), re.DOTALL)
]
SMALLEST = EXAMPLES[0]


def problems(text: str) -> list[str]:
    """Return the messages that an editor shows for a file."""
    validator = jsonschema.Draft7Validator(editor_schema())
    return [error.message for error in validator.iter_errors(yaml.safe_load(text))]


@pytest.mark.parametrize("example", EXAMPLES)
def test_examples_of_the_documentation_are_accepted(example: str) -> None:
    whole = yaml.safe_load(SMALLEST) | yaml.safe_load(example)
    whole["source"] = yaml.safe_load(SMALLEST)["source"] | whole["source"]
    whole["table"] = {"name": "shop.orders"} | whole["table"]
    assert problems(yaml.safe_dump(whole)) == []


@pytest.mark.parametrize(
    "line",
    [
        "name: 7",
        "omit: item",
        "limits: {max_offsets_per_trigger: 1_000}",
        "limits: {max_offsets_per_trigger: '${LIMIT}'}",
        "source: {bootstrap: a:1, topics: ['${TOPIC}'], isolation: '${ISOLATION}'}",
        "source: {bootstrap: a:1, fail_on_data_loss: false, start: {orders: {0: 5}}}",
        "source: {bootstrap: a:1, fail_on_data_loss: 'false'}",
        "metrics:",
        "transform: null",
        "expectations: {positive: {check: quantity > 0, action: warn}}",
    ],
)
def test_forms_that_load_are_accepted(line: str) -> None:
    whole = yaml.safe_load(SMALLEST) | yaml.safe_load(line)
    assert problems(yaml.safe_dump(whole)) == []


@pytest.mark.parametrize(
    ("old", "new", "problem"),
    [
        ("trigger:", "triger:", "'triger' was unexpected"),
        ("topics:", "topic:", "'topic' was unexpected"),
        ("format: json", "format: jsn", "not valid under any of the given schemas"),
        ("bootstrap: 127.0.0.1:9092, ", "", "'bootstrap' is a required property"),
        ("checkpoint: lake/checkpoint", "", "'checkpoint' is a required property"),
        ("name: orders", "name: [orders]", "is not of type 'string'"),
        (
            "trigger: ",
            "limits: {max_offsets_per_trigger: many}\ntrigger: ",
            "not valid under any of the given schemas",
        ),
    ],
)
def test_wrong_keys_and_values_are_marked(old: str, new: str, problem: str) -> None:
    messages = problems(SMALLEST.replace(old, new, 1))
    assert any(problem in message for message in messages), messages


def test_command_prints_the_meaning_of_every_key(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["schema"]) == 0
    text = capsys.readouterr().out
    jsonschema.Draft7Validator.check_schema(json.loads(text))
    for key in keys(Pipeline):
        assert json.dumps(key.meaning) in text
