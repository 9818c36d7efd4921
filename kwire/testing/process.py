"""A broker in its own process: for tests that kill it, or that must not share its process.

The process ends with the context in which it was started; all its log lines are kept.
"""

import signal
import subprocess
import sys
import threading
from pathlib import Path
from typing import Final, Self

from kwire.net.listener import Address
from kwire.testing.errors import BrokerError
from kwire.testing.settings import kafka_settings
from kwire.testing.wire import WireClient

READY: Final = "kwire ready on "
STOP_S: Final = 30.0


class BrokerProcess:
    """One broker process: ``with BrokerProcess(directory, num_partitions=4) as process: ...``.

    The keyword arguments are Kafka's settings, with underscores for dots.
    """

    def __init__(self, directory: Path, **settings: object) -> None:
        self.directory = directory
        self.log_lines: list[str] = []
        """The lines of its log."""
        self._settings = kafka_settings(settings)
        self._address = Address("127.0.0.1", 0)
        """Any free port at the first start; a restart uses the same port."""
        self._process: subprocess.Popen[str] | None = None
        self._reader: threading.Thread | None = None

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    @property
    def address(self) -> Address:
        """The host and the port for clients."""
        return self._address

    @property
    def bootstrap_servers(self) -> str:
        """The address for clients, as in ``bootstrap.servers``."""
        return f"{self._address.host}:{self._address.port}"

    def start(self) -> None:
        """Start the process and wait until it reports that it is ready; raise BrokerError."""
        arguments = [f"--override=log.dirs={self.directory}", f"--port={self._address.port}"]
        arguments += [f"--override={key}={value}" for key, value in self._settings.items()]
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
                host, _, port = line[len(READY) :].strip().rpartition(":")
                self._address = Address(host, int(port))
                return
        self.stop()
        raise BrokerError("\n".join(["the broker cannot start:", *self.log_lines[-20:]]))

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
    def is_alive(self) -> bool:
        return self._process is not None and self._process.poll() is None

    def client(self) -> WireClient:
        """Return a raw connection to the broker."""
        return WireClient(*self._address)

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
