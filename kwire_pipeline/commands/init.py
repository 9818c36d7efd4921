"""The command `init`: a pipeline's first file, with comments, to be edited."""

import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final

import yaml

from kwire_pipeline.config.declare import Plain, own_keys
from kwire_pipeline.config.document import Document
from kwire_pipeline.config.load import Flag, build, overlay_flags
from kwire_pipeline.config.model import Pipeline
from kwire_pipeline.errors import Refusal

HEAD: Final = """\
# A pipeline: topics into one table. docs/pipeline.md lists all keys, and
# `kwire-pipeline check {file}` says what is wrong. Passwords come from the environment: ${{NAME}}.
"""


def init(file: str, flags: Sequence[Flag]) -> int:
    """Write a file that does not exist yet; raise Refusal if it does, or if a flag is wrong."""
    path = Path(file)
    # A variable stays one in the file: two dollars are a dollar.
    verbatim = [Flag(flag.key, flag.text.replace("${", "$${")) for flag in flags]
    values = overlay_flags(template(path.stem), verbatim, {})
    text = render(path.name, values)
    build(Document(file, values, {}))
    try:
        with path.open("x", encoding="utf-8") as output:
            output.write(text)
    except FileExistsError:
        raise Refusal(f"{file} is there already: choose another name, or edit it") from None
    except OSError as error:
        raise Refusal(f"{file} cannot be written: {error.strerror}") from None
    return 0


def template(stem: str) -> dict[str, Plain]:
    """Return the keys of a first file; the topic and the table have the file's name."""
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
    """Return the text of a file: each key with its meaning before it."""
    own = own_keys(Pipeline)
    lines = [HEAD.format(file=file)]
    for name, value in values.items():
        meaning = own[name].meaning
        if name == "value" and isinstance(value, Mapping) and "schema" not in value:
            meaning += (
                '\n# Add schema: "id BIGINT NOT NULL, name STRING, at TIMESTAMP", or the first run '
                "infers it and pins it."
            )
        is_section = not isinstance(value, str)
        entry = yaml.safe_dump(
            {name: value},
            sort_keys=False,
            default_flow_style=None if is_section else False,
            width=100,
        )
        lines.append(f"# {meaning}\n{entry}")
    return "\n".join(lines)
