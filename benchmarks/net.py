"""Measure the broker's CPU time for a small request, and for a gigabyte in each direction.

    PYTHONPATH=. python benchmarks/net.py [connections] [requests]

A Heartbeat goes through sockets, dispatch and codec; frames in and regions of files out go through
the connections alone.

CPU of the serving process on two shared cores of an EPYC (Python 3.11), the aim being 35 us:
one connection 25 us (up to 57 us when the core sleeps between requests), twenty 23 us, of which
the kernel's send and receive are 8 us, trio's wait for readability 5 us, dispatch and codec 6 us.
Seconds per GB received in frames of 16 KB 0.96, 128 KB 0.4, 1 MB 0.27 (1.7 without spare buffers);
sent by sendfile in regions of 16 KB 1.6, 128 KB 0.3, 1 MB 0.12.
"""

import os
import socket
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from struct import pack
from typing import IO

import attrs
import trio

from kwire.codec.apis import ListenerType
from kwire.codec.compile import decoder
from kwire.codec.frame import request_frame
from kwire.codec.messages.heartbeat import HeartbeatRequest, HeartbeatResponse
from kwire.handlers.dispatch import Dispatcher
from kwire.handlers.shared.context import Context, Services
from kwire.handlers.shared.handler import Handler
from kwire.net.send import Part
from kwire.net.service import NetService

KEY, VERSION = 12, 4


async def heartbeat(context: Context, request: HeartbeatRequest) -> HeartbeatResponse:
    return HeartbeatResponse()


def drive(port: int, connections: int, requests: int) -> None:
    """Send requests, one at a time per connection; runs in a process of its own."""
    socks = [socket.create_connection(("127.0.0.1", port)) for _ in range(connections)]
    for sock in socks:
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    beat = HeartbeatRequest(group_id="a-group", generation_id=1, member_id="consumer-1-0123456789")
    frame = request_frame(KEY, VERSION, 1, "consumer-1", beat)
    for _ in range(requests // connections):
        for sock in socks:
            sock.sendall(frame)
        for sock in socks:
            sock.recv(4096)


@attrs.frozen
class Segment:
    """A segment file with the interface that kwire.log uses."""

    opened: IO[bytes]

    def fileno(self) -> int:
        return self.opened.fileno()

    def read(self, position: int, size: int) -> bytes:
        return os.pread(self.opened.fileno(), size, position)


@attrs.frozen
class Stored:
    """A region of a file with the interface of kwire.log's regions."""

    file: Segment
    size: int
    position: int = 0

    def __len__(self) -> int:
        return self.size

    def is_cached(self, position: int, size: int) -> bool:
        return True

    def close(self) -> None: ...


@attrs.define
class Sink:
    """A session that takes frames of any size and answers with a size or a region of a file."""

    region: Callable[[], Part] | None = None
    muted_s: float = 0.0

    def only_reads(self, frame: memoryview) -> bool:
        return True

    async def answer(self, frame: memoryview) -> list[Part]:
        if self.region is None:
            return [pack(">i", 4), bytes(frame[:4])]
        region = self.region()
        return [pack(">i", len(region)), region]


def push(port: int, size: int, count: int) -> None:
    """Send ``count`` frames, five of them in flight at a time as a producer does."""
    with socket.create_connection(("127.0.0.1", port)) as sock:
        frame = pack(">i", size) + bytes(size)
        for number in range(count + 5):
            if number < count:
                sock.sendall(frame)
            if number >= 5:
                sock.recv(8, socket.MSG_WAITALL)


def pull(port: int, size: int, count: int) -> None:
    """Request a region ``count`` times, and read it."""
    room = bytearray(1 << 20)
    with socket.create_connection(("127.0.0.1", port)) as sock:
        for _ in range(count):
            sock.sendall(pack(">i", 4) + b"more")
            remaining = size + 4
            while remaining:
                remaining -= sock.recv_into(room, min(remaining, len(room)))


async def move(client: Callable[[int, int, int], None], sink: Sink, size: int) -> None:
    """Measure the CPU time of moving a gigabyte in frames of one size, and print it."""
    count = (1 << 30) // size
    service = NetService()
    port = service.bind("PLAINTEXT", "127.0.0.1", 0, lambda listener, host: sink).port
    spent = await measure_service(service, lambda: client(port, size, count))
    print(f"{client.__name__} {size >> 10} KB frames: {spent:.2f} s of CPU per GB")


async def measure_service(service: NetService, client: Callable[[], None]) -> float:
    """Return the CPU seconds of this process while ``client`` runs in another one."""
    child = os.fork()
    if not child:
        client()
        os._exit(0)
    async with trio.open_nursery() as nursery:
        await nursery.start(service.run)
        service.accept("PLAINTEXT")
        started = time.process_time()
        await trio.to_thread.run_sync(os.waitpid, child, 0)
        spent = time.process_time() - started
        nursery.cancel_scope.cancel()
    return spent


async def measure(connections: int, requests: int) -> None:
    dispatcher = Dispatcher(Services(), ListenerType.BROKER)
    handler = Handler(HeartbeatRequest, heartbeat, lambda request, error: None)
    route = dispatcher.route(18, 0)
    dispatcher._routes[KEY, VERSION] = attrs.evolve(
        route, handler=handler, decode=decoder(HeartbeatRequest, VERSION), widen=None, narrow=None
    )
    service = NetService()
    port = service.bind("PLAINTEXT", "127.0.0.1", 0, dispatcher.for_connection).port
    spent = await measure_service(service, lambda: drive(port, connections, requests))
    print(f"{connections} connections: {spent / requests * 1e6:.1f} us of CPU per request")


def main(arguments: Sequence[str]) -> None:
    requests = int(arguments[1]) if len(arguments) > 1 else 20_000
    for connections in [int(arguments[0])] if arguments else [1, 20]:
        trio.run(measure, connections, requests)
    if arguments:
        return
    for size in (16 << 10, 128 << 10, 1 << 20):
        trio.run(move, push, Sink(), size)
        with tempfile.TemporaryFile() as file:
            file.write(bytes(size))
            file.flush()
            trio.run(move, pull, Sink(lambda: Stored(Segment(file), size)), size)  # noqa: B023


if __name__ == "__main__":
    main(sys.argv[1:])
