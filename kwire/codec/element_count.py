"""Counts the array elements of a message, which determine how long it takes to encode."""

from collections.abc import Callable, Sequence
from operator import attrgetter
from typing import Final, NamedTuple

from kwire.codec.layout import Shape, shape_of
from kwire.codec.schema import Attribute
from kwire.codec.schema import fields as fields_of


class _Container(NamedTuple):
    """A field that is an array, or a structure that contains arrays."""

    elements: Callable[[object], Sequence[object] | None]
    is_array: bool
    has_arrays: bool
    """True if the elements themselves contain arrays."""


_containers: Final[dict[type, tuple[_Container, ...]]] = {}


def has_more_elements(message: object, limit: int) -> bool:
    """Return whether a message has more than ``limit`` array elements in total.

    Counting stops at the limit, so the cost is bounded however large the message is.
    """
    return _elements_left(message, limit) < 0


def _elements_left(message: object, limit: int) -> int:
    """Return ``limit`` minus the number of elements; any negative number if there are more."""
    try:
        containers = _containers[type(message)]
    except KeyError:
        containers = _containers_of(type(message))
    for elements_of, is_array, has_arrays in containers:
        elements = elements_of(message)
        if elements:
            if is_array:
                limit -= len(elements)
            if has_arrays and limit >= 0:
                for element in elements:
                    limit = _elements_left(element, limit)
                    if limit < 0:
                        return limit
    return limit


def _containers_of(cls: type) -> tuple[_Container, ...]:
    containers = _containers.get(cls)
    if containers is None:
        fields = [_container(field) for field in fields_of(cls)]
        containers = _containers[cls] = tuple(field for field in fields if field is not None)
    return containers


def _container(field: Attribute) -> _Container | None:
    shape = shape_of(field.type)
    if shape.form == "array":
        assert shape.element is not None
        return _Container(attrgetter(field.name), True, _has_arrays(shape.element))
    if not _has_arrays(shape):
        return None

    def as_only_element(message: object) -> Sequence[object]:
        value = getattr(message, field.name)
        return () if value is None else (value,)

    return _Container(as_only_element, False, True)


def _has_arrays(shape: Shape) -> bool:
    return shape.cls is not None and bool(_containers_of(shape.cls))
