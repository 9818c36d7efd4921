"""The part of attrs that kwire uses, made for a fast start: ``from kwire import attrs``.

``define``, ``frozen``, ``field`` and ``Factory`` have the meaning and the types of their attrs
counterparts; ``evolve`` is attrs' own. The difference is when a class costs time. attrs writes and
compiles four to six functions when a class is defined, which took a quarter of a node's start time.
Here ``__eq__`` and ``__hash__`` are compiled when they are first called, and ``__init__`` when a
class's second object is created, to the same code as in attrs; all classes share one ``__repr__``
(docs/decisions/0025-classes-compiled-on-first-use.md).

Rules: this module has only what kwire's classes use (no converters, validators, ordering or cached
properties); ``tests/test_attrs.py`` compares its classes with those of attrs. A class and its base
are created by the same module, this one or attrs.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from reprlib import recursive_repr
from types import CellType, FunctionType
from typing import TYPE_CHECKING, ClassVar, NamedTuple, TypeVar, cast

from attrs import NOTHING, evolve
from attrs.exceptions import FrozenInstanceError

__all__ = ["NOTHING", "Factory", "define", "evolve", "field", "frozen"]

T = TypeVar("T", bound=type)
Method = Callable[..., object]
Writer = Callable[[type], str]
"""A function that returns the source of one method of a class."""


class _Default(NamedTuple):
    """A function that creates the default value of a field, once per object."""

    factory: Callable[[], object]


class _Options(NamedTuple):
    """The arguments of one :func:`field`."""

    default: object
    is_parameter: bool
    is_shown: bool


class _Field(NamedTuple):
    """One field of a class, with the attributes that ``attrs.evolve`` and pytest expect."""

    name: str
    alias: str
    """The name of the parameter: the field's name without leading underscores."""
    default: object
    init: bool
    repr: bool
    kw_only: bool
    eq: bool = True


def _field(
    *,
    default: object = NOTHING,
    factory: Callable[[], object] | None = None,
    init: bool = True,
    repr: bool = True,
) -> object:
    """Describe one field: its default, and whether it is a parameter and appears in the repr."""
    return _Options(default if factory is None else _Default(factory), init, repr)


def _define(
    cls: T | None = None, *, eq: bool = True, kw_only: bool = False
) -> T | Callable[[T], T]:
    """Create a class with a slot for each annotated field."""

    def decorate(cls: T) -> T:
        return _make(cls, is_frozen=False, has_equality=eq, kw_only=kw_only)

    return decorate if cls is None else decorate(cls)


def _frozen(
    cls: T | None = None, *, eq: bool = True, kw_only: bool = False
) -> T | Callable[[T], T]:
    """Create a class with immutable objects and a slot for each annotated field."""

    def decorate(cls: T) -> T:
        return _make(cls, is_frozen=True, has_equality=eq, kw_only=kw_only)

    return decorate if cls is None else decorate(cls)


if TYPE_CHECKING:  # Type checkers see attrs' own definitions.
    from attrs import Factory, define, field, frozen
else:
    Factory, define, field, frozen = _Default, _define, _field, _frozen


# Making a class -----------------------------------------------------------------------------
def _make(cls: T, *, is_frozen: bool, has_equality: bool, kw_only: bool) -> T:
    """Recreate the class with slots: an existing class cannot get slots."""
    body = dict(vars(cls))
    own = tuple(_own_fields(body, kw_only))
    names = {field.name for field in own}
    base_fields: tuple[_Field, ...] = getattr(cls, "__attrs_attrs__", ())
    if not all(isinstance(field, _Field) for field in base_fields):
        raise TypeError(f"the base of {cls.__name__} was made by attrs itself, not kwire.attrs")
    base_names = {field.name for field in base_fields}
    inherited = tuple(field for field in base_fields if field.name not in names)
    fields = inherited + own
    for name in ("__dict__", "__weakref__"):
        body.pop(name, None)
    slots = [field.name for field in own if field.name not in base_names]
    if not any("__weakref__" in vars(base) for base in cls.__mro__[1:]):
        slots.append("__weakref__")
    body["__slots__"] = tuple(slots)
    body["__qualname__"] = cls.__qualname__
    body["__attrs_attrs__"] = fields
    body["__match_args__"] = tuple(f.name for f in fields if f.init and not f.kw_only)
    body.setdefault("__init__", _first_initializer(lambda: new_class))
    if has_equality:
        body.setdefault("__eq__", _on_first_use("__eq__", _equality, lambda: new_class))
        if is_frozen:
            body.setdefault("__hash__", _on_first_use("__hash__", _hash, lambda: new_class))
    body.setdefault("__repr__", _representation)
    if is_frozen:
        body["__setattr__"] = body["__delattr__"] = _refuse_change
        body["__setstate__"] = _set_state
    new_class: T = type(cls)(cls.__name__, cls.__bases__, body)
    for cell in _class_cells(body):
        cell.cell_contents = new_class
    return new_class


def _own_fields(body: dict[str, object], kw_only: bool) -> Iterator[_Field]:
    """Remove the fields' descriptions from a class body, and yield the fields."""
    annotations = cast("Mapping[str, object]", body.get("__annotations__", {}))
    for name, kind in annotations.items():
        if _is_class_variable(kind):
            continue
        options = body.pop(name, NOTHING)
        if not isinstance(options, _Options):
            options = _Options(options, is_parameter=True, is_shown=True)
        alias = name.lstrip("_")
        yield _Field(name, alias, options.default, options.is_parameter, options.is_shown, kw_only)


def _is_class_variable(kind: object) -> bool:
    if isinstance(kind, str):
        return kind.startswith(("ClassVar", "typing.ClassVar"))
    return kind is ClassVar or getattr(kind, "__origin__", None) is ClassVar


def _class_cells(body: Mapping[str, object]) -> Iterator[CellType]:
    """Yield the cells through which methods with a zero-argument ``super()`` find their class."""
    for value in body.values():
        if isinstance(value, property):
            value = value.fget
        elif isinstance(value, classmethod | staticmethod):
            value = value.__func__
        if isinstance(value, FunctionType) and "__class__" in value.__code__.co_freevars:
            yield cast("tuple[CellType, ...]", value.__closure__)[
                value.__code__.co_freevars.index("__class__")
            ]


# Methods ------------------------------------------------------------------------------------
def _on_first_use(name: str, write: Writer, new_class: Callable[[], type]) -> Method:
    """Return a method that, when first called, compiles the class's real method and calls that."""

    def method(self: object, *arguments: object, **named: object) -> object:
        return _compile(new_class(), name, write)(self, *arguments, **named)

    return method


def _first_initializer(new_class: Callable[[], type]) -> Method:
    """Return an ``__init__`` that sets the fields of a class's first object one by one.

    The real ``__init__`` is compiled for the second object, because most classes of a node have
    only one.
    """
    has_object = False

    def __init__(self: object, *arguments: object, **named: object) -> None:
        nonlocal has_object
        cls = new_class()
        values = None if has_object else _values(_fields(cls), arguments, named)
        has_object = True
        if values is None:
            _compile(cls, "__init__", _initializer)(self, *arguments, **named)
            return
        for name, value in values.items():
            object.__setattr__(self, name, value)
        if hasattr(cls, "__attrs_post_init__"):
            self.__attrs_post_init__()  # type: ignore[attr-defined]

    return __init__


def _values(
    fields: Iterable[_Field], arguments: Sequence[object], named: Mapping[str, object]
) -> dict[str, object] | None:
    """Return the fields' values by name; None if the arguments do not match the parameters."""
    parameters = [field.alias for field in fields if field.init and not field.kw_only]
    by_name = dict(zip(parameters, arguments, strict=False))
    if len(arguments) > len(parameters) or by_name.keys() & named.keys():
        return None
    by_name.update(named)
    values = {}
    for field in fields:
        if field.init and field.alias in by_name:
            values[field.name] = by_name.pop(field.alias)
        elif isinstance(field.default, _Default):
            values[field.name] = field.default.factory()
        elif field.default is not NOTHING:
            values[field.name] = field.default
        elif field.init:
            return None
    return None if by_name else values


def _compile(cls: type, name: str, write: Writer) -> Method:
    """Compile one method of a class and set it on the class."""
    names: dict[str, object] = {
        "NOTHING": NOTHING,
        "bind_setattr": object.__setattr__.__get__,
        **{f"default_{field.name}": field.default for field in _fields(cls)},
        **{
            f"make_{field.name}": field.default.factory
            for field in _fields(cls)
            if isinstance(field.default, _Default)
        },
    }
    exec(compile(write(cls), f"<{name} of {cls.__qualname__}>", "exec"), names)
    method = cast("Method", names[name])
    setattr(cls, name, method)
    return method


def _fields(cls: type) -> tuple[_Field, ...]:
    fields: tuple[_Field, ...] = cls.__attrs_attrs__  # type: ignore[attr-defined]
    return fields


def _initializer(cls: type) -> str:
    """Return the source of ``__init__``."""
    is_frozen = cls.__setattr__ is _refuse_change
    positional, named, lines = ["self"], list[str](), list[str]()
    if is_frozen:
        lines.append("set_value = bind_setattr(self)")
    for field in _fields(cls):
        name, alias = field.name, field.alias
        has_factory = isinstance(field.default, _Default)
        value = f"make_{name}()" if has_factory else f"default_{name}"
        if field.init:
            default = "" if field.default is NOTHING else f"={'NOTHING' if has_factory else value}"
            (named if field.kw_only else positional).append(f"{alias}{default}")
            value = f"{value} if {alias} is NOTHING else {alias}" if has_factory else alias
        elif field.default is NOTHING:
            continue
        lines.append(f"set_value({name!r}, {value})" if is_frozen else f"self.{name} = {value}")
    if hasattr(cls, "__attrs_post_init__"):
        lines.append("self.__attrs_post_init__()")
    parameters = [*positional, *(["*", *named] if named else [])]
    return _function("__init__", parameters, lines or ["pass"])


def _equality(cls: type) -> str:
    """Return the source of ``__eq__``."""
    pairs = (f"self.{field.name} == other.{field.name}" for field in _fields(cls))
    lines = [
        "if other.__class__ is not self.__class__:",
        "    return NotImplemented",
        f"return {' and '.join(pairs) or True}",
    ]
    return _function("__eq__", ["self", "other"], lines)


def _hash(cls: type) -> str:
    """Return the source of ``__hash__``."""
    values = "".join(f"self.{field.name}, " for field in _fields(cls))
    return _function("__hash__", ["self"], [f"return hash(({values}))"])


def _function(name: str, parameters: Sequence[str], lines: Sequence[str]) -> str:
    return f"def {name}({', '.join(parameters)}):\n" + "".join(f"    {line}\n" for line in lines)


@recursive_repr("...")
def _representation(self: object) -> str:
    """Return the class's name and the values of its visible fields."""
    shown = ", ".join(
        f"{field.name}={getattr(self, field.name, NOTHING)!r}"
        for field in _fields(type(self))
        if field.repr
    )
    return f"{type(self).__qualname__.rpartition('>.')[2]}({shown})"


def _refuse_change(self: object, *change: object) -> None:
    raise FrozenInstanceError


def _set_state(self: object, state: tuple[None, dict[str, object]]) -> None:
    """Set the state that ``copy`` or ``pickle`` passes to a copied object."""
    for name, value in state[1].items():
        object.__setattr__(self, name, value)
