"""Declares protocol messages: one class per message, one line per field.

A message class is both the Python type handlers use and the table the codec
compiles.  It has no behaviour of its own; :mod:`kwire.codec.compile` turns it
into one encode and one decode function per version.

Rules of the tables:

* Names are Kafka's, in snake case; ``camel`` gives the name Kafka's JSON has.
* A field without a default must be given by whoever builds the message; a field
  that some version lacks always has one, for that is what decoding fills in.
* Structures are nested where they appear on the wire; one used in two places
  stands before the message.
* Every class has ``unknown_tags`` beside its fields: what a newer peer has sent
  as tagged fields, kept as it came and written back.
* A module may bring the old versions of a message to the newest shape and back:
  ``widen_request(request, version)`` before a handler sees it, and
  ``narrow_response(response, version, request)`` after.  A field of no version
  (``""``) is what widening finds out; it never travels.
"""

from collections.abc import Callable
from typing import Annotated, Any, Final, TypeVar, dataclass_transform

import attrs

T = TypeVar("T")

_MAX_VERSION: Final = 32767


@attrs.frozen
class Versions:
    """An inclusive range of versions, written ``"3+"``, ``"0-4"``, ``"2"`` or ``""``."""

    first: int
    last: int

    @classmethod
    def parse(cls, text: str) -> "Versions":
        if not text:
            return cls(1, 0)
        if text.endswith("+"):
            return cls(int(text[:-1]), _MAX_VERSION)
        first, _, last = text.partition("-")
        return cls(int(first), int(last or first))

    def __contains__(self, version: int) -> bool:
        return self.first <= version <= self.last

    def __bool__(self) -> bool:
        return self.first <= self.last


@attrs.frozen
class Wire:
    """How a value travels: a :mod:`struct` code, or a named variable-length form."""

    name: str
    code: str = ""
    default: object = None


ZERO_UUID: Final = bytes(16)

Bool = Annotated[bool, Wire("bool", "?", False)]
Int8 = Annotated[int, Wire("int8", "b", 0)]
Int16 = Annotated[int, Wire("int16", "h", 0)]
UInt16 = Annotated[int, Wire("uint16", "H", 0)]
Int32 = Annotated[int, Wire("int32", "i", 0)]
UInt32 = Annotated[int, Wire("uint32", "I", 0)]
Int64 = Annotated[int, Wire("int64", "q", 0)]
Float64 = Annotated[float, Wire("float64", "d", 0.0)]
Uuid = Annotated[bytes, Wire("uuid", "16s", ZERO_UUID)]
"""Sixteen raw bytes: what travels, what is compared, and what is a dict key."""
String = Annotated[str, Wire("string", default="")]
NullableString = Annotated[str | None, Wire("string", default="")]
Bytes = Annotated[bytes, Wire("bytes", default=b"")]
NullableBytes = Annotated[bytes | None, Wire("bytes", default=b"")]
Records = Annotated[Any, Wire("records", default=None)]
"""Record batches: a memoryview into the received frame, or anything sendable with a length."""
Array = Annotated[list[T], Wire("array")]
NullableArray = Annotated[list[T] | None, Wire("array")]
Nullable = Annotated[T | None, Wire("struct")]
"""A structure that may be null (an int8 marker on the wire)."""


@attrs.frozen
class FieldSpec:
    """What the table says of a field beside its type."""

    versions: Versions
    nullable: Versions
    tag: int | None = None
    tagged: Versions = Versions(1, 0)
    ignorable: bool = False
    compact: bool = True
    """False for the one field that keeps its old form in flexible versions: a client's id."""


def field(
    versions: str,
    *,
    default: Any = attrs.NOTHING,
    factory: Callable[[], Any] | None = None,
    nullable: str = "",
    tag: int | None = None,
    tagged: str = "",
    ignorable: bool = False,
    compact: bool = True,
) -> Any:
    """Describe one field.

    ``versions`` carry it, in ``nullable`` ones it may be null, in ``tagged`` ones (all, if
    empty and a ``tag`` is given) it travels as that tag.  An ``ignorable`` value is dropped
    when the version lacks the field; any other value but the default is then an error.
    """
    carried = Versions.parse(versions)
    spec = FieldSpec(
        versions=carried,
        nullable=Versions.parse(nullable),
        tag=tag,
        tagged=Versions.parse(tagged) if tagged or tag is None else carried,
        ignorable=ignorable,
        compact=compact,
    )
    if factory is not None:
        default = attrs.Factory(factory)
    return attrs.field(default=default, metadata={"kwire": spec})


@attrs.frozen
class MessageSpec:
    """What the table says of a whole message."""

    versions: Versions
    flexible: Versions
    api_key: int | None = None
    record_type: int | None = None
    unstable: Versions = Versions(1, 0)


def spec_of(cls: type) -> MessageSpec:
    """The message's own line of the table."""
    spec: MessageSpec = cls.__kwire__  # type: ignore[attr-defined]
    return spec


def camel(name: str) -> str:
    """The name Kafka's JSON gives a field: ``throttle_time_ms`` is ``throttleTimeMs``."""
    first, *rest = name.split("_")
    return first + "".join(part[:1].upper() + part[1:] for part in rest)


Tags = tuple[tuple[int, bytes], ...]
"""Tagged fields that the table does not know, as they came: number and content."""


def _equal(self: Any, other: Any) -> bool:
    if other.__class__ is not self.__class__:
        return False
    return all(getattr(self, name) == getattr(other, name) for name in self.__slots__)


def _text(self: Any) -> str:
    shown = ((name, getattr(self, name)) for name in self.__slots__)
    fields = (f"{name}={value!r}" for name, value in shown if name != "unknown_tags" or value)
    return f"{type(self).__qualname__}({', '.join(fields)})"


def _define(cls: type[T]) -> type[T]:
    """Make the class, with a place for tags it does not know; equal only if these are, too.

    Comparing and showing are shared by all classes: attrs would write and compile both for each,
    which took half of the time that importing a message module takes (16 ms for 30 records).
    """
    cls.__annotations__["unknown_tags"] = Tags
    cls.unknown_tags = attrs.field(default=())  # type: ignore[attr-defined]
    cls.__eq__ = _equal  # type: ignore[method-assign]
    cls.__hash__ = None  # type: ignore[assignment]
    cls.__repr__ = _text  # type: ignore[method-assign]
    return attrs.define(cls, kw_only=True, weakref_slot=False)


@dataclass_transform(kw_only_default=True, field_specifiers=(field,))
def message(
    *,
    versions: str,
    flexible: str = "",
    api_key: int | None = None,
    record_type: int | None = None,
    unstable: str = "",
) -> Callable[[type[T]], type[T]]:
    """Make a class a protocol message."""

    def decorate(cls: type[T]) -> type[T]:
        made = _define(cls)
        made.__kwire__ = MessageSpec(  # type: ignore[attr-defined]
            versions=Versions.parse(versions),
            flexible=Versions.parse(flexible),
            api_key=api_key,
            record_type=record_type,
            unstable=Versions.parse(unstable),
        )
        return made

    return decorate


@dataclass_transform(kw_only_default=True, field_specifiers=(field,))
def struct(cls: type[T]) -> type[T]:
    """Make a class a structure nested in a message."""
    return _define(cls)
