"""The declaration of keys: a field of an attrs class, with its type, default and meaning.

A declaration is one call in a class body: ``name: str = text("The pipeline's name.")``. It returns
an attrs field, so the model needs no second list of keys; `keys` walks the classes and returns the
table from which the loader, the flags and the reference are built.

Rules of this file: a reader turns a plain value (text, list or mapping) into the model's value, and
raises ValueError with a text that says what it expects. Keys without a default are required.
"""

import datetime
import enum
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Final, TypeAlias, TypeVar

import attrs

T = TypeVar("T")
E = TypeVar("E", bound=enum.Enum)
Plain: TypeAlias = "str | Sequence[Plain] | Mapping[str, Plain] | None"
"""A value before its key gives it a type; a scalar is the text in the file."""
Reader: TypeAlias = Callable[[Plain], object]

METADATA: Final = "kwire_pipeline.key"


class Secret(str):
    """A text from the environment, or a password: passed to Spark but hidden in a repr."""

    __slots__ = ()

    def __repr__(self) -> str:
        return "'***'"


@attrs.frozen(kw_only=True)
class Key:
    """One key of the file."""

    name: str = ""
    """The path from the top of the file, separated by dots: ``source.bootstrap``."""
    kind: str
    """The type as the reference shows it: ``text``, ``list of text``, ``earliest | latest``."""
    meaning: str
    """One sentence."""
    default: str | None = None
    """The default as it would be written in the file; None if there is none."""
    required: bool = False
    secret: bool = False
    """True if the value is always hidden, wherever it came from."""
    is_public: bool = False
    """True if the value is shown although it came from the environment: a name or an address."""
    read: Reader
    section: type | None = None
    """The class of a section, whose own keys follow this one."""
    sections: type | None = None
    """The section class of a mapping from user-chosen names to sections."""
    collects: type[list[str]] | type[dict[str, str]] | None = None
    """The collection to which each use of the key's flag adds; None if the flag does not repeat."""
    may_be_file: bool = False
    """True if ``@FILE`` means the text of a file."""
    values: tuple[str, ...] = ()
    """All values, if the key is a choice."""


# How fields are declared -----------------------------------------------------------------------
def text(meaning: str, *, default: str | None = None, is_public: bool = False) -> str:
    """Declare a text; it is required unless it has a default."""
    key = Key(
        kind="text",
        meaning=meaning,
        read=read_text,
        default=default,
        required=default is None,
        is_public=is_public,
    )
    return _field_without_default(key, str) if default is None else _field(key, default)


def optional_text(
    meaning: str, *, secret: bool = False, may_be_file: bool = False, is_public: bool = False
) -> str | None:
    """Declare a text that may be absent."""
    key = Key(
        kind="text",
        meaning=meaning,
        read=read_secret if secret else read_text,
        secret=secret,
        may_be_file=may_be_file,
        is_public=is_public,
    )
    hide = attrs.converters.optional(Secret) if secret else None
    field: str | None = attrs.field(default=None, converter=hide, metadata={METADATA: key})
    return field


def boolean(meaning: str, *, default: bool) -> bool:
    """Declare a boolean."""
    shown = "true" if default else "false"
    key = Key(
        kind="boolean", meaning=meaning, read=read_boolean, default=shown, values=("true", "false")
    )
    return _field(key, default)


def integer(meaning: str, *, default: int, low: int = 0, high: int = (1 << 63) - 1) -> int:
    """Declare a whole number from ``low`` to ``high``."""
    key = Key(kind="integer", meaning=meaning, read=whole(low, high), default=str(default))
    return _field(key, default)


def optional_integer(meaning: str, *, low: int = 0, high: int = (1 << 63) - 1) -> int | None:
    """Declare a whole number that may be absent."""
    return _field(Key(kind="integer", meaning=meaning, read=whole(low, high)), None)


def share(meaning: str, *, default: float) -> float:
    """Declare a number from 0 to 1."""
    key = Key(kind="number, 0 to 1", meaning=meaning, read=read_share, default=f"{default:g}")
    return _field(key, default)


def duration(meaning: str, *, default: str) -> datetime.timedelta:
    """Declare a length of time, such as ``30 seconds``."""
    key = Key(kind="duration", meaning=meaning, read=read_duration, default=default)
    return _field(key, read_duration(default))


def optional_duration(meaning: str) -> datetime.timedelta | None:
    """Declare a length of time that may be absent."""
    return _field(Key(kind="duration", meaning=meaning, read=read_duration), None)


def choice(meaning: str, *, default: E) -> E:
    """Declare a key whose value is one of an enum's values."""
    members = type(default)
    values = tuple(str(member.value) for member in members)
    key = Key(
        kind=" | ".join(values),
        meaning=meaning,
        read=one_of(members),
        default=str(default.value),
        values=values,
    )
    return _field(key, default)


def texts(meaning: str, *, is_public: bool = False) -> tuple[str, ...]:
    """Declare a list of strings, empty by default."""
    key = Key(
        kind="list of text",
        meaning=meaning,
        read=each(read_text),
        default="[]",
        collects=list,
        is_public=is_public,
    )
    return _field(key, ())


def parsed_texts(meaning: str, kind: str, read: Callable[[str], T]) -> tuple[T, ...]:
    """Declare a list of strings with a grammar, empty by default."""
    key = Key(
        kind=f"list of {kind}",
        meaning=meaning,
        read=each(lambda value: read(read_text(value))),
        default="[]",
        collects=list,
    )
    return _field(key, ())


def mapping(meaning: str) -> Mapping[str, str]:
    """Declare a mapping from text to text, empty by default; values of secret names are hidden."""
    key = Key(kind="mapping", meaning=meaning, read=read_options, default="{}", collects=dict)
    return _empty_mapping(key)


def parsed_mapping(meaning: str, kind: str, read: Callable[[str], T]) -> Mapping[str, T]:
    """Declare a mapping from strings to strings with a grammar, empty by default."""
    key = Key(
        kind=f"mapping to {kind}",
        meaning=meaning,
        read=entries(lambda value: read(read_text(value))),
        default="{}",
        collects=dict,
    )
    return _empty_mapping(key)


def special(meaning: str, kind: str, read: Callable[[Plain], T], *, default: str) -> T:
    """Declare a value with its own form."""
    key = Key(kind=kind, meaning=meaning, read=read, default=default)
    return _field(key, read(default))


def section(cls: type[T], meaning: str) -> T:
    """Declare a section; it is required if one of its keys is."""
    key = Key(kind="section", meaning=meaning, read=read_section, section=cls)
    if any(inner.required for inner in keys(cls)):
        return _field_without_default(attrs.evolve(key, required=True), cls)
    field: T = attrs.field(factory=cls, metadata={METADATA: key})
    return field


def named_sections(cls: type[T], meaning: str) -> Mapping[str, T]:
    """Declare a mapping from user-chosen names to sections, empty by default."""
    key = Key(
        kind="mapping to sections", meaning=meaning, read=read_section, default="{}", sections=cls
    )
    return _empty_mapping(key)


def _field(key: Key, default: T) -> T:
    return attrs.field(default=default, metadata={METADATA: key})


def _field_without_default(key: Key, _cls: type[T]) -> T:
    field: T = attrs.field(metadata={METADATA: key})
    return field


def _empty_mapping(key: Key) -> Mapping[str, T]:
    field: Mapping[str, T] = attrs.field(factory=dict, metadata={METADATA: key})
    return field


# The table of keys -----------------------------------------------------------------------------
def own_keys(cls: type) -> dict[str, Key]:
    """Return the keys of one section by their field names, which are their own names."""
    return {
        field.name: field.metadata[METADATA]
        for field in attrs.fields(cls)
        if METADATA in field.metadata
    }


def keys(cls: type, prefix: str = "") -> Iterator[Key]:
    """Yield all keys in and below a section in file order, each with its path."""
    for name, key in own_keys(cls).items():
        path = f"{prefix}{name}"
        yield attrs.evolve(key, name=path)
        if key.section is not None:
            yield from keys(key.section, f"{path}.")
        if key.sections is not None:
            yield from keys(key.sections, f"{path}.NAME.")


# Readers ---------------------------------------------------------------------------------------
def read_text(value: Plain) -> str:
    if isinstance(value, str) and value.strip():
        return value
    raise ValueError(f"expected text, not {_shape(value)}")


def read_secret(value: Plain) -> Secret:
    return Secret(read_text(value))


def read_boolean(value: Plain) -> bool:
    if value not in ("true", "false"):
        raise ValueError(f"expected true or false, not {_shape(value)}")
    return value == "true"


def read_share(value: Plain) -> float:
    try:
        number = float(read_text(value))
    except ValueError:
        number = -1
    if not 0 <= number <= 1:
        raise ValueError(f"expected a number from 0 to 1, not {_shape(value)}")
    return number


def whole(low: int, high: int) -> Callable[[Plain], int]:
    """Return a reader of whole numbers from ``low`` to ``high``, such as 1_000."""

    def read(value: Plain) -> int:
        if not isinstance(value, str) or not re.fullmatch(r"-?[0-9]+(_[0-9]+)*", value):
            raise ValueError(f"expected a whole number, not {_shape(value)}")
        number = int(value)
        if not low <= number <= high:
            bounds = f"of at least {low}" if number < low else f"of at most {high}"
            raise ValueError(f"expected a whole number {bounds}, not {_shape(value)}")
        return number

    return read


def one_of(members: type[E]) -> Callable[[Plain], E]:
    """Return a reader of an enum's values."""

    def read(value: Plain) -> E:
        try:
            return members(value)
        except ValueError:
            values = [str(member.value) for member in members]
            raise ValueError(f"expected {choices(values)}, not {_shape(value)}") from None

    return read


UNITS_MS: Final = {
    **dict.fromkeys(("ms", "millisecond", "milliseconds"), 1),
    **dict.fromkeys(("s", "second", "seconds"), 1000),
    **dict.fromkeys(("min", "minute", "minutes"), 60_000),
    **dict.fromkeys(("h", "hour", "hours"), 3_600_000),
    **dict.fromkeys(("d", "day", "days"), 86_400_000),
}


MAX_DURATION_DAYS: Final = 36_500
"""A hundred years, so that any time this far back is still a valid calendar date."""


def read_duration(value: Plain) -> datetime.timedelta:
    match = re.fullmatch(r"\s*([0-9]+)\s*([a-z]+)\s*", value) if isinstance(value, str) else None
    if match is None or match[2] not in UNITS_MS:
        raise ValueError(f"expected a duration such as 30 seconds, not {_shape(value)}")
    duration_ms = int(match[1]) * UNITS_MS[match[2]]
    if duration_ms > MAX_DURATION_DAYS * UNITS_MS["days"]:
        raise ValueError(f"expected at most {MAX_DURATION_DAYS} days, not {_shape(value)}")
    return datetime.timedelta(milliseconds=duration_ms)


def read_section(value: Plain) -> Mapping[str, Plain]:
    if isinstance(value, Mapping):
        return value
    raise ValueError(f"expected keys and values, not {_shape(value)}")


def each(read: Callable[[Plain], T]) -> Callable[[Plain], tuple[T, ...]]:
    """Return a reader of lists whose items ``read`` reads; a single text is a list of one."""

    def read_items(value: Plain) -> tuple[T, ...]:
        if isinstance(value, str):
            return (read(value),)
        if value is None or isinstance(value, Mapping):
            raise ValueError(f"expected a list, not {_shape(value)}")
        return tuple(map(read, value))

    return read_items


def entries(read: Callable[[Plain], T]) -> Callable[[Plain], dict[str, T]]:
    """Return a reader of mappings whose values ``read`` reads."""

    def read_entries(value: Plain) -> dict[str, T]:
        entries = {}
        for name, plain in read_section(value).items():
            try:
                entries[name] = read(plain)
            except ValueError as error:
                raise ValueError(f"{name}: {error}") from None
        return entries

    return read_entries


SECRET_WORDS: Final = (
    r"secret|passw(?:or)?d|token|credentials?|authorization|jaas[._-]?config"
    r"|(?:access|account|api|private|shared|encryption|decryption|sse)[._-]?key"
)
SECRET_NAME: Final = re.compile(rf"(?:{SECRET_WORDS})$", re.IGNORECASE)
SECRET_PART: Final = re.compile(SECRET_WORDS, re.IGNORECASE)
PLACE_NAME: Final = re.compile(
    r"(?:provider|class|impl|type|path|file|location|ur[il]|endpoint)$", re.IGNORECASE
)
"""The end of names such as ``aws.credentials.provider``, which only say where a secret is."""
PLAIN_VALUE: Final = re.compile(r"true|false|[0-9.]+ ?[a-z]*", re.IGNORECASE)
"""A switch, number or duration, as in ``token.refresh.enabled: true``."""


def is_secret(name: str, value: str) -> bool:
    """Return whether a library's option contains a secret, judging by its name."""
    if SECRET_NAME.search(name):
        return True
    is_about_secret = PLACE_NAME.search(name) or PLAIN_VALUE.fullmatch(value)
    return SECRET_PART.search(name) is not None and not is_about_secret


def read_option(value: Plain) -> str:
    """Return the value of a library's option; an empty value may turn the option off."""
    if isinstance(value, str):
        return value
    raise ValueError(f"expected text, not {_shape(value)}")


def read_options(value: Plain) -> dict[str, str]:
    options = entries(read_option)(value)
    return {name: Secret(t) if is_secret(name, t) else t for name, t in options.items()}


def reveal(values: Mapping[str, Plain], cls: type) -> dict[str, Plain]:
    """Return a section's values, with `Secret` removed from the values of public keys."""
    own = own_keys(cls)
    return {name: _reveal(value, own.get(name)) for name, value in values.items()}


def _reveal(value: Plain, key: Key | None) -> Plain:
    if key is not None and key.section is not None and isinstance(value, Mapping):
        return reveal(value, key.section)
    if key is None or not key.is_public:
        return value
    if isinstance(value, str):
        return str(value)
    return [_reveal(item, key) for item in value] if isinstance(value, list) else value


def choices(values: Sequence[str]) -> str:
    """Return ``a, b or c``."""
    return " or ".join(filter(None, (", ".join(values[:-1]), values[-1])))


def _shape(value: Plain) -> str:
    """Describe a value for an error message; a secret is not shown."""
    match value:
        case Secret():
            return "this secret"
        case None:
            return "an empty value"
        case str():
            return repr(value)
        case Mapping():
            return "a mapping"
    return "a list"
