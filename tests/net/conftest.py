"""The fixtures of tests that run with both ways in which connections wait, and answer."""

import pytest

from kwire.net import readiness
from tests.support.net.node import LANE


@pytest.fixture(params=[readiness.DIRECT, 0], ids=["with trio", "in turns"])
def each_way_to_wait(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Run the test with connections that wait with trio, and with those that wait in turns."""
    monkeypatch.setattr(readiness, "DIRECT", request.param)


@pytest.fixture(params=[True, False], ids=["at once", "as if it waited"])
def each_way_to_answer(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Run the test with requests that are answered at once if possible, and without."""
    monkeypatch.setattr(LANE, "is_open", request.param)
