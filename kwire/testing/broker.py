"""A real broker in its own process, for tests that need one: start, kill, restart.

The process ends with the context in which it was started; its whole log output is kept.
"""

import signal
import subprocess
import sys
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Final

import attrs

from kwire.testing.wire import WireClient

READY: Final = "kwire ready on "
STOP_S: Final = 30.0


class NotReady(Exception):
    """The broker exited before it was ready; the text is the end of its log."""


@attrs.define(eq=False, repr=False)
class BrokerProcess:
    """One broker process; after ``start`` its address is ``host`` and ``port``."""

    directory: Path
    overrides: Mapping[str, str] = attrs.field(factory=dict)
    host: str = ""
    port: int = 0
    """Any free port at the first start; a restart uses the same port."""
    log_lines: list[str] = attrs.field(factory=list)
    """The lines of its log."""
    _process: subprocess.Popen[str] | None = None
    _reader: threading.Thread | None = None

    def start(self) -> None:
        """Start the process and wait until it reports that it is ready."""
        arguments = [f"--override=log.dirs={self.directory}", f"--port={self.port}"]
        arguments += [f"--override={key}={value}" for key, value in self.overrides.items()]
        self._process = subprocess.Popen(
            [sys.executable, "-m", "kwire", "serve", *arguments],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        self._reader = threading.Thread(target=self._listen, args=(self._process,), daemon=True)
        self._reader.start()
        assert self._process.stdout is not None
        for line in self._process.stdout:
            if line.startswith(READY):
                self.host, _, port = line[len(READY) :].strip().rpartition(":")
                self.port = int(port)
                return
        self.stop()
        raise NotReady("\n".join(self.log_lines[-20:]))

    def stop(self) -> int:
        """Send SIGTERM, wait for the process to exit and return the exit code."""
        return self._end(signal.SIGTERM)

    def kill(self) -> None:
        """Send SIGKILL, so that nothing is flushed, and wait for the process to exit."""
        self._end(signal.SIGKILL)

    def restart(self) -> None:
        """Stop the process if it is running, and start it with the same data and port."""
        self.stop()
        self.start()

    @property
    def alive(self) -> bool:
        return self._process is not None and self._process.poll() is None

    def client(self) -> WireClient:
        """Return a raw connection to the broker."""
        return WireClient(self.host, self.port)

    def _listen(self, process: subprocess.Popen[str]) -> None:
        assert process.stderr is not None
        self.log_lines.extend(line.rstrip("\n") for line in process.stderr)

    def _end(self, how: signal.Signals) -> int:
        process, reader = self._process, self._reader
        if process is None or reader is None:
            return 0
        process.send_signal(how)
        try:
            code = process.wait(STOP_S)
        except subprocess.TimeoutExpired:
            process.kill()
            code = process.wait()
        reader.join()
        for stream in (process.stdout, process.stderr):
            if stream is not None:
                stream.close()
        self._process = self._reader = None
        return code


@contextmanager
def broker(directory: Path, **overrides: str) -> Iterator[BrokerProcess]:
    """Run a broker during the context; ``num_partitions="4"`` sets ``num.partitions``."""
    named = {name.replace("_", "."): value for name, value in overrides.items()}
    process = BrokerProcess(directory, named)
    try:
        process.start()
        yield process
    finally:
        process.stop()
