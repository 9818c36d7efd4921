"""The JSON Schema of a pipeline's file, with which editors complete and check keys.

Rules of this file: the schema accepts every file that loads, and rejects unknown keys, missing
required keys and unknown choices. Rules between keys are left to `kwire-pipeline check`. A YAML
parser gives unquoted scalars a type, which kwire-pipeline ignores, so a text may also be a number
or a boolean. Any text may contain ``${NAME}``, and null stands for an absent key.
"""

from typing import Final, TypeAlias

from kwire_pipeline.config.declare import Key, own_keys
from kwire_pipeline.config.model import Pipeline

Schema: TypeAlias = dict[str, object]

DIALECT: Final = "http://json-schema.org/draft-07/schema#"
SCALARS: Final = ["string", "number", "boolean", "null"]
SCALAR: Final[Schema] = {"type": SCALARS}
VARIABLE: Final[Schema] = {"type": "string", "pattern": r"\$\{"}
DIGITS: Final[Schema] = {"type": "string", "pattern": "^[0-9]+(_[0-9]+)*$"}
OF_SCALARS: Final = ("text", "duration", "number, 0 to 1")
"""The kinds of keys whose values are scalars of any type."""


def editor_schema() -> Schema:
    """Return the schema of the whole file."""
    return {"$schema": DIALECT, "title": "kwire-pipeline", **_section(Pipeline)}


def _section(cls: type) -> Schema:
    own = own_keys(cls)
    return {
        "type": "object",
        "properties": {
            name: {"description": key.meaning, **_value(key)} for name, key in own.items()
        },
        "required": [name for name, key in own.items() if key.required],
        "additionalProperties": False,
    }


def _value(key: Key) -> Schema:
    if key.section is not None:
        section = _section(key.section)
        return section if key.required else {**section, "type": ["object", "null"]}
    if key.sections is not None:
        return {"type": ["object", "null"], "additionalProperties": _section(key.sections)}
    if key.collects is list:
        return {"type": [*SCALARS, "array"], "items": SCALAR}
    if key.collects is dict:
        return {"type": ["object", "null"], "additionalProperties": SCALAR}
    default: Schema = {} if key.default is None else {"default": key.default}
    if key.values:
        values = [*key.values, *((True, False) if key.kind == "boolean" else ()), None]
        return {**default, "anyOf": [{"enum": values}, VARIABLE]}
    if key.kind == "integer":
        return {**default, "anyOf": [{"type": ["integer", "null"]}, DIGITS, VARIABLE]}
    # Another form, such as that of `source.start`, is left to `check`.
    return {**default, **(SCALAR if key.kind in OF_SCALARS else {})}
