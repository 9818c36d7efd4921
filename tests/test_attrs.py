"""kwire's classes behave as attrs' own would, and cost less when they are defined."""

import builtins
import copy
import weakref
from types import ModuleType
from typing import Any, ClassVar, Generic, TypeAlias, TypeVar

import attrs as library
import pytest

from kwire import attrs as own

T = TypeVar("T")
# Any: the type checker does not know a class that a variable's decorator makes.
Class: TypeAlias = Any


class Classes:
    """The same classes, made by one of the two modules."""

    def __init__(self, module: ModuleType) -> None:
        @module.define
        class Point:
            """A point."""

            dimensions: ClassVar[int] = 2
            x: int
            y: int = 0
            _labels: list[str] = module.field(factory=list)
            cached: int = module.field(init=False, default=7, repr=False)
            unset: int = module.field(init=False)
            others: dict[int, int] = module.Factory(dict)

            def total(self) -> int:
                return self.x + self.y

        @module.define
        class Point3(Point):
            z: int = 0
            y: int = 5

            def total(self) -> int:
                return super().total() + self.z

        @module.frozen(kw_only=True)
        class Name(Generic[T]):
            first: str
            last: T | None = None

        @module.frozen
        class Pair:
            key: object
            value: object = None

            @classmethod
            def same(cls: Class, value: object) -> Class:
                return cls(value, value)

        @module.define(eq=False)
        class Task:
            name: str
            length: int = module.field(init=False)

            def __attrs_post_init__(self) -> None:
                self.length = len(self.name)

        @module.frozen
        class Empty:
            pass

        @module.frozen
        class Caseless:
            text: str

            def __eq__(self, other: object) -> bool:
                return isinstance(other, Caseless) and self.text.lower() == other.text.lower()

            def __hash__(self) -> int:
                return hash(self.text.lower())

        self.Point: Class = Point
        self.Point3: Class = Point3
        self.Name: Class = Name
        self.Pair: Class = Pair
        self.Task: Class = Task
        self.Empty: Class = Empty
        self.Caseless: Class = Caseless


@pytest.fixture(params=[library, own], ids=["attrs", "kwire"])
def classes(request: pytest.FixtureRequest) -> Classes:
    return Classes(request.param)


def test_parameters_are_the_fields_with_their_defaults(classes: Classes) -> None:
    point = classes.Point(1, labels=["a"])
    assert (point.x, point.y, point._labels, point.cached, point.others) == (1, 0, ["a"], 7, {})
    assert point.dimensions == 2
    assert not hasattr(point, "unset")
    assert classes.Point(1)._labels is not classes.Point(1)._labels
    with pytest.raises(TypeError):
        classes.Point()
    with pytest.raises(TypeError):
        classes.Point(1, 2, [], {}, 5)
    with pytest.raises(TypeError):
        classes.Point(1, cached=3)


def test_keyword_parameters_have_no_position(classes: Classes) -> None:
    assert classes.Name(first="Ada", last=1).last == 1
    with pytest.raises(TypeError):
        classes.Name("Ada")


def test_subclass_has_the_fields_of_its_base_first(classes: Classes) -> None:
    point = classes.Point3(1, ["a"], {}, 3)
    assert (point.x, point._labels, point.z, point.y) == (1, ["a"], 3, 5)
    assert point.total() == 9


def test_objects_have_slots_and_weak_references(classes: Classes) -> None:
    task = classes.Task("a")
    assert weakref.ref(task)() == task
    with pytest.raises(AttributeError):
        task.colour = "red"


def test_equal_values_of_one_class_are_equal(classes: Classes) -> None:
    assert classes.Pair(1, 2) == classes.Pair(1, 2)
    assert classes.Pair(1, 2) != classes.Pair(1, 3)
    assert classes.Pair(1, 2) != (1, 2)
    assert classes.Empty() == classes.Empty() != classes.Pair(1)
    assert classes.Caseless("A") == classes.Caseless("a")
    assert classes.Task("a") != classes.Task("a")


def test_frozen_objects_are_keys_and_do_not_change(classes: Classes) -> None:
    pair = classes.Pair(1, 2)
    assert {pair: 3, classes.Empty(): 4}[classes.Pair(1, 2)] == 3
    assert {classes.Caseless("A")} == {classes.Caseless("a")}
    with pytest.raises(library.exceptions.FrozenInstanceError):
        pair.key = 5
    with pytest.raises(library.exceptions.FrozenInstanceError):
        del pair.key
    with pytest.raises(TypeError, match="unhashable"):
        hash(classes.Point3(1))
    task = classes.Task("a")
    assert {task: 1}[task] == 1


def test_methods_know_their_class(classes: Classes) -> None:
    assert classes.Pair.same(1) == classes.Pair(1, 1)
    assert classes.Task("abc").length == 3


def test_copies_are_equal(classes: Classes) -> None:
    pair = classes.Pair([1], classes.Empty())
    assert copy.copy(pair) == copy.deepcopy(pair) == pair
    assert copy.deepcopy(pair).key is not pair.key
    assert library.evolve(pair, value=3) == classes.Pair([1], 3)
    assert library.evolve(classes.Point(1), labels=["b"])._labels == ["b"]


def test_pattern_matches_by_position(classes: Classes) -> None:
    Pair = classes.Pair
    match Pair(1, 2):
        case Pair(key, value):
            assert (key, value) == (1, 2)
        case _:
            pytest.fail("no match")


def test_fields_are_shown(classes: Classes) -> None:
    assert repr(classes.Pair(1, classes.Empty())) == "Pair(key=1, value=Empty())"
    assert repr(classes.Point(1)) == "Point(x=1, y=0, _labels=[], unset=NOTHING, others={})"
    pair = classes.Pair([])
    pair.key.append(pair)
    assert repr(pair) == "Pair(key=[...], value=None)"


def test_defining_a_class_compiles_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """Compiling is what makes a class of attrs expensive, and with it the start of a node."""
    compiled: list[object] = []
    genuine = builtins.compile

    def count(source: str, *arguments: object) -> object:
        compiled.append(source)
        return genuine(source, *arguments)  # type: ignore[call-overload]

    monkeypatch.setattr(builtins, "compile", count)
    pair = Classes(own).Pair
    assert not compiled
    assert pair(1) == pair(1)
    assert len(compiled) == 2
    assert pair(1) == pair(1)
    assert len(compiled) == 2
