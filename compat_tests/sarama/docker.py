"""A replacement for the `docker compose` commands with which sarama's tests steer their cluster.

The program `docker` that the tests find passes its arguments to a :class:`Compose` in the runner,
which has the processes, and does what it answers: print a text, or become a tool of Kafka's.
Containers are named `kafka-1` to `kafka-5`, as in sarama's docker-compose.yml.
"""

from __future__ import annotations

import json
import os
import socketserver
import sys
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import attrs

from compat_tests.cluster.nodes import Cluster, Node

PROGRAM = """\
#!{python} -S
import json, os, socket, sys

with socket.socket(socket.AF_UNIX) as link:
    link.connect({path!r})
    link.sendall(json.dumps(sys.argv[1:]).encode() + b"\\n")
    answer = json.loads(link.makefile().readline())
if answer["command"]:
    os.execvp(answer["command"][0], answer["command"])
sys.stdout.write(answer["output"])
sys.exit(answer["code"])
"""
UNNEEDED = ("up", "down", "rm")
"""Commands about the whole cluster, which runs already and is ended by the runner."""


@attrs.frozen
class Answer:
    """The end of a `docker` command: a command to become, or else an output and an exit code."""

    command: Sequence[str] = ()
    output: str = ""
    code: int = 0


@attrs.frozen
class Compose:
    """The containers: the cluster's nodes, with Kafka's tools in ``home``.

    ``release`` is the folder of Kafka in sarama's containers, and ``internal`` the first node's
    address in their network; commands get the real ones.
    """

    cluster: Cluster
    home: Path
    release: str
    internal: str

    def answer(self, arguments: Sequence[str]) -> Answer:
        if len(arguments) < 2 or arguments[0] != "compose":
            return Answer(output=f"unknown command: docker {arguments}\n", code=2)
        words = list(arguments[1:])
        if words[0] == "--profile":
            del words[:2]
        verb, *rest = words
        if verb in UNNEEDED:
            return Answer()
        if verb == "exec" and rest[0] == "-T":
            return Answer(command=[self._localize(word) for word in rest[2:]])
        node = self._node(rest[-1])
        if verb == "start" and not node.alive:
            node.launch()
        elif verb == "stop" and node.alive:
            node.stop()
        elif verb == "logs":
            return Answer(output=node.read_log())
        return Answer()

    def _localize(self, word: str) -> str:
        first = self.cluster.nodes[1].address
        return word.replace(self.release, str(self.home)).replace(self.internal, first)

    def _node(self, container: str) -> Node:
        return self.cluster.nodes[int(container.removeprefix("kafka-"))]


@contextmanager
def serving(compose: Compose, folder: Path) -> Iterator[Path]:
    """Answer the program `docker`; yield the folder in which it lies."""
    path = folder / "docker.sock"
    programs = folder / "programs"
    programs.mkdir()
    docker = programs / "docker"
    docker.write_text(PROGRAM.format(python=sys.executable, path=str(path)))
    docker.chmod(0o755)

    class Handler(socketserver.StreamRequestHandler):
        def handle(self) -> None:
            answer = compose.answer(json.loads(self.rfile.readline()))
            self.wfile.write(json.dumps(attrs.asdict(answer)).encode() + b"\n")

    with socketserver.ThreadingUnixStreamServer(os.fspath(path), Handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        try:
            yield programs
        finally:
            server.shutdown()
