"""A pipeline's configuration from its file and from flags.

Rules of this file: a flag takes precedence over the file's value; an error names the file, the line
and the key, or the flag, and shows no secret; all problems of a file are reported together.
"""

import difflib
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path as FilePath
from typing import Final, TypeVar

import attrs
import yaml

from kwire_pipeline.config.declare import (
    Key,
    Plain,
    Secret,
    choices,
    keys,
    own_keys,
    read_section,
    reveal,
)
from kwire_pipeline.config.document import (
    ConfigError,
    Document,
    Path,
    interpolate,
    overlay,
    read_document,
    texts_of,
)
from kwire_pipeline.config.model import Pipeline, Problem
from kwire_pipeline.config.rules import problems
from kwire_pipeline.config.secrets import redact

T = TypeVar("T")


@attrs.frozen
class Flag:
    """A key of the file as a command-line flag."""

    key: str
    """The path: ``source.bootstrap``."""
    text: str


def load(file: str, flags: Sequence[Flag], environment: Mapping[str, str]) -> Pipeline:
    """Read a pipeline's file; raise ConfigError with every problem, one per line."""
    return build(read_file(file, environment), flags, environment)


def read_file(file: str, environment: Mapping[str, str]) -> Document:
    """Read the values of a file; raise ConfigError if it is not YAML."""
    try:
        text = FilePath(file).read_text(encoding="utf-8")
    except OSError as error:
        raise ConfigError(f"{file}: cannot be read: {error.strerror}") from None
    except UnicodeDecodeError:
        raise ConfigError(f"{file}: not YAML: it is not UTF-8") from None
    return read_document(file, text, environment)


def build(
    document: Document, flags: Sequence[Flag] = (), environment: Mapping[str, str] | None = None
) -> Pipeline:
    """Return the configuration of a document, overridden by flags."""
    top = overlay_flags(document.top, flags, environment or {})
    return build_values(attrs.evolve(document, top=top), flags)


def build_values(
    document: Document,
    flags: Sequence[Flag] = (),
    find: Callable[[Pipeline], Iterable[Problem]] = problems,
) -> Pipeline:
    """Return the configuration of a document that already has the values of the flags."""
    top = reveal(document.top, Pipeline)
    paths = {_path(flag.key) for flag in flags}
    builder = _Builder(FilePath(document.name).parent)
    pipeline = builder.section(Pipeline, top, ())
    errors = list(builder.errors)
    if pipeline is not None:
        errors = [(_path(key), text) for key, text in find(pipeline)]
    if pipeline is None or errors:
        secrets = frozenset(t for t in texts_of(top) if isinstance(t, Secret))
        lines = [
            redact(f"{_place(document, paths, path)}{'.'.join(path)}: {text}", secrets)
            for path, text in errors
        ]
        raise ConfigError("\n".join(dict.fromkeys(lines)))
    return pipeline


def _path(key: str) -> Path:
    return tuple(key.split("."))


def _place(document: Document, flags: set[Path], path: Path) -> str:
    """Return the beginning of an error: two hyphens for a flag, else the file and the line."""
    return "--" if path in flags else f"{document.place(path)}: "


# Flags -----------------------------------------------------------------------------------------
TABLE: Final = {key.name: key for key in keys(Pipeline)}


def find_key(path: str) -> Key | None:
    """Return the key at a path; any name matches an entry in a mapping of sections."""
    if path in TABLE:
        return TABLE[path]
    for name, key in TABLE.items():
        head, middle, tail = name.partition(".NAME.")
        parts = path.split(".")
        depth = head.count(".") + 1
        if middle and ".".join(parts[:depth]) == head and ".".join(parts[depth + 1 :]) == tail:
            return key
    return None


def overlay_flags(
    top: Mapping[str, Plain], flags: Sequence[Flag], environment: Mapping[str, str]
) -> dict[str, Plain]:
    """Return the file's values, overridden by those of the flags."""
    values = dict(top)
    paths: set[Path] = set()
    for flag in flags:
        path = _path(flag.key)
        values = _with_flag(values, flag, environment, is_first=path not in paths)
        paths.add(path)
    return values


def _with_flag(
    top: Mapping[str, Plain], flag: Flag, environment: Mapping[str, str], *, is_first: bool
) -> dict[str, Plain]:
    """Set a flag's key; repeated list and mapping flags add up, and replace the file's value."""
    key = find_key(flag.key)
    if key is None or key.section is not None or key.sections is not None:
        raise ConfigError(f"--{flag.key}: there is no such key{nearest(flag.key)}")
    try:
        value: Plain = interpolate(flag.text, environment)
    except ValueError as error:
        raise ConfigError(f"--{flag.key}: {error}") from None
    if flag.text[:1] in ("[", "{") and key.kind != "text":
        value = _flow(flag, environment)
    elif key.collects is dict:
        name, sign, text = flag.text.partition("=")
        if not sign:
            raise ConfigError(f"--{flag.key}: expected NAME=VALUE")
        value = {name: interpolate(text, environment)}
    elif key.collects is list:
        value = [value]
    path = _path(flag.key)
    if not is_first:
        value = _join(_value_at(top, path), value)
    return overlay(top, path, value)


def _flow(flag: Flag, environment: Mapping[str, str]) -> Plain:
    """Parse a list or mapping in YAML's flow style; variables' values are not parsed as YAML."""
    try:
        return read_document("flag", f"value: {flag.text}", environment).top["value"]
    except (ConfigError, yaml.YAMLError):
        hint = ', such as {a: "${NAME}"}' if "${" in flag.text else ""
        raise ConfigError(f"--{flag.key}: not a list or mapping in YAML{hint}") from None


def _value_at(top: Plain, path: Path) -> Plain:
    for name in path:
        top = top.get(name) if isinstance(top, Mapping) else None
    return top


def _join(first: Plain, second: Plain) -> Plain:
    if isinstance(first, Mapping) and isinstance(second, Mapping):
        return {**first, **second}
    if isinstance(first, list) and isinstance(second, list):
        return [*first, *second]
    return second


# Sections --------------------------------------------------------------------------------------
class _Builder:
    """The conversion of plain values to sections, which continues after an error."""

    def __init__(self, folder: FilePath) -> None:
        self.folder = folder
        self.errors: list[tuple[Path, str]] = []

    def section(self, cls: type[T], plain: Plain, path: Path) -> T | None:
        """Return a section; None if anything in it is wrong."""
        error_count = len(self.errors)
        try:
            values = read_section(plain)
        except ValueError as error:
            self.errors.append((path, str(error)))
            return None
        own = own_keys(cls)
        for name in (name for name in values if name not in own):
            hint = nearest(".".join((*path, name)), own)
            self.errors.append(((*path, name), f"there is no such key{hint}"))
        arguments = {}
        for name, key in own.items():
            inner = (*path, name)
            if values.get(name) is not None:
                arguments[name] = self.value(key, values[name], inner)
            elif key.section is not None:
                arguments[name] = self.section(key.section, {}, inner)
            elif key.required:
                self.errors.append((inner, "this key is required"))
        return cls(**arguments) if len(self.errors) == error_count else None

    def value(self, key: Key, plain: Plain, path: Path) -> object:
        if key.section is not None:
            return self.section(key.section, plain, path)
        try:
            if key.sections is not None:
                entries = read_section(plain)
                return {
                    name: self.section(key.sections, entry, (*path, name))
                    for name, entry in entries.items()
                }
            if key.may_be_file and isinstance(plain, str) and plain.startswith("@"):
                plain = self.file_text(plain[1:])
            return key.read(plain)
        except ValueError as error:
            self.errors.append((path, str(error)))
            return None

    def file_text(self, name: str) -> str:
        """Return a file's text; its name is relative to the folder of the pipeline's file."""
        try:
            return (self.folder / name).read_text(encoding="utf-8").strip()
        except OSError as error:
            raise ValueError(f"{name} cannot be read: {error.strerror}") from None
        except UnicodeDecodeError:
            raise ValueError(f"{name} is not UTF-8") from None


def nearest(path: str, own: Iterable[str] = ()) -> str:
    """Return ``; did you mean ...?`` with the keys most like a wrong one, or an empty text."""
    section, _, name = path.rpartition(".")
    own = list(own) or [key.rpartition(".")[2] for key in TABLE if _section(key) == section]
    close = difflib.get_close_matches(name, own, n=1, cutoff=0.6)
    if not close:
        own_paths = [key for key in TABLE if ".NAME." not in key]
        close = [key for key in own_paths if key.rpartition(".")[2] == name]
        close = close or difflib.get_close_matches(path, own_paths, n=1, cutoff=0.75)
    if not close and own:
        return f"; {section or 'the file'} has {', '.join(own)}"
    return f"; did you mean {choices(close)}?" if close else ""


def _section(key: str) -> str:
    return key.rpartition(".")[0]
