"""Messages in the JSON shape that Kafka's own tools print: for tests and dumps, not for speed.

Names are camelCase, uuids 22 characters of base64, bytes base64; a field that the version lacks
is absent, and so is a tagged field at its default.
"""

from base64 import b64decode, b64encode
from typing import Any, Final

from kwire.codec.layout import Field, Layout, Shape, is_flexible, layout_of
from kwire.codec.schema import camel
from kwire.types import uuid_bytes, uuid_text

UNKNOWN_TAGS: Final = "_unknownTaggedFields"


def to_json(message: Any, version: int) -> dict[str, Any]:
    """Return the fields of ``message`` in ``version``, as values that :mod:`json` can write."""
    return _struct_out(message, _message_layout(type(message), version))


def from_json(cls: type[Any], value: dict[str, Any], version: int) -> Any:
    """Return the message that ``value`` describes; a name that the version lacks is an error."""
    return _struct_in(value, _message_layout(cls, version))


def _message_layout(cls: type[Any], version: int) -> Layout:
    return layout_of(cls, version, is_flexible(cls, version))


def _structure_layout(shape: Shape, layout: Layout) -> Layout:
    assert shape.cls is not None
    return layout_of(shape.cls, layout.version, layout.flexible)


def _is_default(value: Any, field: Field) -> bool:
    default = field.default
    return bool(value == (default() if isinstance(default, type) else default))


def _struct_out(message: Any, layout: Layout) -> dict[str, Any]:
    out: dict[str, Any] = {}
    for field in (*layout.fields, *layout.tagged):
        value = getattr(message, field.name)
        if field.tag is None or not _is_default(value, field):
            out[camel(field.name)] = _value_out(value, field.shape, layout)
    if message.unknown_tags:
        out[UNKNOWN_TAGS] = [
            {"tag": tag, "data": b64encode(data).decode()} for tag, data in message.unknown_tags
        ]
    return out


def _value_out(value: Any, shape: Shape, layout: Layout) -> Any:
    if value is None:
        return None
    if shape.element is not None:
        return [_value_out(item, shape.element, layout) for item in value]
    if shape.form == "struct":
        return _struct_out(value, _structure_layout(shape, layout))
    if shape.wire == "uuid":
        return uuid_text(value)
    if shape.form in ("bytes", "records"):
        return b64encode(value).decode()
    return value


def _struct_in(value: dict[str, Any], layout: Layout) -> Any:
    names = {camel(field.name): field for field in (*layout.fields, *layout.tagged)}
    values = {
        names[name].name: _value_in(item, names[name].shape, layout)
        for name, item in value.items()
        if name != UNKNOWN_TAGS
    }
    unknown = value.get(UNKNOWN_TAGS, ())
    tags = tuple((item["tag"], b64decode(item["data"])) for item in unknown)
    return layout.cls(**values, unknown_tags=tags)


def _value_in(value: Any, shape: Shape, layout: Layout) -> Any:
    if value is None:
        return None
    if shape.element is not None:
        return [_value_in(item, shape.element, layout) for item in value]
    if shape.form == "struct":
        return _struct_in(value, _structure_layout(shape, layout))
    if shape.wire == "uuid":
        return uuid_bytes(value)
    if shape.form in ("bytes", "records"):
        return b64decode(value)
    return value
