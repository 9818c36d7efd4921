"""The number of array elements in a message, which the time of encoding it grows with."""

from typing import Final, NamedTuple

from kwire.codec.layout import Shape, shape_of
from kwire.codec.schema import fields as fields_of


class _Container(NamedTuple):
    """A field that is an array, or a structure that has arrays."""

    name: str
    is_array: bool
    has_arrays: bool
    """Whether the elements, or the structure, have arrays of their own."""


_containers: Final[dict[type, tuple[_Container, ...]]] = {}


def has_more_elements(message: object, limit: int) -> bool:
    """Return whether the arrays of a message have more than ``limit`` elements altogether.

    Counting ends at the limit, so it costs no more than that, however large the message is.
    """
    return _elements_left(message, limit) < 0


def _elements_left(message: object, limit: int) -> int:
    """Return the limit less the number of elements; some negative number if that is larger."""
    for name, is_array, has_arrays in _containers_of(type(message)):
        value = getattr(message, name)
        if value is None:
            continue
        elements = value if is_array else (value,)
        if is_array:
            limit -= len(elements)
        if has_arrays and limit >= 0:
            for element in elements:
                limit = _elements_left(element, limit)
                if limit < 0:
                    break
        if limit < 0:
            break
    return limit


def _containers_of(cls: type) -> tuple[_Container, ...]:
    containers = _containers.get(cls)
    if containers is None:
        fields = [_container(field.name, shape_of(field.type)) for field in fields_of(cls)]
        containers = _containers[cls] = tuple(field for field in fields if field is not None)
    return containers


def _container(name: str, shape: Shape) -> _Container | None:
    is_array = shape.form == "array"
    inner = shape.element if is_array else shape
    assert inner is not None
    has_arrays = inner.cls is not None and bool(_containers_of(inner.cls))
    return _Container(name, is_array, has_arrays) if is_array or has_arrays else None
