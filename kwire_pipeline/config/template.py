"""A file for many tables: with `{topic}` in the table's name, each topic gets its own pipeline.

Rules of this file: the pipeline of a topic is the same as that of a file for this topic alone, with
every rule of such a file; a problem with one topic does not affect the others. Here, topics are
plain data: another module queries the brokers.
"""

import re
from collections.abc import Mapping, Sequence
from typing import Final, TypeAlias

import attrs

from kwire_pipeline.config.declare import Plain, Secret
from kwire_pipeline.config.document import Document, overlay
from kwire_pipeline.config.load import (
    Flag,
    build,
    build_values,
    overlay_flags,
    read_file,
)
from kwire_pipeline.config.model import Pipeline, Problem
from kwire_pipeline.config.rules import problems
from kwire_pipeline.config.values import TableFormat

TOPIC: Final = "{topic}"
TABLE_NAME: Final = ("table", "name")
OF_MANY: Final = (("table", "names"), ("limits", "parallel_tables"))
"""The keys that only a file for many tables has."""
OF_TABLES: Final = (TABLE_NAME, ("table", "deletions"), ("dead_letters", "table"))
"""The keys in which a topic's name becomes part of a table's name."""
SCHEMAS: Final = (("key", "schema"), ("value", "schema"))
SUBJECTS: Final = (("key", "subject"), ("value", "subject"))
NO_IDENTIFIER: Final = re.compile(r"\W", re.ASCII)
TABLES: Final = "tables"
"""The folder below `checkpoint` that has a folder for each topic."""


@attrs.frozen
class Template:
    """A file for many tables."""

    common: Pipeline
    """The keys that do not depend on the topic; in the other keys, `{topic}` stands for its name.
    """
    _document: Document

    @classmethod
    def of(
        cls, document: Document, flags: Sequence[Flag], environment: Mapping[str, str]
    ) -> "Template":
        """Check what can be checked without a topic; raise ConfigError with every problem."""
        top = overlay_flags(document.top, flags, environment)
        by_topic = [path for path in SCHEMAS if TOPIC in _text_at(top, path)]
        common = top
        for path in by_topic:
            common = overlay(common, path, None)
        example = without_keys_of_many(common)
        for path in (*OF_TABLES, *SUBJECTS):
            if text := _text_at(top, path):
                example = overlay(example, path, text.replace(TOPIC, "topic"))
        unknown = {".".join(path) for path in by_topic}
        build_values(
            attrs.evolve(document, top=example),
            flags,
            lambda pipeline: (each for each in problems(pipeline) if each[0] not in unknown),
        )
        return cls(
            build_values(attrs.evolve(document, top=common), flags, problems_of),
            attrs.evolve(document, top=top),
        )

    def table_of(self, topic: str) -> str:
        """Return the name of a topic's table."""
        name = self.common.table.names.get(topic)
        return self.common.table.name.replace(TOPIC, identifier(topic)) if name is None else name

    def pipeline_of(self, topic: str) -> Pipeline:
        """Return the pipeline of a topic; raise ConfigError with every problem."""
        top: Mapping[str, Plain] = without_keys_of_many(self._document.top)
        for path in (*OF_TABLES, *SCHEMAS, *SUBJECTS):
            text = _text_at(top, path)
            if TOPIC in text:
                name = identifier(topic) if path in OF_TABLES else topic
                whole = text.replace(TOPIC, name)
                top = overlay(top, path, Secret(whole) if isinstance(text, Secret) else whole)
        top = overlay(top, TABLE_NAME, self.table_of(topic))
        top = overlay(top, ("source", "topics"), [topic])
        top = overlay(top, ("source", "pattern"), None)
        top = overlay(top, ("source", "start"), _start_of(top, topic))
        top = overlay(top, ("name",), f"{self.common.name}.{topic}")
        checkpoint = f"{self.common.checkpoint.rstrip('/')}/{TABLES}/{topic}"
        return build_values(
            attrs.evolve(self._document, top=overlay(top, ("checkpoint",), checkpoint))
        )


Loaded: TypeAlias = Pipeline | Template


def common_of(loaded: Loaded) -> Pipeline:
    """Return the settings that all tables of a file have in common."""
    return loaded.common if isinstance(loaded, Template) else loaded


def load_any(file: str, flags: Sequence[Flag], environment: Mapping[str, str]) -> Loaded:
    """Read a file for one table or for many; raise ConfigError with every problem."""
    document = read_file(file, environment)
    top = overlay_flags(document.top, flags, environment)
    if TOPIC in _text_at(top, TABLE_NAME):
        return Template.of(document, flags, environment)
    return build(document, flags, environment)


def identifier(topic: str) -> str:
    """Return a topic's name as a part of a table's name, without dots and hyphens."""
    return NO_IDENTIFIER.sub("_", topic)


def without_keys_of_many(top: Mapping[str, Plain]) -> Mapping[str, Plain]:
    """Return the values without the keys that have no effect for one table."""
    for path in OF_MANY:
        if path[0] in top:
            top = overlay(top, path, None)
    return top


def problems_of(common: Pipeline) -> list[Problem]:
    """Return the problems of many tables that a pipeline of one topic does not have."""
    letters, form = common.dead_letters.table, common.table.format
    if form is not TableFormat.ICEBERG and letters is not None and TOPIC not in letters:
        text = f"only one pipeline may write a {form.value} table: add {TOPIC} to its name"
        return [("dead_letters.table", text)]
    if (deletions := common.table.deletions) is not None and TOPIC not in deletions:
        return [("table.deletions", f"each table needs its own: add {TOPIC} to its name")]
    return []


def _text_at(top: Mapping[str, Plain], path: tuple[str, str]) -> str:
    section = top.get(path[0])
    value = section.get(path[1]) if isinstance(section, Mapping) else None
    return value if isinstance(value, str) else ""


def _start_of(top: Mapping[str, Plain], topic: str) -> Plain:
    """Return where a topic begins: at its first record, unless the file has an offset."""
    section = top.get("source")
    start = section.get("start") if isinstance(section, Mapping) else None
    if not isinstance(start, Mapping):
        return start
    return {topic: start[topic]} if topic in start else None
