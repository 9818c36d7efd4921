"""`scripts/kwire` run as a process, and the files that it reads."""

import os
import re
import signal
import socket
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from kwire.cluster.ports import free_ports

ROOT = Path(__file__).resolve().parents[3]
KWIRE = str(ROOT / "scripts" / "kwire")
READY = re.compile(r"^kwire ready on (\S+):(\d+)$")
CLUSTER_ID = "MkU3OEVBNTcwNTJENDM2Qg"


class Node:
    """A running `kwire serve`."""

    def __init__(self, process: subprocess.Popen[str], errors: Path) -> None:
        self.process = process
        self.errors = errors
        assert process.stdout is not None
        line = process.stdout.readline().rstrip("\n")
        match = READY.match(line)
        assert match, f"first line {line!r}; stderr: {errors.read_text()}"
        self.host, self.port = match[1], int(match[2])

    def stop(self, number: int = signal.SIGTERM) -> int:
        self.process.send_signal(number)
        return self.process.wait(20)


@contextmanager
def serve(cwd: Path, *arguments: str) -> Iterator[Node]:
    """Run `kwire serve` for the length of the block; its errors go to stderr.txt."""
    errors = cwd / "stderr.txt"
    with errors.open("w") as stderr:
        process = subprocess.Popen(
            [KWIRE, "serve", *arguments],
            cwd=cwd,
            env={**os.environ, "TMPDIR": str(cwd)},  # a node that is killed leaves its data
            text=True,
            stdout=subprocess.PIPE,
            stderr=stderr,
        )
    try:
        yield Node(process, errors)
    finally:
        process.kill()
        process.wait()
        assert process.stdout is not None
        process.stdout.close()


def run(cwd: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Run a command to its end."""
    return subprocess.run(
        [KWIRE, *arguments], cwd=cwd, text=True, capture_output=True, timeout=60, check=False
    )


def install() -> None:
    """Install what `scripts/kwire` needs, if anything is missing."""
    subprocess.run([KWIRE, "--version"], capture_output=True, timeout=600, check=True)


def api_versions_error(port: int) -> int:
    """Return the error code of an ApiVersions v0 response; its request is the smallest one."""
    with socket.create_connection(("127.0.0.1", port), 10) as connection:
        connection.sendall(b"\x00\x00\x00\x0e\x00\x12\x00\x00\x00\x00\x00\x07\x00\x04test")
        answer = connection.recv(65536)
    assert answer[4:8] == b"\x00\x00\x00\x07"
    return int.from_bytes(answer[8:10], "big")


def free_port() -> int:
    (port,) = free_ports(1)
    return port


def config_file(folder: Path, **changes: str) -> Path:
    """Write the configuration of a single node, with the settings that Apache Kafka needs."""
    port, controller = free_port(), free_port()
    properties = {
        "process.roles": "broker,controller",
        "node.id": "5",
        "controller.quorum.voters": f"5@127.0.0.1:{controller}",
        "listeners": f"PLAINTEXT://127.0.0.1:{port},CONTROLLER://127.0.0.1:{controller}",
        "advertised.listeners": f"PLAINTEXT://127.0.0.1:{port}",
        "controller.listener.names": "CONTROLLER",
        "inter.broker.listener.name": "PLAINTEXT",
        "log.dirs": str(folder / "data"),
        "offsets.topic.replication.factor": "1",
    }
    properties.update({key.replace("_", "."): value for key, value in changes.items()})
    path = folder / "server.properties"
    path.write_text("".join(f"{key}={value}\n" for key, value in properties.items()))
    return path
