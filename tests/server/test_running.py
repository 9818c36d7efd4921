"""One node until a signal: what a disk without space makes of it."""

import errno
import signal
from pathlib import Path

import pytest

from kwire.formatting import CannotOpenError
from kwire.log.disk import RealDisk
from kwire.running import run_until_signal
from tests.server.nodes import config

pytestmark = pytest.mark.slow


def run(directory: Path) -> None:
    """Start, be ready, be told to stop."""
    run_until_signal(
        config(directory),
        cluster_id=None,
        metrics_port=None,
        ready=lambda host, port: signal.raise_signal(signal.SIGTERM),
    )


def test_no_space_at_the_start_is_one_line_and_space_makes_it_good(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run(tmp_path)

    def replace(disk: RealDisk, path: str, data: object, *, sync: bool) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as full:
        full.setattr(RealDisk, "replace", replace)
        with pytest.raises(CannotOpenError, match="No space left on device") as caught:
            run(tmp_path)
        assert "\n" not in str(caught.value)
    run(tmp_path)


def test_other_failures_keep_their_traces(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def replace(disk: RealDisk, path: str, data: object, *, sync: bool) -> None:
        raise ZeroDivisionError

    run(tmp_path)
    monkeypatch.setattr(RealDisk, "replace", replace)
    with pytest.raises(BaseExceptionGroup):
        run(tmp_path)
