"""A signal at any moment of `kwire serve --ephemeral` leaves no files (invariant 109).

The moments are those of Python's own audit events (an import, a directory that is made, an address
that is taken) and the one after a directory was made, at which the process sends itself the signal:
so none of them is missed on a fast machine or a slow one.
"""

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.command_line.process import KWIRE

pytestmark = pytest.mark.slow

TERM, INT, HUP = signal.SIGTERM, signal.SIGINT, signal.SIGHUP
SERVE_WITH_SIGNALS = """
import os, sys
import kwire.cli

moments = [(event, part, int(number)) for event, part, number in
           (text.split(",") for text in sys.argv[1:])]

def look(event, arguments):
    while moments and event == moments[0][0] and moments[0][1] in str(arguments):
        os.kill(os.getpid(), moments.pop(0)[2])

def mkdir(path, *rest, made=os.mkdir, **more):
    made(path, *rest, **more)
    look("made", path)

os.mkdir = mkdir
sys.addaudithook(look)
kwire.cli.main(["serve", "--ephemeral", "--port", "0"])
"""


@pytest.fixture(autouse=True)
def hang_up_is_not_ignored() -> Iterator[None]:
    """A process inherits that SIGHUP is ignored, and these tests may run under nohup."""
    former = signal.signal(HUP, signal.SIG_DFL)
    yield
    signal.signal(HUP, former)


def serve(folder: Path, *moments: tuple[str, str, int]) -> subprocess.CompletedProcess[str]:
    arguments = [",".join(map(str, moment)) for moment in moments]
    return subprocess.run(
        [sys.executable, "-c", SERVE_WITH_SIGNALS, *arguments],
        env={**os.environ, "TMPDIR": str(folder)},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


MOMENTS = [
    ("os.mkdir", "/kwire-"),  # the temporary directory, before it exists
    ("import", "kwire.configs.declare"),  # it exists, and nothing else
    ("import", "kwire.node.server"),
    ("import", "kwire.net.server"),
    ("socket.bind", "127.0.0.1"),
    ("os.mkdir", "/data"),
    ("open", "meta.properties"),
    ("open", "__cluster_metadata-0"),
]
OF_EACH_SIGNAL = ("/kwire-", "__cluster_metadata-0")
"""The first moment and the last: one handler gets all three signals from the one to the other."""


@pytest.mark.parametrize(
    ("event", "part", "number"),
    [
        (event, part, number)
        for event, part in MOMENTS
        for number in ([TERM, INT, HUP] if part in OF_EACH_SIGNAL else [TERM])
    ],
)
def test_signal_before_the_node_is_ready_is_a_clean_stop(
    tmp_path: Path, event: str, part: str, number: int
) -> None:
    done = serve(tmp_path, (event, part, number))
    assert list(tmp_path.iterdir()) == []
    assert done.returncode == 0
    assert "Traceback" not in done.stderr
    assert f"signal number={int(number)}" in done.stderr


@pytest.mark.parametrize(
    ("event", "part"),
    [
        ("import", "kwire.configs.declare"),
        ("socket.bind", "127.0.0.1"),
        ("open", "meta.properties"),
    ],
)
def test_two_signals_before_the_node_is_ready_end_it_at_once(
    tmp_path: Path, event: str, part: str
) -> None:
    done = serve(tmp_path, (event, part, TERM), (event, part, INT))
    assert list(tmp_path.iterdir()) == []
    assert done.returncode in (128 + TERM, 128 + INT)
    assert (done.stdout, done.stderr) == ("", "")


def test_terminal_that_hangs_up_twice_is_a_clean_stop(tmp_path: Path) -> None:
    """The kernel and the shell may both send SIGHUP."""
    moment = ("socket.bind", "127.0.0.1", HUP)
    done = serve(tmp_path, moment, moment)
    assert list(tmp_path.iterdir()) == []
    assert done.returncode == 0


def test_hang_up_under_nohup_is_ignored(tmp_path: Path) -> None:
    former = signal.signal(HUP, signal.SIG_IGN)
    try:
        done = serve(
            tmp_path, ("import", "kwire.net.server", HUP), ("open", "meta.properties", TERM)
        )
    finally:
        signal.signal(HUP, former)
    assert f"signal number={int(TERM)}" in done.stderr
    assert done.returncode == 0


@pytest.mark.parametrize("event", ["os.mkdir", "made"])
def test_second_signal_while_the_directory_is_made_ends_it_at_once(
    tmp_path: Path, event: str
) -> None:
    """The end waits only until the name of the directory is known."""
    done = serve(tmp_path, (event, "/kwire-", TERM), (event, "/kwire-", INT))
    assert list(tmp_path.iterdir()) == []
    assert done.returncode == 128 + INT
    assert (done.stdout, done.stderr) == ("", "")


def test_second_signal_while_data_are_removed_removes_the_rest(tmp_path: Path) -> None:
    moments = [("socket.bind", "127.0.0.1", TERM), ("shutil.rmtree", "/kwire-", TERM)]
    done = serve(tmp_path, *moments)
    assert list(tmp_path.iterdir()) == []
    assert done.returncode == 128 + TERM


def test_signal_when_the_directory_appears_is_a_clean_stop(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The command itself runs as a process and gets a signal from outside."""
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    process = subprocess.Popen(
        [KWIRE, "serve", "--ephemeral", "--port", "0"],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    try:
        while not list(tmp_path.glob("kwire-*")):
            assert process.poll() is None
        process.terminate()
        assert process.wait(60) == 0
    finally:
        process.kill()
        process.wait()
    assert list(tmp_path.iterdir()) == []
