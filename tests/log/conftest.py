"""Unpacked golden directories, for the tests that only read them."""

from collections.abc import Callable
from pathlib import Path

import pytest

from tests.support.log import golden


@pytest.fixture(scope="session")
def golden_directory(tmp_path_factory) -> Callable[[str], Path]:
    """Return a function that unpacks a set by its name, once; tests do not write there."""
    directories: dict[str, Path] = {}

    def path(name: str) -> Path:
        if name not in directories:
            directories[name] = golden.unpack(name, tmp_path_factory.mktemp(name))
        return directories[name]

    return path
