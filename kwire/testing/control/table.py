"""The table of verbs: a function's signature defines the verb's HTTP arguments and their docs.

Pure. Rules: an argument has one of the types in :data:`_TYPES`; an unknown argument, a missing one
or a wrong type is an error that names it. The OpenAPI document is generated from the same table.
"""

import inspect
import types
from collections.abc import Awaitable, Callable, Iterable, Mapping
from typing import Any, Final, Generic, NamedTuple, TypeAlias, TypeVar, Union, get_args, get_origin

import attrs

from kwire.testing.errors import WrongArgument

T = TypeVar("T")

# Any: values of JSON; a verb's annotations say which it takes.
Json: TypeAlias = Any
_TYPES: Final[Mapping[object, tuple[str, tuple[type, ...]]]] = {
    str: ("string", (str,)),
    int: ("integer", (int,)),
    float: ("number", (int, float)),
    bool: ("boolean", (bool,)),
    list: ("array", (list,)),
    dict: ("object", (dict,)),
}
"""The types of arguments: their names in JSON schema, and the values that they accept."""


class Argument(NamedTuple):
    """One argument of a verb."""

    name: str
    kind: object
    is_nullable: bool
    default: object
    """The value if it is omitted; :data:`inspect.Parameter.empty` if it is required."""

    @property
    def is_required(self) -> bool:
        return self.default is inspect.Parameter.empty

    @property
    def schema(self) -> dict[str, Json]:
        """The JSON schema of the argument."""
        type_name = _TYPES[self.kind][0]
        schema: dict[str, Json] = {"type": [type_name, "null"] if self.is_nullable else type_name}
        if self.kind is list:
            schema["items"] = {"type": "string"}
        if not self.is_required:
            schema["default"] = self.default
        return schema

    def check(self, value: Json) -> None:
        """Raise WrongArgument unless the value has the argument's type."""
        type_name, accepted = _TYPES[self.kind]
        if value is None and self.is_nullable:
            return
        if not isinstance(value, accepted) or (isinstance(value, bool) and self.kind is not bool):
            raise WrongArgument(f"{self.name} must be a JSON {type_name}, not {value!r:.100}")
        if isinstance(value, list) and not all(isinstance(item, str) for item in value):
            raise WrongArgument(f"{self.name} must be a JSON array of strings, not {value!r:.100}")


@attrs.frozen(eq=False, repr=False)
class Verb(Generic[T]):
    """One verb: its function and arguments. The function gets the broker first."""

    function: Callable[..., Awaitable[Json]]
    arguments: Mapping[str, Argument]

    @classmethod
    def build(cls, function: Callable[..., Awaitable[Json]]) -> "Verb[T]":
        parameters = list(inspect.signature(function).parameters.values())[1:]
        return cls(function, {p.name: _argument(p) for p in parameters})

    @property
    def name(self) -> str:
        return self.function.__name__.replace("_", "-")

    @property
    def description(self) -> str:
        return inspect.getdoc(self.function) or ""

    def check(self, values: Json) -> None:
        """Raise WrongArgument unless ``values`` are valid arguments of the verb, in JSON."""
        if not isinstance(values, dict):
            raise WrongArgument("the arguments must be a JSON object")
        for name, value in values.items():
            if name not in self.arguments:
                names = ", ".join(self.arguments) or "none"
                raise WrongArgument(f"{self.name} has no argument {name}; its arguments: {names}")
            self.arguments[name].check(value)
        for argument in self.arguments.values():
            if argument.is_required and argument.name not in values:
                raise WrongArgument(f"{self.name} needs the argument {argument.name}")

    async def call(self, target: T, values: Json) -> Json:
        """Call the function with arguments that :meth:`check` accepts."""
        return await self.function(target, **values)


def _argument(parameter: inspect.Parameter) -> Argument:
    kind, is_nullable = parameter.annotation, False
    if get_origin(kind) in (Union, types.UnionType):
        (kind,) = [each for each in get_args(kind) if each is not types.NoneType]
        is_nullable = True
    return Argument(parameter.name, get_origin(kind) or kind, is_nullable, parameter.default)


def verb_table(functions: Iterable[Callable[..., Awaitable[Json]]]) -> dict[str, Verb[T]]:
    """Return the verbs of these functions by name."""
    verbs: list[Verb[T]] = [Verb.build(function) for function in functions]
    return {verb.name: verb for verb in verbs}


def openapi(title: str, version: str, verbs: Mapping[str, Verb[T]]) -> dict[str, Json]:
    """Return the OpenAPI document of these verbs."""
    error = {
        "description": "the reason",
        "content": {
            "application/json": {
                "schema": {"type": "object", "properties": {"error": {"type": "string"}}}
            }
        },
    }
    paths = {}
    for name, verb in verbs.items():
        schema = {
            "type": "object",
            "properties": {a.name: a.schema for a in verb.arguments.values()},
            "required": [a.name for a in verb.arguments.values() if a.is_required],
            "additionalProperties": False,
        }
        paths[f"/v1/{name}"] = {
            "post": {
                "operationId": name,
                "summary": verb.description.partition("\n")[0],
                "description": verb.description,
                "requestBody": {"content": {"application/json": {"schema": schema}}},
                "responses": {
                    "200": {
                        "description": "the result",
                        "content": {"application/json": {"schema": {}}},
                    },
                    "400": error,
                    "409": error,
                },
            }
        }
    return {"openapi": "3.1.0", "info": {"title": title, "version": version}, "paths": paths}
