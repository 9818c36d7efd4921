"""The implementations of :mod:`kwire.speedups`: Python's, and C's where it is built."""

from importlib import import_module
from types import ModuleType

import pytest


def implementation(name: str) -> ModuleType:
    """Return an implementation, ``c`` or ``python``; skip the test if C's is not built."""
    if name == "python":
        return import_module("kwire._fallbacks")
    module: ModuleType = pytest.importorskip(
        "kwire._speedups", reason="no C compiler built kwire/_speedups.c"
    )
    return module
