"""Messages of `kwire serve` to systemd, here to a socket of the test's own (sd_notify(3))."""

import shutil
import socket
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.command_line.process import ROOT, serve

SECONDS = 60
UNIT = ROOT / "packaging" / "kwire.service"


@pytest.fixture
def manager(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[socket.socket]:
    """Return the socket that NOTIFY_SOCKET names."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sock:
        sock.settimeout(SECONDS)
        sock.bind(str(tmp_path / "notify"))
        monkeypatch.setenv("NOTIFY_SOCKET", str(tmp_path / "notify"))
        yield sock


def message(manager: socket.socket) -> dict[str, str]:
    return dict(line.split("=", 1) for line in manager.recv(4096).decode().splitlines())


def test_service_is_ready_when_it_can_answer_and_says_that_it_stops(
    manager: socket.socket, tmp_path: Path
) -> None:
    with serve(tmp_path, "--ephemeral", "--port", "0") as node:
        status = f"serving on {node.host}:{node.port}"
        assert message(manager) == {"READY": "1", "STATUS": status}
        assert node.stop() == 0
    assert message(manager) == {"STOPPING": "1"}
    manager.setblocking(False)
    with pytest.raises(BlockingIOError):
        manager.recv(4096)


def test_watched_service_reports_that_it_is_alive(
    manager: socket.socket, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("WATCHDOG_USEC", "200000")
    with serve(tmp_path, "--ephemeral", "--port", "0"):
        assert "READY" in message(manager)
        assert [message(manager) for _ in range(3)] == [{"WATCHDOG": "1"}] * 3


def test_watchdog_of_another_process_is_left_to_it(
    manager: socket.socket, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("WATCHDOG_USEC", "1000")
    monkeypatch.setenv("WATCHDOG_PID", "1")
    with serve(tmp_path, "--ephemeral", "--port", "0") as node:
        assert "READY" in message(manager)
        assert node.stop() == 0
    assert message(manager) == {"STOPPING": "1"}


def test_service_that_cannot_reach_its_manager_serves(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("NOTIFY_SOCKET", str(tmp_path / "nobody"))
    with serve(tmp_path, "--ephemeral", "--port", "0") as node:
        assert node.stop() == 0
    assert node.errors.read_text().count("cannot reach the service manager") == 1


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="needs systemd")
def test_unit_file_is_valid(tmp_path: Path) -> None:
    """systemd itself checks it, with a program that exists in place of the installed kwire."""
    unit = tmp_path / UNIT.name
    unit.write_text(UNIT.read_text().replace("/usr/local/bin/kwire", "/bin/true"))
    done = subprocess.run(
        ["systemd-analyze", "verify", str(unit)], capture_output=True, text=True, timeout=SECONDS
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
