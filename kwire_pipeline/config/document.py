"""A YAML document as plain values: strings, lists and mappings, each with its line.

Rules of this file: every scalar is kept as written; its key determines its type, so `version: 1.10`
and `country: NO` are taken literally. ``${NAME}`` is the value of an environment variable and makes
its text a `Secret`; ``$${NAME}`` is the text ``${NAME}``. Aliases and duplicate keys are errors.
"""

import re
from collections.abc import Iterable, Mapping
from typing import Final, TypeAlias

import attrs
import yaml

from kwire_pipeline.config.declare import Plain, Secret
from kwire_pipeline.errors import Refusal

Path: TypeAlias = tuple[str, ...]
"""The keys from the top to a value; a list item is identified by its index, from 0."""

VARIABLE: Final = re.compile(r"(\$?)\$\{([^}]*)\}")
NULLS: Final = ("", "~", "null")


class ConfigError(Refusal):
    """An error in the file or a flag: where, which key, and what is expected."""


@attrs.frozen
class Document:
    """The values of a file, with the line of each."""

    name: str
    """The file's name in errors."""
    top: Mapping[str, Plain]
    lines: Mapping[Path, int]
    """The line of each key (not of its value), counted from 1."""

    def place(self, path: Path) -> str:
        """Return FILE:LINE of a value, or of the section that lacks it."""
        while path and path not in self.lines:
            path = path[:-1]
        return f"{self.name}:{self.lines.get(path, 1)}"


def read_document(name: str, text: str, environment: Mapping[str, str]) -> Document:
    """Read a file's text; raise ConfigError with the line unless it is a YAML mapping."""
    try:
        node = yaml.compose(text, Loader=yaml.BaseLoader)
    except yaml.MarkedYAMLError as error:
        line = error.problem_mark.line + 1 if error.problem_mark else 1
        problem = error.problem or error.context
        raise ConfigError(f"{name}:{line}: not YAML: {problem}") from None
    except yaml.YAMLError as error:
        raise ConfigError(f"{name}: not YAML: {' '.join(str(error).split())}") from None
    if not isinstance(node, yaml.MappingNode):
        raise ConfigError(f"{name}:1: expected keys and values, such as `name: orders`")
    reader = _Reader(name, environment)
    top = reader.read_mapping(node, ())
    return Document(name, top, reader.lines)


class _Reader:
    """The conversion of one document's nodes."""

    def __init__(self, name: str, environment: Mapping[str, str]) -> None:
        self.name = name
        self.environment = environment
        self.lines: dict[Path, int] = {}
        self.collections: set[int] = set()

    def read(self, node: yaml.Node, path: Path) -> Plain:
        line = node.start_mark.line + 1
        self.lines.setdefault(path, line)
        if isinstance(node, yaml.ScalarNode):
            if node.style is None and node.value in NULLS:
                return None
            try:
                return interpolate(node.value, self.environment)
            except ValueError as error:
                raise ConfigError(f"{self.name}:{line}: {'.'.join(path)}: {error}") from None
        if isinstance(node, yaml.MappingNode):
            return self.read_mapping(node, path)
        self._enter(node)
        return [self.read(item, (*path, str(index))) for index, item in enumerate(node.value)]

    def read_mapping(self, node: yaml.MappingNode, path: Path) -> dict[str, Plain]:
        self._enter(node)
        values: dict[str, Plain] = {}
        for key, value in node.value:
            line = key.start_mark.line + 1
            if not isinstance(key, yaml.ScalarNode):
                raise ConfigError(f"{self.name}:{line}: a key must be text, not a list or mapping")
            if key.value in values:
                raise ConfigError(f"{self.name}:{line}: {key.value}: this key appears twice")
            self.lines[(*path, key.value)] = line
            values[key.value] = self.read(value, (*path, key.value))
        return values

    def _enter(self, node: yaml.CollectionNode) -> None:
        """Reject a collection that occurs twice: aliases obscure what a key means, and can loop."""
        if id(node) in self.collections:
            line = node.start_mark.line + 1
            raise ConfigError(
                f"{self.name}:{line}: aliases (*name) are not supported: write it out"
            )
        self.collections.add(id(node))


def interpolate(text: str, environment: Mapping[str, str]) -> str:
    """Replace ``${NAME}``; raise ValueError if the environment lacks the name."""
    secret = False

    def replace(match: re.Match[str]) -> str:
        nonlocal secret
        escape, name = match.groups()
        if escape:
            return match[0][1:]
        if name not in environment:
            raise ValueError(f"the environment variable {name} is not set")
        secret = True
        return environment[name]

    replaced = VARIABLE.sub(replace, text)
    return Secret(replaced) if secret else replaced


def overlay(top: Mapping[str, Plain], path: Path, value: Plain) -> dict[str, Plain]:
    """Return a copy of the values with ``value`` at ``path``."""
    head, *rest = path
    if not rest:
        return {**top, head: value}
    below = top.get(head)
    section = below if isinstance(below, Mapping) else {}
    return {**top, head: overlay(section, tuple(rest), value)}


def texts_of(value: Plain) -> Iterable[str]:
    """Yield all strings of a plain value."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, Mapping):
        for item in value.values():
            yield from texts_of(item)
    elif value is not None:
        for item in value:
            yield from texts_of(item)
