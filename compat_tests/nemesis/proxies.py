"""Links through proxies, where network namespaces are not permitted.

Each listener of each node has a proxy in front of it, whose address the node advertises. A proxy
learns which node a connection comes from by the process that has its socket (`/proc`); any other
process is a client. While a link is cut, the proxies pass nothing on in its direction, and open no
connection over it. They run in a process of their own, for the threads of the clients would hold
them up; commands and answers are lines of JSON on its standard input and output.
"""

from __future__ import annotations

import asyncio
import json
import os
import re
import subprocess
import sys
from collections.abc import Iterable, Iterator
from contextlib import suppress
from itertools import chain
from pathlib import Path
from typing import Any

import attrs

from compat_tests.harness.broker import ROOT
from compat_tests.nemesis.links import CLIENTS, all_links
from compat_tests.nemesis.relay import Pace

LOOPBACK = "127.0.0.1"
PIECE = 1 << 16
CONFIG = re.compile(rb"/node-(\d+)/server\.properties")
"""The argument of a node's process that names its configuration."""


@attrs.define
class Proxies:
    """The process of a cluster's proxies."""

    node_ids: tuple[int, ...]
    name: str = "proxies"
    _process: subprocess.Popen[str] = attrs.field(init=False)

    def __attrs_post_init__(self) -> None:
        command = [sys.executable, "-m", "compat_tests.nemesis.proxies"]
        self._process = subprocess.Popen(
            [*command, *map(str, self.node_ids)],
            cwd=ROOT,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )

    def host(self, node_id: int) -> str:
        return LOOPBACK

    def prefix(self, node_id: int) -> tuple[str, ...]:
        return ()

    def add(self, node_id: int, port: int) -> int:
        """Start a proxy in front of a node's port; return its own port."""
        return self._command("add", node_id, port)

    def cut(self, source: int, target: int) -> None:
        self._command("cut", source, target)

    can_refuse = False

    def refuse(self, source: int, target: int, *, with_reset: bool) -> None:
        raise NotImplementedError

    can_slow = False

    def slow(self, source: int, target: int, pace: Pace) -> None:
        raise NotImplementedError

    def unplug(self, node_id: int) -> None:
        for source, target in all_links(self.node_ids):
            if node_id in (source, target):
                self.cut(source, target)

    def heal(self) -> None:
        self._command("heal")

    def close(self) -> None:
        self._process.kill()
        self._process.wait()

    def _command(self, *words: str | int) -> int:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(json.dumps(words) + "\n")
        self._process.stdin.flush()
        return int(json.loads(self._process.stdout.readline()))


@attrs.define
class Relay:
    """The proxies themselves, in their process."""

    node_ids: tuple[int, ...]
    _open: dict[tuple[int, int], asyncio.Event] = attrs.field(factory=dict)
    """For each link an event that is set while it is not cut."""

    async def run(self) -> None:
        """Perform the commands on standard input until it ends."""
        self._open = {link: asyncio.Event() for link in all_links(self.node_ids)}
        self._heal()
        reader = asyncio.StreamReader()
        loop = asyncio.get_running_loop()
        await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), sys.stdin)
        while line := await reader.readline():
            print(await self._perform(*json.loads(line)), flush=True)

    async def _perform(self, name: str, *numbers: int) -> int:
        if name == "add":
            return await self._add(*numbers)
        if name == "cut":
            source, target = numbers
            self._open[source, target].clear()
        else:
            self._heal()
        return 0

    def _heal(self) -> None:
        for event in self._open.values():
            event.set()

    async def _add(self, node_id: int, port: int) -> int:
        async def accept(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            await self._serve(node_id, port, reader, writer)

        server = await asyncio.start_server(accept, LOOPBACK, 0)
        return int(server.sockets[0].getsockname()[1])

    async def _serve(
        self, node_id: int, port: int, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        source = _source(writer.get_extra_info("peername")[1])
        out, back = (source, node_id), (node_id, source)
        try:
            if source != node_id:
                await self._open[out].wait()
                await self._open[back].wait()
            with suppress(OSError):
                near = await asyncio.open_connection(LOOPBACK, port)
                await self._wait_relayed(out, back, (reader, writer), near)
        finally:
            writer.transport.abort()

    async def _wait_relayed(self, out: Any, back: Any, far: Any, near: Any) -> None:
        """Pass bytes on in both directions until either end closes."""
        pumps = [
            asyncio.ensure_future(self._pump(out, far[0], near[1])),
            asyncio.ensure_future(self._pump(back, near[0], far[1])),
        ]
        try:
            await asyncio.wait(pumps, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for pump in pumps:
                pump.cancel()
            near[1].transport.abort()

    async def _pump(
        self, link: tuple[int, int], reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        with suppress(OSError):
            while piece := await reader.read(PIECE):
                if link in self._open:
                    await self._open[link].wait()
                writer.write(piece)
                await writer.drain()


def _source(port: int) -> int:
    """Return the node whose process has the socket at a local port, else :data:`CLIENTS`."""
    inodes = _inodes(port)
    for node_id, process_id in _nodes():
        with suppress(OSError):
            for entry in os.scandir(f"/proc/{process_id}/fd"):
                with suppress(OSError):
                    if os.readlink(entry.path) in inodes:
                        return node_id
    return CLIENTS


def _nodes() -> Iterator[tuple[int, str]]:
    """Yield the node id and the process id of the nodes that the parent process runs."""
    parent = os.getppid()
    children = Path(f"/proc/{parent}/task/{parent}/children").read_text().split()
    for process_id in children:
        with suppress(OSError):
            match = CONFIG.search(Path(f"/proc/{process_id}/cmdline").read_bytes())
            if match is not None:
                yield int(match[1]), process_id


def _inodes(port: int) -> set[str]:
    """Return the names of the sockets at a local port, as `/proc/PID/fd` links to them."""
    names: set[str] = set()
    lines: Iterable[str] = chain.from_iterable(
        Path(f"/proc/net/{table}").read_text().splitlines()[1:] for table in ("tcp", "tcp6")
    )
    for line in lines:
        fields = line.split()
        if fields[1].endswith(f":{port:04X}"):
            names.add(f"socket:[{fields[9]}]")
    return names


if __name__ == "__main__":
    with suppress(KeyboardInterrupt):
        asyncio.run(Relay(tuple(map(int, sys.argv[1:]))).run())
