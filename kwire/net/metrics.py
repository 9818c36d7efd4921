"""Answers Prometheus: GET of anything gives the node's metrics as text."""

from collections.abc import Callable
from functools import partial
from typing import Final

import trio

REQUEST_BYTES_MAX: Final = 16 << 10
PATIENCE_S: Final = 10.0


async def serve_metrics(
    host: str,
    port: int,
    text: Callable[[], str],
    task_status: trio.TaskStatus[int] = trio.TASK_STATUS_IGNORED,
) -> None:
    """Serve ``text`` until cancelled; started with the port."""
    listeners = await trio.open_tcp_listeners(port, host=host or None)
    async with trio.open_nursery() as nursery:
        bound = await nursery.start(trio.serve_listeners, partial(_answer, text), listeners)
        task_status.started(bound[0].socket.getsockname()[1])


async def _answer(text: Callable[[], str], stream: trio.SocketStream) -> None:
    with trio.move_on_after(PATIENCE_S):
        async with stream:
            try:
                if await _asked(stream):
                    body = text().encode()
                    await stream.send_all(
                        b"HTTP/1.1 200 OK\r\nContent-Type: text/plain; version=0.0.4\r\n"
                        b"Content-Length: %d\r\nConnection: close\r\n\r\n%s" % (len(body), body)
                    )
            except trio.BrokenResourceError:
                pass


async def _asked(stream: trio.SocketStream) -> bool:
    """Whether a whole request head came that reads something."""
    head = bytearray()
    while b"\r\n\r\n" not in head and len(head) < REQUEST_BYTES_MAX:
        more = await stream.receive_some(REQUEST_BYTES_MAX)
        if not more:
            return False
        head += more
    return head.startswith(b"GET ")
