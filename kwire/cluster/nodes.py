"""One node of a cluster as its supervisor sees it: a process, its state and its figures.

Rules: a node runs in its own session, so that Ctrl-C reaches only the supervisor, which then stops
the nodes cleanly. Its standard input is a pipe; the node stops at the end of that pipe, so it never
outlives the supervisor. Its standard output carries the ready line and its figures; its log is a
file, or goes to the supervisor's standard error. At most one request for figures is outstanding, so
a node that is stopped or hangs never fills the pipe and blocks nothing.
"""

import enum
import os
import re
import signal
import subprocess
import sys
from collections.abc import Mapping, Sequence
from contextlib import nullcontext, suppress
from pathlib import Path
from typing import Final

_READY: Final = re.compile(r"kwire ready on (\S+)")
_FIGURES: Final = re.compile(r"kwire figures (.*)")
_TAIL_BYTES: Final = 4096
SILENT_AFTER_S: Final = 10.0
"""The seconds without an answer after which a node is considered silent."""


class NodeState(enum.Enum):
    STARTING = "starting"
    READY = "ready"
    SILENT = "silent"
    """The node was ready but no longer answers: it is suspended or hangs."""
    STOPPING = "stopping"
    ENDED = "ended"


class ClusterNode:
    """One node, and its process while it runs."""

    def __init__(
        self, node: int, config: Path, options: Sequence[str], log: Path | None = None
    ) -> None:
        """``config`` is the settings file; without ``log``, the node writes to our stderr."""
        self.id = node
        self.log = log
        self.state = NodeState.ENDED
        self.address = ""
        """The node's client address, once it has been ready."""
        self.exit_code: int | None = None
        self.figures: Mapping[str, float] = {}
        """The figures that the node sent last."""
        self.records_per_s = 0.0
        """Records per second that its clients produced between the last two figures."""
        self._requested_at: float | None = None
        """The time of the outstanding request for figures; None if there is none."""
        self.options = options
        """The options for the node's next start, besides its settings file."""
        self._config = config
        self._process: subprocess.Popen[bytes] | None = None
        self._pending = b""
        self._log_start = 0
        self._is_outdated = False
        """True if the answer to the outstanding request must be ignored."""

    @property
    def is_running(self) -> bool:
        return self._process is not None

    @property
    def pid(self) -> int:
        assert self._process is not None
        return self._process.pid

    def start(self) -> int:
        """Start the process; return the descriptor of its standard output."""
        supervised = "--supervised" if self.log is not None else f"--supervised={self.id}"
        command = [sys.executable, "-m", "kwire", "serve", supervised]
        command += ["--config", str(self._config), *self.options]
        with nullcontext() if self.log is None else self.log.open("ab") as log:
            self._log_start = 0 if log is None else log.tell()
            process = subprocess.Popen(
                command,
                bufsize=0,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                start_new_session=True,
            )
        self._process, self.state, self.exit_code = process, NodeState.STARTING, None
        self._pending, self.figures, self.records_per_s = b"", {}, 0.0
        self._requested_at, self._is_outdated = None, False
        assert process.stdout is not None
        os.set_blocking(process.stdout.fileno(), False)
        return process.stdout.fileno()

    def ask_figures(self, now: float) -> None:
        """Ask for figures; the answer arrives through :meth:`read`.

        Nothing is sent while a request is outstanding; after :data:`SILENT_AFTER_S` the node is
        silent.
        """
        if self._process is None or self.state is not NodeState.READY:
            return
        if self._requested_at is None:
            self._requested_at = now
            assert self._process.stdin is not None
            with suppress(OSError):  # The node has just ended; the next read notices that.
                self._process.stdin.write(b"figures\n")
        elif now - self._requested_at >= SILENT_AFTER_S:
            self.state = NodeState.SILENT
            self.figures, self.records_per_s = {}, 0.0

    def read(self) -> bool:
        """Process what the node wrote; return False once it has ended."""
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
            if self.state is NodeState.STARTING:
                self.state = NodeState.READY
        elif match := _FIGURES.match(line):
            self._requested_at = None
            if self.state is NodeState.SILENT:
                self.state = NodeState.READY
            if self._is_outdated:
                self._is_outdated = False
                return
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
        self._process, self.state = None, NodeState.ENDED
        self.figures, self.records_per_s = {}, 0.0

    def stop(self) -> None:
        """Begin a clean stop, even of a process that is suspended by a signal."""
        if self._process is not None:
            self.state = NodeState.STOPPING
            self._process.terminate()
            self._process.send_signal(signal.SIGCONT)

    def forget_figures(self) -> None:
        """Discard the figures, so that the next ones come from a request sent after this call."""
        self.figures, self.records_per_s = {}, 0.0
        self._is_outdated = self._requested_at is not None

    def send_kill(self) -> None:
        """Kill the process without waiting: a hanging disk can delay its end."""
        if self._process is not None:
            self._process.kill()

    def kill(self) -> None:
        """Kill the process and wait for its end."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()

    @property
    def reason(self) -> str:
        """The reason why the process ended, as text."""
        code = self.exit_code or 0
        if code < 0:
            return f"signal {-code}"
        return self._last_complaint() or f"exit code {code}"

    @property
    def where_log(self) -> str:
        """The location of the log, for the end of a message; empty if it is our standard error."""
        return "" if self.log is None else f"; its log is {self.log}"

    def _last_complaint(self) -> str:
        """Return the last error in the process's log file; empty without an error or a log file."""
        if self.log is None:
            return ""
        with self.log.open("rb") as log:
            end = log.seek(0, os.SEEK_END)
            log.seek(max(self._log_start, end - _TAIL_BYTES))
            lines = log.read().decode(errors="replace").splitlines()
        return next((x[len("kwire: ") :] for x in reversed(lines) if x.startswith("kwire: ")), "")
