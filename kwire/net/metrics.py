"""Answers Prometheus: GET of anything gives the node's metrics as text."""

import time
from collections.abc import Callable, Iterator
from functools import partial
from typing import Final

import trio

REQUEST_BYTES_MAX: Final = 16 << 10
PATIENCE_S: Final = 10.0
SLICE_S: Final = 0.001
"""How long writing the text may keep the loop."""


async def serve_metrics(
    host: str,
    port: int,
    lines: Callable[[], Iterator[str]],
    task_status: trio.TaskStatus[int] = trio.TASK_STATUS_IGNORED,
) -> None:
    """Serve these lines until cancelled; started with the port."""
    listeners = await trio.open_tcp_listeners(port, host=host or None)
    async with trio.open_nursery() as nursery:
        bound = await nursery.start(trio.serve_listeners, partial(_answer, lines), listeners)
        task_status.started(bound[0].socket.getsockname()[1])


async def _answer(lines: Callable[[], Iterator[str]], stream: trio.SocketStream) -> None:
    with trio.move_on_after(PATIENCE_S):
        async with stream:
            try:
                if await _asked(stream):
                    body = await _body(lines())
                    await stream.send_all(
                        b"HTTP/1.1 200 OK\r\nContent-Type: text/plain; version=0.0.4\r\n"
                        b"Content-Length: %d\r\nConnection: close\r\n\r\n%s" % (len(body), body)
                    )
            except trio.BrokenResourceError:
                pass


async def _body(lines: Iterator[str]) -> bytes:
    """All lines; a node with many partitions has many."""
    body = bytearray()
    turn = time.perf_counter()
    for line in lines:
        body += line.encode()
        body += b"\n"
        if time.perf_counter() - turn > SLICE_S:
            await trio.lowlevel.checkpoint()
            turn = time.perf_counter()
    return bytes(body)


async def _asked(stream: trio.SocketStream) -> bool:
    """Whether a whole request head came that reads something."""
    head = bytearray()
    while b"\r\n\r\n" not in head and len(head) < REQUEST_BYTES_MAX:
        more = await stream.receive_some(REQUEST_BYTES_MAX)
        if not more:
            return False
        head += more
    return head.startswith(b"GET ")
