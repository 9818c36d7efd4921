"""Unpacked golden directories, shared by the tests that only read them."""

from collections.abc import Callable
from pathlib import Path

import pytest

from tests.support.log import golden


@pytest.fixture(scope="session")
def unpacked(tmp_path_factory) -> Callable[[str], Path]:
    """Return the directory of an unpacked set by its name; tests do not write there."""
    done: dict[str, Path] = {}

    def path(name: str) -> Path:
        if name not in done:
            done[name] = golden.unpack(name, tmp_path_factory.mktemp(name))
        return done[name]

    return path
