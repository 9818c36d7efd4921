"""Declares protocol messages: one class per message, one line per field.

A message class is both the Python type that handlers use and the table that the codec compiles. It
has no behaviour; :mod:`kwire.codec.compile` turns it into one encode and one decode function per
version.

Rules of the tables:

* Names are Kafka's, in snake case.
* A field without a default must be set when a message is built; a field that some version lacks
  always has a default, which the decoder fills in.
* Structures are nested where they appear on the wire; a structure that is used twice comes before
  the message.
* Every class has ``unknown_tags`` beside its fields: tagged fields from a newer peer, which are
  kept as received and written back.
* A request names the class of its response, so that the type checker knows what a call returns:
  ``class FetchRequest(Request["FetchResponse"])``.
* A module may convert old versions of a message to the newest shape and back:
  ``widen_request(request, version)`` runs before the handler, ``narrow_response(response, version,
  request)`` after it. A field of no version (``""``) is set by widening; it is never sent.
"""

from collections.abc import Callable
from functools import cache
from typing import (
    Annotated,
    Any,
    Final,
    Generic,
    NamedTuple,
    TypeAlias,
    TypeVar,
    cast,
    dataclass_transform,
)

import attrs

from kwire.types import ZERO_UUID

T = TypeVar("T")
Response_co = TypeVar("Response_co", covariant=True)

_MAX_VERSION: Final = 32767


@attrs.frozen(repr=False)
class Versions:
    """An inclusive range of versions, written ``"3+"``, ``"0-4"``, ``"2"`` or ``""``."""

    first: int
    last: int

    @staticmethod
    @cache
    def parse(text: str) -> "Versions":
        if not text:
            return Versions(1, 0)
        if text.endswith("+"):
            return Versions(int(text[:-1]), _MAX_VERSION)
        first, _, last = text.partition("-")
        return Versions(int(first), int(last or first))

    def __contains__(self, version: int) -> bool:
        return self.first <= version <= self.last

    def __bool__(self) -> bool:
        return self.first <= self.last


class Wire(NamedTuple):
    """The wire form of a value: a :mod:`struct` code, or a named variable-length form."""

    name: str
    code: str = ""
    default: object = None


Bool = Annotated[bool, Wire("bool", "?", False)]
Int8 = Annotated[int, Wire("int8", "b", 0)]
Int16 = Annotated[int, Wire("int16", "h", 0)]
UInt16 = Annotated[int, Wire("uint16", "H", 0)]
Int32 = Annotated[int, Wire("int32", "i", 0)]
UInt32 = Annotated[int, Wire("uint32", "I", 0)]
Int64 = Annotated[int, Wire("int64", "q", 0)]
Float64 = Annotated[float, Wire("float64", "d", 0.0)]
Uuid = Annotated[bytes, Wire("uuid", "16s", ZERO_UUID)]
"""Sixteen raw bytes, which are also used in comparisons and as dict keys."""
String = Annotated[str, Wire("string", default="")]
NullableString = Annotated[str | None, Wire("string", default="")]
Bytes = Annotated[bytes, Wire("bytes", default=b"")]
NullableBytes = Annotated[bytes | None, Wire("bytes", default=b"")]
# Any: received batches are a memoryview; batches to send may be a Region (kwire.net.send).
RecordBatches: TypeAlias = Any
"""Record batches: a memoryview into the received frame, or a sendable object with a length."""
Records = Annotated[RecordBatches, Wire("records", default=None)]
Array = Annotated[list[T], Wire("array")]
NullableArray = Annotated[list[T] | None, Wire("array")]
Nullable = Annotated[T | None, Wire("struct")]
"""A structure that may be null (an int8 marker on the wire)."""


class FieldSpec(NamedTuple):
    """The properties of a field in the table, besides its type."""

    versions: Versions
    nullable: Versions
    tag: int | None = None
    tagged: Versions = Versions(1, 0)
    ignorable: bool = False
    compact: bool = True
    """True if flexible versions use the compact form; False only for the header's client id."""


class Attribute(NamedTuple):
    """One field of a class: its name, annotation and default."""

    name: str
    type: object
    spec: FieldSpec
    default: object
    """:data:`attrs.NOTHING` if a value is required, or if ``factory`` creates it."""
    factory: Callable[[], object] | None


class _Declared(NamedTuple):
    """The arguments of one :func:`field`, which are parsed on first use."""

    versions: str
    default: object
    factory: Callable[[], object] | None
    nullable: str
    tag: int | None
    tagged: str
    ignorable: bool
    compact: bool

    def spec(self) -> FieldSpec:
        carried = Versions.parse(self.versions)
        tagged = Versions.parse(self.tagged) if self.tagged or self.tag is None else carried
        nullable = Versions.parse(self.nullable)
        return FieldSpec(carried, nullable, self.tag, tagged, self.ignorable, self.compact)


# Any: in a class body, a field's description is assigned to an attribute of the field's type.
FieldValue: TypeAlias = Any


def field(
    versions: str,
    *,
    default: object = attrs.NOTHING,
    factory: Callable[[], object] | None = None,
    nullable: str = "",
    tag: int | None = None,
    tagged: str = "",
    ignorable: bool = False,
    compact: bool = True,
) -> FieldValue:
    """Describe one field.

    ``versions``: the versions that have the field. In ``nullable`` versions it may be null. In
    ``tagged`` versions (by default all, if there is a ``tag``) it is sent as that tag. If a version
    lacks the field, an ``ignorable`` value is dropped; for other fields any value but the default
    is an error.
    """
    return _Declared(versions, default, factory, nullable, tag, tagged, ignorable, compact)


def fields(cls: type) -> tuple[Attribute, ...]:
    """Return the declared fields of a message or structure, in order of declaration."""
    return tuple(
        Attribute(name, kind, declaration.spec(), declaration.default, declaration.factory)
        for name, (kind, declaration) in _declarations(cls).items()
    )


def _declarations(cls: type) -> dict[str, tuple[object, _Declared]]:
    """Return the annotation and the :func:`field` of each field, by name."""
    declarations: dict[str, tuple[object, _Declared]] = vars(cls)["__declared__"]
    return declarations


class MessageSpec(NamedTuple):
    """The properties of a message in the table."""

    versions: Versions
    flexible: Versions
    api_key: int | None = None
    record_type: int | None = None
    unstable: Versions = Versions(1, 0)


def spec_of(cls: type) -> MessageSpec:
    """Return the properties of a message class."""
    spec: MessageSpec = cls.__kwire__  # type: ignore[attr-defined]
    return spec


Tags = tuple[tuple[int, bytes], ...]
"""Tagged fields that are not in the table, as received: number and content."""


class Message:
    """The base class of all messages and structures; the decorators add it."""

    __slots__: tuple[str, ...] = ()
    unknown_tags: Tags

    def __init__(self, **values: object) -> None:
        """On the first call, generate the class's own ``__init__``, and call that."""
        cls = type(self)
        cls.__init__ = _initializer(cls)  # type: ignore[method-assign]
        cls.__init__(self, **values)

    def __eq__(self, other: object) -> bool:
        if other.__class__ is not self.__class__:
            return False
        return all(getattr(self, name) == getattr(other, name) for name in self.__slots__)

    __hash__ = None  # type: ignore[assignment]

    def __repr__(self) -> str:
        shown = ((name, getattr(self, name)) for name in self.__slots__)
        fields = (f"{name}={value!r}" for name, value in shown if name != "unknown_tags" or value)
        return f"{type(self).__qualname__}({', '.join(fields)})"


class Request(Message, Generic[Response_co]):
    """The base class of requests; each request names the class of its response."""

    __slots__ = ()


def _initializer(cls: type) -> Callable[..., None]:
    """Generate the ``__init__`` of a class, with all fields as keyword arguments."""
    names: dict[str, object] = {"nothing": attrs.NOTHING}
    parameters, lines = ["self", "*"], []
    for name, (_, declaration) in _declarations(cls).items():
        if declaration.factory is not None:
            names[f"make_{name}"] = declaration.factory
            parameters.append(f"{name}=nothing")
            lines.append(f"self.{name} = make_{name}() if {name} is nothing else {name}")
            continue
        names[f"default_{name}"] = declaration.default
        is_required = declaration.default is attrs.NOTHING
        parameters.append(name if is_required else f"{name}=default_{name}")
        lines.append(f"self.{name} = {name}")
    lines.append("self.unknown_tags = unknown_tags")
    body = "".join(f"    {line}\n" for line in lines)
    exec(f"def __init__({', '.join(parameters)}, unknown_tags=()):\n{body}", names)
    return cast("Callable[..., None]", names["__init__"])


def _define(cls: type[T]) -> type[T]:
    """Create the message class, with a field for unknown tags, which count in comparisons.

    attrs is not used because it writes and compiles three functions per class at once: importing
    the 32 metadata records took 16 ms that way, 9 ms with shared ``__eq__`` and ``__repr__``, and
    takes 1.3 ms this way.
    """
    body = {**cls.__dict__, "__qualname__": cls.__qualname__}
    annotations = body["__annotations__"] = body.get("__annotations__", {})
    body["__declared__"] = {name: (kind, body.pop(name)) for name, kind in annotations.items()}
    body["__slots__"] = (*annotations, "unknown_tags")
    for own in ("__dict__", "__weakref__"):
        body.pop(own, None)
    bases = cls.__bases__ if issubclass(cls, Message) else (Message,)
    return cast(type[T], type(cls.__name__, bases, body))


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
        message_class = _define(cls)
        message_class.__kwire__ = MessageSpec(  # type: ignore[attr-defined]
            versions=Versions.parse(versions),
            flexible=Versions.parse(flexible),
            api_key=api_key,
            record_type=record_type,
            unstable=Versions.parse(unstable),
        )
        return message_class

    return decorate


@dataclass_transform(kw_only_default=True, field_specifiers=(field,))
def struct(cls: type[T]) -> type[T]:
    """Make a class a structure nested in a message."""
    return _define(cls)
