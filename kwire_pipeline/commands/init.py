"""The command `init`: writes a first, commented file for a pipeline, for the user to edit."""

import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final

import yaml

from kwire_pipeline.broker import sample
from kwire_pipeline.commands.check import subjects_of
from kwire_pipeline.config.declare import Plain, own_keys
from kwire_pipeline.config.document import Document, overlay
from kwire_pipeline.config.load import Flag, build, overlay_flags
from kwire_pipeline.config.model import Pipeline, Source
from kwire_pipeline.config.values import WITH_REGISTRY
from kwire_pipeline.errors import Failure, Refusal
from kwire_pipeline.infer import infer_ddl
from kwire_pipeline.registry import Client, UnknownSchema

HEAD: Final = """\
# A pipeline: topics into one table. docs/pipeline.md lists all keys, and
# `kwire-pipeline check {file}` says what is wrong. Passwords come from the environment: ${{NAME}}.
"""


SAMPLE_COUNT: Final = 1000
OBJECT: Final = '{"properties": {"id": {"type": "string"}}}'
PLACEHOLDERS: Final = {
    ("key", "avro-registry"): '"string"',
    ("value", "avro-registry"): '{"type": "record", "name": "Empty", "fields": []}',
    ("key", "json-registry"): OBJECT,
    ("value", "json-registry"): OBJECT,
    ("value", "json"): "id BIGINT, name STRING",
}
"""Schemas of keys and values that stand in for those to be found, by format."""


def init(file: str, flags: Sequence[Flag], environment: Mapping[str, str]) -> list[str]:
    """Write a file that does not exist yet and return notes for its author.

    If a broker answers, the schema of JSON values is inferred from the newest records. Raises
    Refusal if the file exists, or if a flag is wrong.
    """
    path = Path(file)
    first = template(path.stem)
    if any(flag.key == "dead_letters.topic" for flag in flags):
        del first["dead_letters"]
    # Variables are written to the file unexpanded: two dollars mean one.
    values = overlay_flags(first, [Flag(flag.key, escape(flag.text)) for flag in flags], {})
    missing = {
        part: schema
        for (part, kind), schema in PLACEHOLDERS.items()
        if needs_a_schema(values, part, kind)
    }
    build(Document(file, with_schemas(values, missing), {}))
    if path.exists():
        raise Refusal(f"{file} already exists: choose another name, or edit it")
    notes = []
    # Only the registry and the brokers need the values of variables, which may be missing.
    if missing:
        expanded = with_schemas(overlay_flags(first, flags, environment), missing)
        pipeline = build(Document(file, expanded, {}))
        for part in missing:
            schema, note = find_schema(part, pipeline)
            notes.append(note)
            if schema is not None:
                values = overlay(values, (part, "schema"), escape(schema))
    try:
        with path.open("x", encoding="utf-8") as output:
            output.write(render(path.name, values))
    except OSError as error:
        raise Refusal(f"{file} cannot be written: {error.strerror}") from None
    return notes


def needs_a_schema(values: Mapping[str, Plain], part: str, kind: str) -> bool:
    """Return whether keys or values have a format whose schema is missing."""
    record = values.get(part)
    return isinstance(record, Mapping) and record.get("format") == kind and "schema" not in record


def with_schemas(values: Mapping[str, Plain], schemas: Mapping[str, str]) -> Mapping[str, Plain]:
    """Return the values with schemas of keys and values."""
    for part, schema in schemas.items():
        values = overlay(values, (part, "schema"), schema)
    return values


def escape(text: str) -> str:
    """Return a text whose ``${NAME}`` the reader of a file takes literally."""
    return text.replace("${", "$${")


def find_schema(part: str, pipeline: Pipeline) -> tuple[str | None, str]:
    """Return the newest schema for keys or values, and a note about it."""
    record = pipeline.key if part == "key" else pipeline.value
    if record.format not in WITH_REGISTRY:
        return infer(pipeline.source)
    try:
        for subject in subjects_of(part, record, pipeline)[:1]:
            newest = Client.of(pipeline.registry).newest(subject, WITH_REGISTRY[record.format])
            return newest.schema, f"{part}.schema is version {newest.number} of {subject}"
    except (Failure, Refusal, UnknownSchema) as error:
        return None, f"add {part}.schema, which the registry did not provide: {error}"
    return None, f"add {part}.schema: name the registry's subject with {part}.subject"


def infer(source: Source) -> tuple[str | None, str]:
    """Infer the schema from the newest records, if any; also return a note about it."""
    try:
        values = sample(source, SAMPLE_COUNT)
    except (Failure, Refusal) as error:
        return None, f"add value.schema, which was not inferred: {error}"
    schema = infer_ddl(values)
    if schema is None:
        return None, f"add value.schema: there is no JSON object in {len(values)} records"
    return schema, f"value.schema is that of {len(values)} records: correct its types, add NOT NULL"


def template(stem: str) -> dict[str, Plain]:
    """Return the keys of a first file; the topic and the table get the file's name."""
    name = re.sub(r"\W", "_", stem)
    return {
        "name": stem,
        "source": {"bootstrap": "127.0.0.1:9092", "topics": [stem]},
        "value": {"format": "json"},
        "table": {"format": "iceberg", "warehouse": "lake", "name": f"lake.{name}"},
        "dead_letters": {"table": f"lake.{name}_dead"},
        "checkpoint": f"lake/checkpoint/{stem}",
        "trigger": "available-now",
    }


def render(file: str, values: Mapping[str, Plain]) -> str:
    """Return the text of a file: each key preceded by its meaning."""
    own = own_keys(Pipeline)
    lines = [HEAD.format(file=file)]
    for name, value in values.items():
        meaning = own[name].meaning
        if name == "value" and isinstance(value, Mapping) and "schema" not in value:
            meaning += '\n# Add schema: "id BIGINT NOT NULL, name STRING, at TIMESTAMP".'
        is_section = not isinstance(value, str)
        entry = yaml.safe_dump(
            {name: value},
            sort_keys=False,
            default_flow_style=None if is_section else False,
            width=1000,
        )
        lines.append(f"# {meaning}\n{entry}")
    return "\n".join(lines)
