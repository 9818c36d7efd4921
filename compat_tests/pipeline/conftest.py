"""Tests of the pipeline: py4j leaves sockets to the garbage collector."""

import faulthandler
from collections.abc import Iterator

import pytest

HOURS = 4


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if item.path.parent.name != "pipeline":
            continue
        item.add_marker(pytest.mark.filterwarnings("ignore::ResourceWarning"))
        item.add_marker(
            pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
        )


@pytest.fixture
def patience() -> Iterator[None]:
    """Let one test take hours on a busy machine; a test that hangs still ends the run."""
    faulthandler.dump_traceback_later(HOURS * 3600, exit=True)
    yield
    faulthandler.cancel_dump_traceback_later()
