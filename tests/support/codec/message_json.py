"""Messages in the JSON form that Kafka's own tools print: for tests and dumps, not for speed.

Names are in camelCase, uuids are 22 characters of base64, bytes are base64. Fields that the version
lacks are absent, and so are tagged fields with their default.
"""

from base64 import b64decode, b64encode
from collections.abc import Iterable, Mapping
from typing import Final, TypeAlias, TypeVar

from kwire.codec.layout import Field, Layout, Shape, is_flexible, layout_of
from kwire.codec.primitives import Buffer
from kwire.codec.schema import Message
from kwire.types import uuid_bytes, uuid_text

M = TypeVar("M")

Json: TypeAlias = "bool | float | str | list[Json] | dict[str, Json] | None"
"""A value that :mod:`json` can write."""
UNKNOWN_TAGS: Final = "_unknownTaggedFields"


def to_json(message: object, version: int) -> dict[str, Json]:
    """Return the fields of ``message`` in ``version``, as values that :mod:`json` can write."""
    assert isinstance(message, Message)
    return _struct_out(message, _message_layout(type(message), version))


def from_json(cls: type[M], value: Mapping[str, Json], version: int) -> M:
    """Return the message that ``value`` describes; a name that the version lacks is an error."""
    message = _struct_in(value, _message_layout(cls, version))
    assert isinstance(message, cls)
    return message


def camel(name: str) -> str:
    """Return a field's name in Kafka's JSON: ``throttle_time_ms`` becomes ``throttleTimeMs``."""
    first, *rest = name.split("_")
    return first + "".join(part[:1].upper() + part[1:] for part in rest)


def _message_layout(cls: type, version: int) -> Layout:
    return layout_of(cls, version, is_flexible(cls, version))


def _structure_layout(shape: Shape, layout: Layout) -> Layout:
    assert shape.cls is not None
    return layout_of(shape.cls, layout.version, layout.flexible)


def _is_default(value: object, field: Field) -> bool:
    default = field.default
    return value == (default() if isinstance(default, type) else default)


def _struct_out(message: Message, layout: Layout) -> dict[str, Json]:
    out: dict[str, Json] = {}
    for field in (*layout.fields, *layout.tagged):
        value = getattr(message, field.name)
        if field.tag is None or not _is_default(value, field):
            out[camel(field.name)] = _value_out(value, field.shape, layout)
    if message.unknown_tags:
        out[UNKNOWN_TAGS] = [
            {"tag": tag, "data": b64encode(data).decode()} for tag, data in message.unknown_tags
        ]
    return out


def _value_out(value: object, shape: Shape, layout: Layout) -> Json:
    if value is None:
        return None
    if shape.element is not None:
        assert isinstance(value, Iterable)
        return [_value_out(item, shape.element, layout) for item in value]
    if shape.form == "struct":
        assert isinstance(value, Message)
        return _struct_out(value, _structure_layout(shape, layout))
    if isinstance(value, Buffer):
        return uuid_text(bytes(value)) if shape.wire == "uuid" else b64encode(value).decode()
    assert isinstance(value, bool | int | float | str)
    return value


def _struct_in(value: Mapping[str, Json], layout: Layout) -> Message:
    names = {camel(field.name): field for field in (*layout.fields, *layout.tagged)}
    values = {
        names[name].name: _value_in(item, names[name].shape, layout)
        for name, item in value.items()
        if name != UNKNOWN_TAGS
    }
    tags = value.get(UNKNOWN_TAGS, [])
    assert isinstance(tags, list)
    return layout.cls(**values, unknown_tags=tuple(map(_tag_in, tags)))


def _tag_in(tag: Json) -> tuple[int, bytes]:
    match tag:
        case {"tag": int(number), "data": str(data)}:
            return number, b64decode(data)
    raise ValueError(f"no tagged field: {tag}")


def _value_in(value: Json, shape: Shape, layout: Layout) -> object:
    if value is None:
        return None
    if shape.element is not None:
        assert isinstance(value, list)
        return [_value_in(item, shape.element, layout) for item in value]
    if shape.form == "struct":
        assert isinstance(value, dict)
        return _struct_in(value, _structure_layout(shape, layout))
    if shape.wire == "uuid":
        assert isinstance(value, str)
        return uuid_bytes(value)
    if shape.form in ("bytes", "records"):
        assert isinstance(value, str)
        return b64decode(value)
    return value
