"""A small HTTP server for monitoring: metrics, liveness and readiness.

It answers GET and HEAD of the pages it is given and closes after each answer.  A page that fails
is logged and answered with 500: monitoring must not end a node.  At most :data:`CLIENTS_MAX`
connections are open at a time; others wait in the kernel, where they cost no descriptor.
"""

import logging
from collections.abc import Awaitable, Callable, Iterable, Mapping
from typing import Final, NamedTuple

import trio

from kwire.drive import Slices

log = logging.getLogger(__name__)

REQUEST_BYTES_MAX: Final = 16 << 10
PATIENCE_S: Final = 10.0
CLIENTS_MAX: Final = 64
EXHAUSTED_PAUSE_S: Final = 0.25
"""The pause before the next accept after one failed for lack of descriptors."""
_REASONS: Final = {
    200: "OK",
    404: "Not Found",
    405: "Method Not Allowed",
    500: "Internal Server Error",
    503: "Service Unavailable",
}


class Page(NamedTuple):
    """An answer: the status and the lines of the body."""

    status: int
    lines: Iterable[str]


Pages = Mapping[str, Callable[[], Awaitable[Page]]]
"""The functions that make the pages, by path."""


async def serve_pages(
    host: str,
    port: int,
    pages: Pages,
    task_status: trio.TaskStatus[int] = trio.TASK_STATUS_IGNORED,
) -> None:
    """Serve these pages until cancelled; report the port.  An empty host means every interface."""
    listeners = await trio.open_tcp_listeners(port, host=host or None)
    places = trio.Semaphore(CLIENTS_MAX)
    async with trio.open_nursery() as nursery:
        for listener in listeners:
            nursery.start_soon(_accept, pages, places, listener, nursery)
        task_status.started(listeners[0].socket.getsockname()[1])


async def _accept(
    pages: Pages, places: trio.Semaphore, listener: trio.SocketListener, clients: trio.Nursery
) -> None:
    """Accept while places are free; each listener keeps one for its next client."""
    async with listener:
        while True:
            await places.acquire()
            try:
                stream = await listener.accept()
            except OSError as error:  # the process or the kernel has no descriptors left
                log.warning("accept paused listener=metrics reason=%s", error)
                places.release()
                await trio.sleep(EXHAUSTED_PAUSE_S)
            else:
                clients.start_soon(_serve, pages, places, stream)


async def _serve(pages: Pages, places: trio.Semaphore, stream: trio.SocketStream) -> None:
    try:
        with trio.move_on_after(PATIENCE_S):
            async with stream:
                head = await _head(stream)
                if head:
                    await stream.send_all(await _answer(pages, head))
    except trio.BrokenResourceError:
        pass
    finally:
        places.release()


async def _answer(pages: Pages, head: bytes) -> bytes:
    method, _, rest = head.partition(b" ")
    path = rest.partition(b" ")[0].partition(b"?")[0].decode("latin-1")
    if method not in (b"GET", b"HEAD"):
        page = Page(405, ["only GET and HEAD"])
    elif path not in pages:
        page = Page(404, [f"only {', '.join(pages)}"])
    else:
        try:
            page = await pages[path]()
            return _message(method, page.status, await _body(page.lines))
        except Exception:
            log.exception("page failed path=%s", path)
            page = Page(500, ["failed; the log of the node says why"])
    return _message(method, page.status, await _body(page.lines))


def _message(method: bytes, status: int, body: bytes) -> bytes:
    head = (
        f"HTTP/1.1 {status} {_REASONS[status]}\r\n"
        "Content-Type: text/plain; version=0.0.4; charset=utf-8\r\n"
        f"Content-Length: {len(body)}\r\nConnection: close\r\n\r\n"
    )
    return head.encode() + (b"" if method == b"HEAD" else body)


async def _body(lines: Iterable[str]) -> bytes:
    """Join all lines, in slices: a node with many partitions has many."""
    body = bytearray()
    slices = Slices()
    for line in lines:
        body += line.encode()
        body += b"\n"
        await slices.pause()
    return bytes(body)


async def _head(stream: trio.SocketStream) -> bytes:
    """Return a whole request head, or no bytes if the client closed before its end."""
    head = bytearray()
    while b"\r\n\r\n" not in head and len(head) < REQUEST_BYTES_MAX:
        more = await stream.receive_some(REQUEST_BYTES_MAX)
        if not more:
            return b""
        head += more
    return bytes(head)
