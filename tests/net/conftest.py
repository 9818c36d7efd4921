"""The fixtures of tests that run with both ways in which connections wait, and answer."""

import pytest

from kwire.net import readiness
from tests.support.net.node import LANE


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Without epoll, no hang-up is noticed while a request is being answered."""
    if "each_way_to_wait" in metafunc.fixturenames:
        needs_epoll = any(m.name == "notices_hang_up" for m in metafunc.definition.iter_markers())
        ways = {"epoll": True} if needs_epoll else {"epoll": True, "no epoll": False}
        metafunc.parametrize("each_way_to_wait", ways.values(), ids=ways, indirect=True)


@pytest.fixture
def each_way_to_wait(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Run the test with connections that wait in an epoll, and with those that wait with trio."""
    monkeypatch.setattr(readiness, "HAS_EPOLL", request.param)


@pytest.fixture(params=[True, False], ids=["at once", "as if it waited"])
def each_way_to_answer(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Run the test with requests that are answered at once if possible, and without."""
    monkeypatch.setattr(LANE, "is_open", request.param)
