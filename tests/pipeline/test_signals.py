"""Signals: a command ends with one line and the code that shells know, also while Spark starts."""

import os
import signal
import socket
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path

import pytest

from kwire_pipeline.commands.run import end_of
from kwire_pipeline.engine.reporting.figures import Tally
from kwire_pipeline.signals import StopRequest, handle_with, keep_handlers
from tests.support.pipeline.orders import SMALLEST

WAIT_S = 120
ENDS = [(signal.SIGTERM, 143), (signal.SIGINT, 130)]
WITHOUT_BROKER = """\
import sys
from kwire_pipeline import cli
cli.preflight = lambda *_, **__: None
sys.exit(cli.main(sys.argv[1:]))
"""
# A Java that starts until the test closes the pipe.
JAVA = """\
#!/bin/sh
exec cat "$PIPE" >/dev/null
"""


def check_end(process: subprocess.Popen[str], number: signal.Signals, code: int) -> None:
    """Send a signal and assert that the process ends with one line and the code."""
    process.send_signal(number)
    _, errors = process.communicate(timeout=WAIT_S)
    assert errors == f"kwire-pipeline: stopped by {number.name}\n"
    assert process.returncode == code


@pytest.mark.parametrize(("number", "code"), ENDS)
def test_signal_before_spark_is_one_line(tmp_path: Path, number: signal.Signals, code: int) -> None:
    """The command waits for a server that accepts connections and does not answer."""
    (tmp_path / "orders.yaml").write_text(SMALLEST)
    with socket.create_server(("127.0.0.1", 0)) as server:
        address = f"127.0.0.1:{server.getsockname()[1]}"
        arguments = ["status", "orders.yaml", "--source.bootstrap", address]
        process = subprocess.Popen(
            [sys.executable, "-m", "kwire_pipeline", *arguments],
            cwd=tmp_path,
            stderr=subprocess.PIPE,
            text=True,
        )
        server.settimeout(WAIT_S)
        connection, _ = server.accept()
        with connection:
            check_end(process, number, code)


@pytest.mark.parametrize("command", ["run", "status"])
@pytest.mark.parametrize(("number", "code"), ENDS)
def test_signal_while_spark_starts_is_one_line(
    tmp_path: Path, command: str, number: signal.Signals, code: int
) -> None:
    (tmp_path / "orders.yaml").write_text(SMALLEST)
    java, pipe = tmp_path / "java" / "bin" / "java", tmp_path / "pipe"
    java.parent.mkdir(parents=True)
    java.write_text(JAVA)
    java.chmod(0o755)
    os.mkfifo(pipe)
    process = subprocess.Popen(
        [sys.executable, "-c", WITHOUT_BROKER, command, "orders.yaml"],
        cwd=tmp_path,
        env={**os.environ, "JAVA_HOME": str(java.parent.parent), "PIPE": str(pipe)},
        stderr=subprocess.PIPE,
        text=True,
    )
    writer = None
    deadline = time.monotonic() + WAIT_S
    while writer is None:
        assert process.poll() is None, process.communicate()
        assert time.monotonic() < deadline
        with suppress(OSError):  # Java has not opened it yet.
            writer = os.open(pipe, os.O_WRONLY | os.O_NONBLOCK)
        time.sleep(0.02)
    try:
        check_end(process, number, code)
    finally:
        os.close(writer)


def test_first_signal_is_a_request_and_the_handlers_of_spark_are_replaced() -> None:
    request = StopRequest()
    before = signal.getsignal(signal.SIGINT)
    with handle_with(request.on_signal):
        with keep_handlers():
            signal.signal(signal.SIGINT, signal.SIG_IGN)  # as SparkContext installs its own
        assert not request.is_stopping()
        os.kill(os.getpid(), signal.SIGINT)
        assert request.is_stopping()
    assert signal.getsignal(signal.SIGINT) is before


@pytest.mark.parametrize(
    ("tally", "code", "line"),
    [
        (Tally(), 0, ""),
        (Tally(is_stopped=True), 0, "kwire-pipeline: stopped by SIGTERM\n"),
        (
            Tally(is_stopped=True, is_cut_short=True),
            143,
            "kwire-pipeline: stopped by SIGTERM before the end of the topics; the next run "
            "continues\n",
        ),
    ],
)
def test_run_that_is_stopped_before_the_end_of_the_topics_is_not_done(
    capsys: pytest.CaptureFixture[str], tally: Tally, code: int, line: str
) -> None:
    request = StopRequest()
    request.on_signal(signal.SIGTERM, None)
    assert end_of(request, tally) == code
    assert capsys.readouterr().err == line
