"""A configuration as lines of text: every effective key, with secrets hidden."""

import datetime
import enum
import json
from collections.abc import Iterator, Mapping

import attrs

from kwire_pipeline.config.declare import Secret, own_keys
from kwire_pipeline.config.secrets import HIDDEN


def describe(pipeline: object) -> list[str]:
    """Return ``key: value`` for each key in file order, with defaults marked."""
    return list(_lines(pipeline, ""))


def _lines(section: object, prefix: str) -> Iterator[str]:
    cls = type(section)
    if not attrs.has(cls):
        return
    defaults = {field.name: field.default for field in attrs.fields(cls)}
    for name, key in own_keys(cls).items():
        value = getattr(section, name)
        if key.section is not None:
            yield from _lines(value, f"{prefix}{name}.")
        elif key.sections is not None:
            for entry, inner in value.items():
                yield from _lines(inner, f"{prefix}{name}.{entry}.")
        elif value is not None:
            is_default = value == defaults[name] or value in ((), {})
            yield f"{prefix}{name}: {show(value)}{' (default)' if is_default else ''}"


def show(value: object) -> str:
    """Return a value as it could be written in the file."""
    match value:
        case Secret():
            return HIDDEN
        case enum.Enum():
            return str(value.value)
        case bool():
            return "true" if value else "false"
        case datetime.timedelta():
            return f"{value.total_seconds():g} seconds"
        case tuple():
            return f"[{', '.join(map(show, value))}]"
        case Mapping():
            return f"{{{', '.join(f'{name}: {show(item)}' for name, item in value.items())}}}"
        case str():
            return value if "\n" not in value else json.dumps(value)
    return str(value)
