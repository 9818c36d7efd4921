"""The declaration of settings: typed tables under Kafka's own names.

A table is a class body with one line per setting: ``log_segment_bytes = integer(1 << 30, …)``. The
property's name is the attribute's with dots. The same line parses ``server.properties``, answers
DescribeConfigs, checks AlterConfigs and is printed in ``docs/configuration.md``.

Rules: a config object never changes, so after its first use, a setting is a plain attribute;
changing a setting requires a new object. An error is one line that names the setting. Kafka's tools
show these errors to people, so they use Kafka's words.
"""

import enum
import re
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from typing import Any, Final, Generic, Self, TypeAlias, TypedDict, TypeVar, Unpack, cast, overload

from kwire.types import BLANKS

T = TypeVar("T")
T_co = TypeVar("T_co", covariant=True)
Value: TypeAlias = bool | int | float | str | tuple[str, ...]
"""The parsed value of a property's text."""
# Any: a check takes the values of its own setting; a table has settings of all types.
Check: TypeAlias = Callable[[Any], str | None]
"""Returns the error text for an invalid parsed value; None for a valid value."""

LONG_MAX: Final = (1 << 63) - 1
INT_MAX: Final = (1 << 31) - 1


class ConfigError(ValueError):
    """A setting that is unreadable, out of bounds, or asks for an unavailable feature."""


class BadValue(ConfigError):
    """An invalid value of a setting, with the message that Kafka's tools show."""

    def __init__(self, key: "Key[object]", text: str, message: str) -> None:
        super().__init__(message)
        self.key = key
        self.text = text


class Kind(enum.IntEnum):
    """The type of a value; the numbers are those in DescribeConfigs."""

    BOOLEAN = 1
    STRING = 2
    INT = 3
    SHORT = 4
    LONG = 5
    DOUBLE = 6
    LIST = 7
    CLASS = 8
    PASSWORD = 9


class Scope(enum.Enum):
    """The level at which a broker setting can be changed at run time, if it can."""

    READ_ONLY = "read-only"
    PER_BROKER = "per-broker"
    CLUSTER_WIDE = "cluster-wide"


class Key(Generic[T_co]):
    """One setting, read as an attribute of the config: ``config.log_segment_bytes``."""

    __slots__ = (
        "attribute",
        "check",
        "choices",
        "default",
        "doc",
        "effective",
        "filled",
        "high",
        "internal",
        "kind",
        "low",
        "name",
        "repeats",
        "scope",
    )

    def __init__(
        self,
        kind: Kind,
        default: T_co,
        doc: str,
        *,
        name: str = "",
        low: float | None = None,
        high: float | None = None,
        choices: Sequence[str] = (),
        check: Check | None = None,
        scope: Scope = Scope.READ_ONLY,
        effective: bool = True,
        internal: bool = False,
        filled: bool = False,
        repeats: bool = False,
    ) -> None:
        self.kind = kind
        self.default = default
        self.doc = doc
        self.name = name
        self.attribute = ""
        self.low = low
        self.high = high
        self.choices = choices
        self.check = check
        self.scope = scope
        self.effective = effective
        self.internal = internal
        """True if the setting works but DescribeConfigs does not show it."""
        self.filled = filled
        """True if a list must have at least one value."""
        self.repeats = repeats
        """True if a list keeps duplicate values; other lists keep each value once."""

    def __set_name__(self, owner: type, attribute: str) -> None:
        self.attribute = attribute
        self.name = self.name or attribute.replace("_", ".")

    @overload
    def __get__(self, owner: None, cls: type) -> Self: ...
    @overload
    def __get__(self, owner: "Config", cls: type) -> T_co: ...
    def __get__(self, owner: "Config | None", cls: type) -> Self | T_co:
        if owner is None:
            return self
        value: T_co = owner.value(self)
        owner.__dict__[self.attribute] = value
        return value

    @property
    def sensitive(self) -> bool:
        """True if the value must never be shown."""
        return self.kind is Kind.PASSWORD

    def parse(self, text: str) -> T_co:
        """Return the value that a text stands for; raise ConfigError if it is invalid."""
        try:
            value = _PARSERS[self.kind](text.strip(BLANKS))
        except ValueError as error:
            raise BadValue(self, text, self._wrong(text, str(error))) from None
        if isinstance(value, tuple) and not self.repeats:
            value = self._distinct(text, value)
        if (wrong := self._judge(value)) is not None:
            raise BadValue(self, text, self._wrong(text, wrong))
        return cast(T_co, value)

    def parse_stored(self, text: str) -> T_co:
        """Return the value of a text that is already in the metadata log.

        Another release may have accepted it: a number outside the bounds becomes the nearest bound.
        Raises BadValue if that is not possible.
        """
        try:
            return self.parse(text)
        except BadValue:
            near = self._nearest(text)
            if near is None:
                raise
            return near

    def parse_at_run_time(self, text: str, *, is_for_all: bool) -> T_co:
        """Return the value of a text that was set at run time, for all brokers or for one.

        Raises ConfigError also for settings that only the file may set, or that only one broker may
        have: an Apache Kafka controller stores whatever it is sent, and no broker may then change
        its number, for example.
        """
        if self.scope is Scope.READ_ONLY:
            raise ConfigError(f"{self.name} can only be set in the file")
        if is_for_all and self.scope is Scope.PER_BROKER:
            raise ConfigError(f"{self.name} can only be set for one broker")
        return self.parse(text)

    def _nearest(self, text: str) -> T_co | None:
        try:
            value = _PARSERS[self.kind](text.strip(BLANKS))
        except ValueError:
            return None
        if isinstance(value, bool) or not isinstance(value, int | float):
            return None
        if self.low is not None:
            value = max(value, self.low)
        if self.high is not None:
            value = min(value, self.high)
        return None if self._judge(value) is not None else cast(T_co, value)

    def _distinct(self, text: str, values: tuple[str, ...]) -> tuple[str, ...]:
        """Return the values in order without duplicates, as Kafka does; reject empty values."""
        if not values and self.filled:
            meant = f"[{', '.join(self.choices)}]" if self.choices else "any non-empty value"
            why = f"must not be empty. Valid values include: {meant}"
            raise BadValue(self, text, f"Configuration '{self.name}' {why}")
        if not all(values):
            why = "values must not be empty."
            raise BadValue(self, text, f"Configuration '{self.name}' {why}")
        return tuple(dict.fromkeys(values))

    def text(self, value: object) -> str | None:
        """Return a value's text as displayed and as written in files."""
        if value is None:
            return None
        if isinstance(value, bool):
            return "true" if value else "false"
        if isinstance(value, tuple):
            return ",".join(map(str, value))
        if isinstance(value, float):
            return _JAVA_DOUBLES.get(value) or str(value)
        return str(value)

    def _wrong(self, text: str, why: str) -> str:
        shown = "[hidden]" if self.sensitive else text
        return f"Invalid value {shown} for configuration {self.name}: {why}"

    def _judge(self, value: Value) -> str | None:
        if isinstance(value, int | float):
            if self.low is not None and value < self.low:
                return f"Value must be at least {self.low}"
            if self.high is not None and value > self.high:
                return f"Value must be no more than {self.high}"
        if self.choices:
            for item in value if isinstance(value, tuple) else (value,):
                if item not in self.choices:
                    return f"String must be one of: {', '.join(self.choices)}"
        return self.check(value) if self.check is not None else None


_JAVA_DOUBLES: Final = {1.7976931348623157e308: "1.7976931348623157E308"}


def _parse_boolean(text: str) -> bool:
    lowered = text.lower()
    if lowered not in ("true", "false"):
        raise ValueError("Expected value to be either true or false")
    return lowered == "true"


def _parse_whole(kind: Kind, bits: int) -> Callable[[str], int]:
    def parse(text: str) -> int:
        digits = text[1:] if text[:1] in ("-", "+") else text
        if digits.isascii() and digits.isdigit():
            value = int(text)
            if -(1 << (bits - 1)) <= value < 1 << (bits - 1):
                return value
        raise ValueError(f"Not a number of type {kind.name}")

    return parse


_JAVA_DOUBLE: Final = re.compile(
    r"([+-]?(?:NaN|Infinity))|([+-]?(?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:[eE][+-]?[0-9]+)?)[fFdD]?"
)


def _parse_double(text: str) -> float:
    """Return the number of a text that Java's Double.parseDouble accepts, in decimal."""
    match = _JAVA_DOUBLE.fullmatch(text)
    if match is None:
        raise ValueError("Not a number of type DOUBLE")
    return float(match[1] or match[2])


def _parse_list(text: str) -> tuple[str, ...]:
    return tuple(part.strip(BLANKS) for part in text.split(",")) if text else ()


_PARSERS: Final[dict[Kind, Callable[[str], Value]]] = {
    Kind.BOOLEAN: _parse_boolean,
    Kind.STRING: str,
    Kind.INT: _parse_whole(Kind.INT, 32),
    Kind.SHORT: _parse_whole(Kind.SHORT, 16),
    Kind.LONG: _parse_whole(Kind.LONG, 64),
    Kind.DOUBLE: _parse_double,
    Kind.LIST: _parse_list,
    Kind.CLASS: str,
    Kind.PASSWORD: str,
}


class Config:
    """The values of one table: the given values, and the table's defaults for the rest."""

    def __init__(self, texts: Mapping[str, str], *, stored: bool = False) -> None:
        """``stored``: the values come from the metadata log, and invalid ones are dropped."""
        keys = self.keys()
        self._values: dict[str, object] = {}
        for name, text in texts.items():
            if name in keys:
                if not stored:
                    self._values[name] = keys[name].parse(text)
                else:
                    with suppress(BadValue):
                        self._values[name] = keys[name].parse_stored(text)

    @classmethod
    def keys(cls) -> dict[str, Key[object]]:
        """Return the settings of the table and of the tables that it extends, by property name."""
        keys: dict[str, Key[object]] | None = cls.__dict__.get("_keys")
        if keys is None:
            tables = [vars(each) for each in reversed(cls.__mro__)]
            keys = {k.name: k for table in tables for k in table.values() if isinstance(k, Key)}
            cls._keys = keys  # type: ignore[attr-defined]
        return keys

    def value(self, key: Key[T]) -> T:
        """Return the effective value."""
        value = self._values.get(key.name, _MISSING)
        return self.fallback(key) if value is _MISSING else cast(T, value)

    def integer(self, name: str) -> int:
        """Return the effective value of a setting that is a whole number."""
        value = self.value(self.keys()[name])
        assert isinstance(value, int), name
        return value

    def fallback(self, key: Key[T]) -> T:
        """Return the value of a setting that was not given."""
        return key.default

    def is_set(self, name: str) -> bool:
        """Return whether the setting was given a value."""
        return name in self._values


_MISSING: Final = object()


class Options(TypedDict, total=False):
    """The optional arguments of a :class:`Key`."""

    name: str
    low: float | None
    high: float | None
    choices: Sequence[str]
    check: Check | None
    scope: Scope
    effective: bool
    internal: bool
    filled: bool
    repeats: bool


def integer(
    default: int, doc: str = "", *, kind: Kind = Kind.INT, **more: Unpack[Options]
) -> Key[int]:
    """Declare an integer setting, of 32 bits unless ``kind`` says otherwise."""
    return Key(kind, default, doc, **more)


def long(default: int, doc: str = "", **more: Unpack[Options]) -> Key[int]:
    """Declare a 64-bit integer setting."""
    return Key(Kind.LONG, default, doc, **more)


def optional_integer(
    doc: str = "", *, kind: Kind = Kind.INT, **more: Unpack[Options]
) -> Key[int | None]:
    """Declare a whole number that may be unset."""
    return Key(kind, None, doc, **more)


def double(default: float, doc: str = "", **more: Unpack[Options]) -> Key[float]:
    """Declare a floating-point number."""
    return Key(Kind.DOUBLE, default, doc, **more)


def boolean(default: bool, doc: str = "", **more: Unpack[Options]) -> Key[bool]:
    """Declare a boolean."""
    return Key(Kind.BOOLEAN, default, doc, **more)


def string(
    default: str, doc: str = "", *, kind: Kind = Kind.STRING, **more: Unpack[Options]
) -> Key[str]:
    """Declare a string."""
    return Key(kind, default, doc, **more)


def optional_string(
    doc: str = "", *, kind: Kind = Kind.STRING, **more: Unpack[Options]
) -> Key[str | None]:
    """Declare a string that may be unset."""
    return Key(kind, None, doc, **more)


def strings(
    default: tuple[str, ...], doc: str = "", **more: Unpack[Options]
) -> Key[tuple[str, ...]]:
    """Declare a comma-separated list."""
    return Key(Kind.LIST, default, doc, **more)


def optional_strings(doc: str = "", **more: Unpack[Options]) -> Key[tuple[str, ...] | None]:
    """Declare a list that may be unset."""
    return Key(Kind.LIST, None, doc, **more)
