"""Measure the broker's CPU time for a small request, and for a gigabyte in each direction.

    python benchmarks/net.py [CONNECTIONS] [REQUESTS] [--bytes N]

A Heartbeat goes through sockets, dispatch and codec; frames in and regions of files out go through
the connections alone. Without CONNECTIONS there is a round with one and a round with twenty.

CPU of the serving process on two shared cores of an EPYC (Python 3.11), the aim being 35 us:
one connection 25 us (up to 57 us when the core sleeps between requests), twenty 23 us, of which
the kernel's send and receive are 8 us, trio's wait for readability 5 us, dispatch and codec 6 us.
Seconds per GB received in frames of 16 KB 0.96, 128 KB 0.4, 1 MB 0.27 (1.7 without spare buffers);
sent by sendfile in regions of 16 KB 1.6, 128 KB 0.3, 1 MB 0.12.
"""

import argparse
import multiprocessing
import socket
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from struct import pack
from typing import Final

import attrs
import trio

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from kwire.codec.apis import ListenerType
from kwire.codec.frame import request_frame
from kwire.codec.messages.heartbeat import HeartbeatRequest, HeartbeatResponse
from kwire.handlers.dispatch import Dispatcher
from kwire.handlers.shared.context import Context
from kwire.handlers.shared.handler import Handler
from kwire.log.disk import RealDisk
from kwire.log.region import FileRegion
from kwire.net.listener import ForConnection
from kwire.net.send import Part, Region
from kwire.net.server import NetServer
from tests.support.handlers.services import services_of

KEY, VERSION = 12, 4
FRAME_BYTES: Final = (16 << 10, 128 << 10, 1 << 20)


def heartbeat(context: Context, request: HeartbeatRequest) -> HeartbeatResponse:
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
            assert sock.recv(4096), "the server closed the connection"


@attrs.define
class Sink:
    """A session that takes frames of any size and answers with a size or a region of a file."""

    region: Callable[[], Region] | None = None
    muted_s: float = 0.0

    def identify(self, user: str) -> None:
        """Do nothing, because no client shows a certificate."""

    def only_reads(self, frame: memoryview) -> bool:
        return True

    def may_begin_early(self, frame: memoryview) -> bool:
        return False

    def on_closed(self) -> None: ...

    def answer_now(self, frame: memoryview) -> Sequence[Part]:
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
                assert sock.recv(8, socket.MSG_WAITALL), "the server closed the connection"


def pull(port: int, size: int, count: int) -> None:
    """Request a region ``count`` times, and read it."""
    room = bytearray(1 << 20)
    with socket.create_connection(("127.0.0.1", port)) as sock:
        for _ in range(count):
            sock.sendall(pack(">i", 4) + b"more")
            remaining = size + 4
            while remaining:
                received = sock.recv_into(room, min(remaining, len(room)))
                assert received, "the server closed the connection"
                remaining -= received


async def move(
    client: Callable[[int, int, int], None], sink: Sink, size: int, total_bytes: int
) -> None:
    """Measure the CPU time of moving bytes in frames of one size, and print that of a gigabyte."""
    count = -(-total_bytes // size)
    service = NetServer()
    port = service.bind("PLAINTEXT", "127.0.0.1", 0).port
    cpu_s = await measure_service(service, lambda *_: sink, partial(client, port, size, count))
    gb_s = cpu_s / (size * count) * (1 << 30)
    print(f"{client.__name__} {size >> 10} KB frames: {gb_s:.2f} s of CPU per GB")


async def measure_service(
    service: NetServer, for_connection: ForConnection, client: Callable[[], None]
) -> float:
    """Return the CPU seconds of this process while ``client`` runs in another one."""
    process = multiprocessing.get_context("fork").Process(target=client)
    async with trio.open_nursery() as nursery:
        await nursery.start(service.run)
        service.accept("PLAINTEXT", for_connection)
        process.start()
        started = time.process_time()
        await trio.to_thread.run_sync(process.join)
        cpu_s = time.process_time() - started
        nursery.cancel_scope.cancel()
    assert process.exitcode == 0, "the client failed"
    return cpu_s


async def measure(connections: int, requests: int) -> None:
    dispatcher = Dispatcher(services_of(), ListenerType.BROKER)
    handler = Handler(HeartbeatRequest, heartbeat, lambda request, error: None)
    route = dispatcher.route(KEY, VERSION)
    dispatcher.routes[KEY, VERSION] = attrs.evolve(route, handler=handler)
    service = NetServer()
    port = service.bind("PLAINTEXT", "127.0.0.1", 0).port
    cpu_s = await measure_service(
        service, dispatcher.for_connection, partial(drive, port, connections, requests)
    )
    print(f"{connections} connections: {cpu_s / requests * 1e6:.1f} us of CPU per request")


def measure_regions(size: int, total_bytes: int) -> None:
    """Measure answers that are regions of a file."""
    with tempfile.TemporaryDirectory() as directory:
        disk = RealDisk(directory)
        file = disk.open("segment", create=True)
        file.write([bytes(size)], 0)

        def region() -> FileRegion:
            # Regions near the end of a log count as cached without a look at the page cache.
            return FileRegion(file, 0, size, lambda position, size: True, disk)

        trio.run(move, pull, Sink(region), size, total_bytes)
        file.close()


def main() -> None:
    parser = argparse.ArgumentParser(description="Measure the CPU time of the network layer.")
    parser.add_argument("connections", type=int, nargs="?", help="default: one, then twenty")
    parser.add_argument("requests", type=int, nargs="?", default=20_000)
    parser.add_argument(
        "--bytes", type=int, default=1 << 30, help="moved in each direction per frame size"
    )
    options = parser.parse_args()
    for connections in (1, 20) if options.connections is None else (options.connections,):
        trio.run(measure, connections, options.requests)
    for size in FRAME_BYTES if options.bytes else ():
        trio.run(move, push, Sink(), size, options.bytes)
        measure_regions(size, options.bytes)


if __name__ == "__main__":
    main()
