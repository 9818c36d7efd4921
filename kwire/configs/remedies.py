"""Adds a remedy to the error about an invalid setting of a node that cannot start.

Clients that alter settings get Kafka's error; an operator who starts a node also learns the valid
values. Rules: the error is one line that names the setting and never shows a secret.
"""

from typing import Final

from kwire.configs.declare import INT_MAX, LONG_MAX, BadValue, Key, Kind

_LARGEST: Final = {Kind.INT: INT_MAX, Kind.LONG: LONG_MAX, Kind.SHORT: (1 << 15) - 1}
REQUIRED: Final = {
    "process.roles": "name the roles of this node, as process.roles=broker,controller",
    "node.id": "give this node a number that no other one has, as node.id=1",
    "controller.listener.names": "name the listener that controllers talk on, as "
    "controller.listener.names=CONTROLLER",
}
"""The remedy for each missing setting that has no default."""
_ADVICE: Final = {
    **REQUIRED,
    "log.dirs": "name at least one directory, as log.dirs=kwire-data",
    "listeners": "name at least one address, as listeners=PLAINTEXT://127.0.0.1:9092",
    "advertised.listeners": "name what clients reach, as advertised.listeners=PLAINTEXT://HOST:9092"
    ", or leave it out",
}


def in_words(error: BadValue) -> str:
    """Return the error's text, followed by its remedy."""
    key, text = error.key, error.text
    if not text.strip():
        return f"{key.name} is empty; {remedy(key)}"
    if key.kind is Kind.LIST and not all(value.strip() for value in text.split(",")):
        return f"{key.name} has an empty value: {text}; remove the extra comma"
    return f"{error}; {remedy(key)}"


def remedy(key: Key[object]) -> str:
    """Return the remedy: a valid value, or the advice to remove the setting."""
    if key.name in _ADVICE:
        return _ADVICE[key.name]
    default = key.text(key.default)
    meaning = f", which means {default}" if default and not key.sensitive else ""
    return f"give it {_valid_values(key)}, or leave it out{meaning}"


def _valid_values(key: Key[object]) -> str:
    if key.choices:
        quantity = "one or more" if key.kind is Kind.LIST else "one"
        return f"{quantity} of {', '.join(key.choices)}"
    if key.kind is Kind.BOOLEAN:
        return "true or false"
    if key.kind is Kind.DOUBLE:
        return f"a number{_bounds(key.low, key.high)}"
    if key.kind in _LARGEST:
        largest = _LARGEST[key.kind]
        low = -largest - 1 if key.low is None else key.low
        return f"a whole number{_bounds(low, largest if key.high is None else key.high)}"
    return "a value"


def _bounds(low: float | None, high: float | None) -> str:
    if low is not None and high is not None:
        return f" from {low} to {high}"
    if low is not None:
        return f" of at least {low}"
    return "" if high is None else f" of at most {high}"
