"""One node of a cluster as its supervisor sees it: a process, its state and its figures.

Rules: a node runs in a session of its own, so that Ctrl-C reaches only the supervisor, which stops
the nodes in order; its standard input is a pipe whose end stops it, so that it never outlives the
supervisor; its standard output has the ready line and its figures, its log is a file. It has one
request for figures at a time, so a node that is stopped or hangs never fills the pipe, and holds up
nothing.
"""

import enum
import os
import re
import signal
import subprocess
import sys
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Final

from kwire.cluster.layout import folder_of

_READY: Final = re.compile(r"kwire ready on (\S+)")
_FIGURES: Final = re.compile(r"kwire figures (.*)")
_TAIL_BYTES: Final = 4096
SILENT_AFTER_S: Final = 10.0
"""The time without an answer after which a node counts as silent."""


class State(enum.Enum):
    STARTING = "starting"
    READY = "ready"
    SILENT = "silent"
    """It was ready, but does not answer any more: it is stopped or hangs."""
    STOPPING = "stopping"
    ENDED = "ended"


class ClusterNode:
    """One node, and its process while that runs."""

    def __init__(self, node: int, directory: Path, options: Sequence[str]) -> None:
        self.id = node
        self.folder = folder_of(directory, node)
        self.state = State.ENDED
        self.address = ""
        """Its address for clients, once it was ready."""
        self.exit_code: int | None = None
        self.figures: Mapping[str, float] = {}
        """The figures that it sent last."""
        self.records_per_s = 0.0
        """The records that its clients produced per second, between the last two figures."""
        self._requested_at: float | None = None
        """The time of the request for figures that it has not answered."""
        self._options = options
        self._process: subprocess.Popen[bytes] | None = None
        self._pending = b""
        self._log_start = 0

    @property
    def log(self) -> Path:
        return self.folder / "server.log"

    @property
    def is_running(self) -> bool:
        return self._process is not None

    @property
    def pid(self) -> int:
        assert self._process is not None
        return self._process.pid

    def start(self) -> int:
        """Start the process; return the descriptor of its standard output."""
        command = [sys.executable, "-m", "kwire", "serve", "--supervised"]
        command += ["--config", str(self.folder / "server.properties"), *self._options]
        with self.log.open("ab") as log:
            self._log_start = log.tell()
            process = subprocess.Popen(
                command,
                bufsize=0,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                start_new_session=True,
            )
        self._process, self.state, self.exit_code = process, State.STARTING, None
        self._pending, self.figures, self.records_per_s = b"", {}, 0.0
        self._requested_at = None
        assert process.stdout is not None
        os.set_blocking(process.stdout.fileno(), False)
        return process.stdout.fileno()

    def ask_figures(self, now: float) -> None:
        """Ask for figures; the answer comes by :meth:`read`.

        Without an answer to the last request there is none, and after a while the node is silent.
        """
        if self._process is None or self.state is not State.READY:
            return
        if self._requested_at is None:
            self._requested_at = now
            assert self._process.stdin is not None
            with suppress(OSError):  # It has just ended, which its output says next.
                self._process.stdin.write(b"figures\n")
        elif now - self._requested_at >= SILENT_AFTER_S:
            self.state = State.SILENT
            self.figures, self.records_per_s = {}, 0.0

    def read(self) -> bool:
        """Take what the process wrote; return False when it has ended."""
        process = self._process
        assert process is not None
        assert process.stdout is not None
        data = process.stdout.read(65536)
        if data is None:
            return True
        if not data:
            self._end(process)
            return False
        *lines, self._pending = (self._pending + data).split(b"\n")
        for line in lines:
            self._on_line(line.decode(errors="replace"))
        return True

    def _on_line(self, line: str) -> None:
        if match := _READY.match(line):
            self.address = match[1]
            if self.state is State.STARTING:
                self.state = State.READY
        elif match := _FIGURES.match(line):
            self._requested_at = None
            if self.state is State.SILENT:
                self.state = State.READY
            pairs = (word.partition("=") for word in match[1].split())
            figures = {name: float(value) for name, _, value in pairs}
            if self.figures:
                elapsed_s = (figures["time_ms"] - self.figures["time_ms"]) / 1000
                produced = figures["records"] - self.figures["records"]
                self.records_per_s = produced / elapsed_s if elapsed_s > 0 else 0.0
            self.figures = figures

    def _end(self, process: subprocess.Popen[bytes]) -> None:
        for stream in (process.stdin, process.stdout):
            if stream is not None:
                stream.close()
        self.exit_code = process.wait()
        self._process, self.state = None, State.ENDED
        self.figures, self.records_per_s = {}, 0.0

    def stop(self) -> None:
        """Begin a stop in order, also of a process that was stopped by a signal."""
        if self._process is not None:
            self.state = State.STOPPING
            self._process.terminate()
            self._process.send_signal(signal.SIGCONT)

    def kill(self) -> None:
        """End the process at once and wait for its end."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()

    @property
    def reason(self) -> str:
        """The cause of its end, in words."""
        code = self.exit_code or 0
        if code < 0:
            return f"signal {-code}"
        return self._last_complaint() or f"exit code {code}"

    def _last_complaint(self) -> str:
        """Return the line with which the process refused to go on; empty if it wrote none."""
        with self.log.open("rb") as log:
            end = log.seek(0, os.SEEK_END)
            log.seek(max(self._log_start, end - _TAIL_BYTES))
            lines = log.read().decode(errors="replace").splitlines()
        return next((x[len("kwire: ") :] for x in reversed(lines) if x.startswith("kwire: ")), "")
