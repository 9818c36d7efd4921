"""The environment of `scripts/kwire`, which these tests run."""

import pytest

from tests.support.command_line.process import install


@pytest.fixture(scope="session", autouse=True)
def install_kwire() -> None:
    """Let `scripts/kwire` install kwire before the first test, if it has to.

    It does so when pyproject.toml has changed, and reports it on stderr, where tests expect one
    line of kwire.
    """
    install()
