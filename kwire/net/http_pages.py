"""A small HTTP server for monitoring: metrics, liveness and readiness.

It answers GET and HEAD requests for the given pages and closes the connection after each answer. A
page that fails is logged and answered with 500: monitoring must not end a node. At most
:data:`CLIENTS_MAX` connections are open at a time; others wait in the kernel, where they do not use
a descriptor. Clients share bodies, so that the memory for a large page does not grow with the
number of slow clients.
"""

import logging
from collections.abc import Awaitable, Callable, Iterable, Mapping
from http import HTTPStatus
from typing import Final, NamedTuple

import trio

from kwire.drive import Slices

logger = logging.getLogger(__name__)

REQUEST_BYTES_MAX: Final = 16 << 10
PATIENCE_S: Final = 10.0
CLIENTS_MAX: Final = 64
EXHAUSTED_PAUSE_S: Final = 0.25
"""The pause before the next accept after one failed for lack of descriptors."""
BODIES_MAX: Final = 4
"""The most large bodies per page in memory; further clients get the newest body, which is then at
most as old as :data:`PATIENCE_S`."""
SMALL_BODY_BYTES: Final = 64 << 10
"""The size up to which bodies are not shared, so that liveness is always current."""


class Page(NamedTuple):
    """A page to send: the HTTP status and the lines of the body.

    None among the lines is no line: it took work to find that there is nothing to show.
    """

    status: int
    lines: Iterable[str | None]


Pages = Mapping[str, Callable[[], Awaitable[Page]]]
"""The functions that create the pages, by path."""


class _Body:
    """A body that is sent to one or more clients."""

    def __init__(self) -> None:
        self.status = 0
        self.data: bytes | None = None
        self.client_count = 0
        self._lock = trio.Lock()  # lock: one client creates the body, and others wait for it

    async def make(self, make_page: Callable[[], Awaitable[Page]]) -> None:
        """Create the body if necessary; if that fails or is cancelled, the next client retries."""
        async with self._lock:
            if self.data is None:
                page = await make_page()
                self.status, self.data = page.status, await join_lines(page.lines)


class _SharedPage:
    """A page; once it has :data:`BODIES_MAX` large bodies, further clients share them."""

    def __init__(self, make_page: Callable[[], Awaitable[Page]]) -> None:
        self._make_page = make_page
        self._bodies: list[_Body] = []

    async def take(self) -> _Body:
        """Return a body for one client, which calls :meth:`release` once it is sent."""
        if len(self._bodies) < BODIES_MAX:
            self._bodies.append(_Body())
        body = self._bodies[-1]
        body.client_count += 1
        try:
            await body.make(self._make_page)
        except BaseException:
            self.release(body)
            raise
        if len(body.data or b"") <= SMALL_BODY_BYTES:
            self._discard(body)
        return body

    def release(self, body: _Body) -> None:
        body.client_count -= 1
        if not body.client_count:
            self._discard(body)

    def _discard(self, body: _Body) -> None:
        if body in self._bodies:
            self._bodies.remove(body)


_SharedPages = Mapping[str, _SharedPage]


async def serve_pages(
    host: str,
    port: int,
    pages: Pages,
    task_status: trio.TaskStatus[int] = trio.TASK_STATUS_IGNORED,
) -> None:
    """Serve these pages until cancelled; report the port.  An empty host means every interface."""
    listeners = await trio.open_tcp_listeners(port, host=host or None)
    places = trio.Semaphore(CLIENTS_MAX)
    shared = {path: _SharedPage(make_page) for path, make_page in pages.items()}
    async with trio.open_nursery() as nursery:
        for listener in listeners:
            nursery.start_soon(_accept, shared, places, listener, nursery)
        task_status.started(listeners[0].socket.getsockname()[1])


async def _accept(
    pages: _SharedPages,
    places: trio.Semaphore,
    listener: trio.SocketListener,
    clients: trio.Nursery,
) -> None:
    """Accept while places are free; each listener keeps one place for its next client."""
    async with listener:
        while True:
            await places.acquire()
            try:
                stream = await listener.accept()
            except OSError as error:  # the process or the kernel has no descriptors left
                logger.warning("accept paused listener=metrics reason=%s", error)
                places.release()
                await trio.sleep(EXHAUSTED_PAUSE_S)
            else:
                clients.start_soon(_serve, pages, places, stream)


async def _serve(pages: _SharedPages, places: trio.Semaphore, stream: trio.SocketStream) -> None:
    try:
        with trio.move_on_after(PATIENCE_S):
            async with stream:
                head = await _read_head(stream)
                if head:
                    await _answer(stream, pages, head)
    except trio.BrokenResourceError:
        pass
    finally:
        places.release()


async def _answer(stream: trio.SocketStream, pages: _SharedPages, head: bytes) -> None:
    method, _, rest = head.partition(b" ")
    path = rest.partition(b" ")[0].partition(b"?")[0].decode("latin-1")
    is_head = method == b"HEAD"
    if method not in (b"GET", b"HEAD"):
        await _send(stream, 405, b"only GET and HEAD\n", is_head)
    elif path not in pages:
        await _send(stream, 404, f"only {', '.join(pages)}\n".encode(), is_head)
    else:
        page = pages[path]
        try:
            body = await page.take()
        except Exception:
            logger.exception("page failed path=%s", path)
            await _send(stream, 500, b"failed; the log of the node says why\n", is_head)
            return
        try:
            await _send(stream, body.status, body.data or b"", is_head)
        finally:
            page.release(body)


async def _send(stream: trio.SocketStream, status: int, body: bytes, is_head: bool) -> None:
    """Send a response without copying the body."""
    head = (
        f"HTTP/1.1 {status} {HTTPStatus(status).phrase}\r\n"
        "Content-Type: text/plain; version=0.0.4; charset=utf-8\r\n"
        f"Content-Length: {len(body)}\r\nConnection: close\r\n\r\n"
    )
    await stream.send_all(head.encode())
    if not is_head:
        await stream.send_all(body)


async def join_lines(lines: Iterable[str | None]) -> bytes:
    """Join all lines, in slices: a node with many partitions has many lines."""
    body = bytearray()
    slices = Slices()
    for line in lines:
        if line is not None:
            body += line.encode()
            body += b"\n"
        await slices.pause()
    return bytes(body)


async def _read_head(stream: trio.SocketStream) -> bytes:
    """Return a whole request head, or no bytes if the client closed before its end."""
    head = bytearray()
    while b"\r\n\r\n" not in head and len(head) < REQUEST_BYTES_MAX:
        more = await stream.receive_some(REQUEST_BYTES_MAX)
        if not more:
            return b""
        head += more
    return bytes(head)
