"""Cases of a table that only the long run makes, because they take long."""

from collections.abc import Collection, Iterable
from typing import Any, Protocol

import pytest


class Named(Protocol):
    """A row of a table of cases."""

    @property
    def name(self) -> str: ...


def parameters(cases: Iterable[Named], long: Collection[str]) -> list[Any]:
    """Return a parameter for each case; those named in ``long`` are marked so."""
    by_name = {case.name: case for case in cases}
    assert set(long) <= set(by_name)
    return [
        pytest.param(case, id=name, marks=[pytest.mark.long] if name in long else [])
        for name, case in by_name.items()
    ]
