"""Mistakes that a simulation notices only after many seeds: the long run makes them."""

from collections.abc import Collection, Iterable
from typing import Any, Protocol

import pytest


class Named(Protocol):
    """A mistake of a simulation's table."""

    @property
    def name(self) -> str: ...


def parameters(mutations: Iterable[Named], rare: Collection[str]) -> list[Any]:
    """Return a parameter for each mistake; the rare ones are marked as long."""
    by_name = {mutation.name: mutation for mutation in mutations}
    assert set(rare) <= set(by_name)
    return [
        pytest.param(mutation, id=name, marks=[pytest.mark.long] if name in rare else [])
        for name, mutation in by_name.items()
    ]
