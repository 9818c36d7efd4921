"""The network between the nodes of the real world: a proxy for each pair and direction of requests.

A proxy passes bytes on, holds them while the connection is cut, and changes one byte on request.
"""

import socket
import threading
from collections.abc import Callable
from functools import partial
from typing import Final

import trio

HOLD_S: Final = 0.01
HOST: Final = "127.0.0.1"


class Proxies:
    """The proxies of all pairs of nodes, which one thread runs."""

    def __init__(self, ids: list[int], port_of: Callable[[int], int]) -> None:
        self.cut: set[tuple[int, int]] = set()
        self.damage: tuple[int, int, bytes] | None = None
        self.ports: dict[tuple[int, int], int] = {}
        """By source and target of the requests."""
        self._port_of = port_of
        self._sockets: dict[tuple[int, int], socket.socket] = {}
        for way in [(a, b) for a in ids for b in ids if a != b]:
            listening = socket.create_server((HOST, 0))
            self._sockets[way] = listening
            self.ports[way] = listening.getsockname()[1]
        self._started = threading.Event()
        self._thread = threading.Thread(target=trio.run, args=(self._run,), daemon=True)
        self._thread.start()
        self._started.wait()

    def close(self) -> None:
        self._token.run_sync_soon(self._scope.cancel)
        self._thread.join()

    async def _run(self) -> None:
        self._token = trio.lowlevel.current_trio_token()
        async with trio.open_nursery() as nursery:
            self._scope = nursery.cancel_scope
            for way, listening in self._sockets.items():
                listener = trio.SocketListener(_as_trio(listening))
                serve = partial(self._connection, *way)
                nursery.start_soon(partial(trio.serve_listeners, serve, [listener]))
            self._started.set()

    async def _connection(self, source: int, target: int, near: trio.SocketStream) -> None:
        try:
            far = await trio.open_tcp_stream(HOST, self._port_of(target))
        except OSError:
            return
        async with near, far, trio.open_nursery() as nursery:

            async def pass_on(
                a: int, b: int, reading: trio.SocketStream, writing: trio.SocketStream
            ) -> None:
                await self._pass_on(a, b, reading, writing)
                nursery.cancel_scope.cancel()

            nursery.start_soon(pass_on, source, target, near, far)
            nursery.start_soon(pass_on, target, source, far, near)

    async def _pass_on(
        self, source: int, target: int, reading: trio.SocketStream, writing: trio.SocketStream
    ) -> None:
        try:
            async for data in reading:
                while (source, target) in self.cut:  # noqa: ASYNC110 - set by another thread
                    await trio.sleep(HOLD_S)
                await writing.send_all(self._damage_once(source, target, data))
        except (trio.BrokenResourceError, trio.ClosedResourceError):
            pass

    def _damage_once(self, source: int, target: int, data: bytes | bytearray) -> bytes:
        data = bytes(data)
        if self.damage is None or self.damage[:2] != (source, target):
            return data
        place = data.find(self.damage[2])
        if place < 0:
            return data
        self.damage = None
        return data[:place] + bytes([data[place] ^ 1]) + data[place + 1 :]


def _as_trio(listening: socket.socket) -> trio.socket.SocketType:
    return trio.socket.from_stdlib_socket(listening)
