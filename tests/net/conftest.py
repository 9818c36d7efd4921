"""The fixture of tests that run with both ways in which connections wait."""

import pytest

from kwire.net import readiness


@pytest.fixture(params=[readiness.DIRECT, 0], ids=["with trio", "in turns"])
def each_way_to_wait(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Run the test with connections that wait with trio, and with those that wait in turns."""
    monkeypatch.setattr(readiness, "DIRECT", request.param)
