"""`kwire cluster`, or `kwire serve --processes`, run as a process with several nodes."""

import os
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import attrs

from tests.support.command_line.process import ROOT

READY = re.compile(r"kwire ready on (\S+)\n")
LIMIT_S = 90.0


@attrs.define(eq=False)
class RunningCluster:
    """A process with several nodes that has printed its ready line."""

    process: subprocess.Popen[str]
    addresses: list[str] = attrs.field(factory=list)
    lines: list[str] = attrs.field(factory=list)
    """The lines of its log."""

    @property
    def ports(self) -> list[int]:
        return [int(address.rpartition(":")[2]) for address in self.addresses]

    @property
    def node_pids(self) -> list[int]:
        return children(self.process.pid)

    def node_pid(self, directory: Path, node: int) -> int:
        """Return the process id of a node, which its configuration file names."""
        config = str(directory / f"node-{node}" / "server.properties").encode()
        (pid,) = [pid for pid in children(self.process.pid) if config in command_line(pid)]
        return pid

    def wait_line(self, text: str) -> None:
        eventually(lambda: any(text in line for line in self.lines), f"{text!r} in {self.lines}")

    def stop(self, number: int = signal.SIGTERM) -> int:
        self.process.send_signal(number)
        return self.process.wait(LIMIT_S)


def eventually(condition: Callable[[], bool], text: str) -> None:
    deadline = time.monotonic() + LIMIT_S
    while not condition():
        assert time.monotonic() < deadline, text
        time.sleep(0.02)


def children(pid: int) -> list[int]:
    with suppress(OSError):
        text = Path(f"/proc/{pid}/task/{pid}/children").read_text()
        return [int(word) for word in text.split()]
    return []


def command_line(pid: int) -> list[bytes]:
    with suppress(OSError):
        return Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
    return []


@contextmanager
def cluster(cwd: Path, *arguments: str, command: str = "cluster") -> Iterator[RunningCluster]:
    """Run several nodes; at the end their supervisor is killed, which stops them."""
    line = [sys.executable, "-m", "kwire", command, *arguments]
    environment = {**os.environ, "TMPDIR": str(cwd), "PYTHONPATH": str(ROOT)}
    with subprocess.Popen(
        line,
        cwd=cwd,
        env=environment,
        text=True,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    ) as process:
        running = RunningCluster(process)
        assert process.stdout is not None
        assert process.stderr is not None
        reader = threading.Thread(target=running.lines.extend, args=[process.stderr])
        reader.start()
        nodes: list[int] = []
        try:
            first = process.stdout.readline()
            match = READY.fullmatch(first)
            nodes = children(process.pid)
            if match is None:
                process.kill()
                reader.join(LIMIT_S)
                raise AssertionError(f"{first!r}: {running.lines} {logs(cwd)}")
            running.addresses = match[1].split(",")
            yield running
        finally:
            nodes += children(process.pid)
            process.kill()
            reader.join(LIMIT_S)
            eventually(lambda: not any(map(is_alive, nodes)), f"nodes end: {logs(cwd)}")


def is_alive(pid: int) -> bool:
    return b"kwire" in command_line(pid)


def logs(cwd: Path) -> str:
    return "\n".join(path.read_text()[-2000:] for path in cwd.glob("*/node-*/server.log"))
