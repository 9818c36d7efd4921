"""Links through proxies, where network namespaces are not permitted.

Each listener of each node has a proxy in front of it, whose address the node advertises. A proxy
learns which node a connection comes from by the process that has its socket (`/proc`); any other
process is a client. While a link is cut, the proxies pass nothing on in its direction, and open no
connection over it. Rule: everything here runs in one thread, on an event loop of its own.
"""

from __future__ import annotations

import asyncio
import os
import threading
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import Future
from contextlib import suppress
from itertools import chain
from pathlib import Path
from typing import Any

import attrs

from compat_tests.nemesis.links import CLIENTS, all_links

LOOPBACK = "127.0.0.1"
PIECE = 1 << 16


@attrs.define
class Proxies:
    """The proxies of a cluster and the links that are cut."""

    node_ids: tuple[int, ...]
    process_ids: Callable[[], Mapping[int, int]]
    """Returns the process id of each node that runs, by node id."""
    name: str = "proxies"
    _loop: asyncio.AbstractEventLoop = attrs.field(factory=asyncio.new_event_loop)
    _open: dict[tuple[int, int], asyncio.Event] = attrs.field(factory=dict)
    """For each link an event that is set while it is not cut."""
    _tasks: set[asyncio.Task[Any]] = attrs.field(factory=set)

    def __attrs_post_init__(self) -> None:
        threading.Thread(target=self._loop.run_forever, daemon=True).start()
        for link in all_links(self.node_ids):
            self._open[link] = asyncio.Event()
        self.heal()

    def host(self, node_id: int) -> str:
        return LOOPBACK

    def prefix(self, node_id: int) -> tuple[str, ...]:
        return ()

    def add(self, node_id: int, port: int) -> int:
        """Start a proxy in front of a node's port; return its own port."""

        async def serve() -> int:
            async def accept(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
                await self._serve(node_id, port, reader, writer)

            server = await asyncio.start_server(accept, LOOPBACK, 0)
            return int(server.sockets[0].getsockname()[1])

        return self._call(serve()).result()

    def cut(self, source: int, target: int) -> None:
        self._loop.call_soon_threadsafe(self._open[source, target].clear)

    def unplug(self, node_id: int) -> None:
        for link in self._open:
            if node_id in link:
                self.cut(*link)

    def heal(self) -> None:
        for event in self._open.values():
            self._loop.call_soon_threadsafe(event.set)

    def close(self) -> None:
        self._loop.call_soon_threadsafe(self._loop.stop)

    def _call(self, coroutine: Any) -> Future[Any]:
        return asyncio.run_coroutine_threadsafe(coroutine, self._loop)

    async def _serve(
        self, node_id: int, port: int, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        source = self._source(writer.get_extra_info("peername")[1])
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

    def _source(self, port: int) -> int:
        """Return the node whose process has the socket at a local port, else :data:`CLIENTS`."""
        inodes = _inodes(port)
        for node_id, process_id in self.process_ids().items():
            with suppress(OSError):
                for entry in os.scandir(f"/proc/{process_id}/fd"):
                    with suppress(OSError):
                        if os.readlink(entry.path) in inodes:
                            return node_id
        return CLIENTS


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
