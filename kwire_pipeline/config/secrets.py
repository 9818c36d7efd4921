"""Secrets in a configuration: collected, and hidden in any text that people read."""

from collections.abc import Iterator, Mapping
from typing import Final

import attrs

from kwire_pipeline.config.declare import Secret

HIDDEN: Final = "***"


def secrets_of(value: object) -> frozenset[str]:
    """Return the text of every secret in a section, or in a mapping or list of its values."""
    return frozenset(_secrets(value))


def _secrets(value: object) -> Iterator[str]:
    if isinstance(value, Secret):
        yield str(value)
    elif isinstance(value, Mapping):
        for item in value.values():
            yield from _secrets(item)
    elif isinstance(value, tuple):
        for item in value:
            yield from _secrets(item)
    elif attrs.has(cls := type(value)):
        for field in attrs.fields(cls):
            yield from _secrets(getattr(value, field.name))


def redact(text: str, secrets: frozenset[str]) -> str:
    """Return the text with each secret hidden, longest first, because one may contain another."""
    for secret in sorted(secrets, key=len, reverse=True):
        if secret:
            text = text.replace(secret, HIDDEN)
    return text
