"""The layout of a message in one version: its table, resolved.

The compiler and the JSON form both use layouts; nothing here handles bytes.
"""

from typing import Final, NamedTuple, get_args

import attrs

from kwire.codec.schema import Attribute, Message, Wire, spec_of
from kwire.codec.schema import fields as fields_of
from kwire.types import ZERO_UUID


class Shape(NamedTuple):
    """The form of a value: ``fixed``, ``string``, ``bytes``, ``records``, ``array``, ``struct``."""

    form: str
    wire: str
    """Kafka's name of the type."""
    code: str = ""
    """The :mod:`struct` code, if the form is ``fixed``."""
    cls: type[Message] | None = None
    element: "Shape | None" = None


class Field(NamedTuple):
    """One field in one version."""

    name: str
    shape: Shape
    nullable: bool
    compact: bool
    ignorable: bool
    tag: int | None
    default: object
    """A literal, an empty list, or the class of a structure whose fields have their defaults."""
    maybe_null: bool
    """True if some version allows null, so that the Python type includes None."""


class Layout(NamedTuple):
    """The fields of one class in one version."""

    cls: type[Message]
    version: int
    flexible: bool
    fields: tuple[Field, ...]
    tagged: tuple[Field, ...]
    absent: tuple[Field, ...]

    @property
    def codes(self) -> str | None:
        """The struct codes of all fields; None if a field has a variable size."""
        if all(field.shape.form == "fixed" for field in self.fields):
            return "".join(field.shape.code for field in self.fields)
        return None


_layouts: Final[dict[tuple[type, int, bool], Layout]] = {}


def is_flexible(cls: type, version: int) -> bool:
    return version in spec_of(cls).flexible


def layout_of(cls: type, version: int, flexible: bool) -> Layout:
    """Return the layout of a message or structure; ``flexible`` is a property of the message."""
    key = cls, version, flexible
    if key not in _layouts:
        _layouts[key] = _resolve(cls, version, flexible)
    return _layouts[key]


def _resolve(cls: type, version: int, flexible: bool) -> Layout:
    fields: list[Field] = []
    tagged: list[Field] = []
    absent: list[Field] = []
    for attribute in fields_of(cls):
        spec = attribute.spec
        field = _field(attribute, version, flexible)
        if version not in spec.versions:
            absent.append(field)
        elif field.tag is not None:
            tagged.append(field)
        else:
            fields.append(field)
    tagged.sort(key=lambda field: field.tag or 0)
    return Layout(cls, version, flexible, tuple(fields), tuple(tagged), tuple(absent))


def _field(attribute: Attribute, version: int, flexible: bool) -> Field:
    spec = attribute.spec
    shape = shape_of(attribute.type)
    return Field(
        name=attribute.name,
        shape=shape,
        nullable=version in spec.nullable,
        compact=flexible and spec.compact,
        ignorable=spec.ignorable,
        tag=spec.tag if version in spec.tagged else None,
        default=default_of(attribute, shape),
        maybe_null=bool(spec.nullable),
    )


def default_of(attribute: Attribute, shape: Shape) -> object:
    if attribute.factory is not None:
        return [] if attribute.factory is list else attribute.factory
    if attribute.default is not attrs.NOTHING:
        return attribute.default
    if shape.form == "array":
        return []
    return shape.cls if shape.form == "struct" else _WIRE_DEFAULTS[shape.wire]


_WIRE_DEFAULTS: Final[dict[str, object]] = {
    "bool": False,
    "float64": 0.0,
    "uuid": ZERO_UUID,
    "string": "",
    "bytes": b"",
    "records": None,
    **dict.fromkeys(("int8", "int16", "uint16", "int32", "uint32", "int64"), 0),
}


def shape_of(annotation: object) -> Shape:
    """Return the shape that a field's annotation declares."""
    wire = next((item for item in get_args(annotation)[1:] if isinstance(item, Wire)), None)
    if wire is None:
        assert isinstance(annotation, type)
        return Shape("struct", "struct", cls=annotation)
    inner = get_args(annotation)[0]
    if wire.name == "array":
        arms = [arm for arm in get_args(inner) if arm is not type(None)]
        listed = inner if getattr(inner, "__origin__", None) is list else arms[0]
        return Shape("array", "array", element=shape_of(get_args(listed)[0]))
    if wire.name == "struct":
        arms = [arm for arm in get_args(inner) if arm is not type(None)]
        return Shape("struct", "struct", cls=arms[0])
    return Shape("fixed" if wire.code else wire.name, wire.name, code=wire.code)


def has_records(cls: type, version: int, flexible: bool) -> bool:
    """Return whether a message may include record batches, which are not copied when decoded."""

    def holds(shape: Shape) -> bool:
        if shape.element is not None:
            return holds(shape.element)
        if shape.cls is not None:
            return has_records(shape.cls, version, flexible)
        return shape.form == "records"

    layout = layout_of(cls, version, flexible)
    return any(holds(field.shape) for field in (*layout.fields, *layout.tagged))
