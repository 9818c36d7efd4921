"""What one small request costs the broker: a Heartbeat through sockets, dispatch and codec.

    python benchmarks/net.py [connections] [requests]

CPU of the serving process on two shared cores of an EPYC (Python 3.11), the aim being 35 us:
one connection 25 us (up to 57 us when the core sleeps between requests), twenty 23 us, of which
the kernel's send and receive are 8 us, trio's wait for readability 5 us, dispatch and codec 6 us.
"""

import os
import socket
import sys
import time
from collections.abc import Sequence

import attrs
import trio

from kwire.codec.compile import decoder
from kwire.codec.frame import request_frame
from kwire.codec.messages.heartbeat import HeartbeatRequest, HeartbeatResponse
from kwire.handlers import Side
from kwire.handlers.dispatch import Context, Dispatcher, Handler, Services
from kwire.net.service import NetService

KEY, VERSION = 12, 4


async def heartbeat(context: Context, request: HeartbeatRequest) -> HeartbeatResponse:
    return HeartbeatResponse()


def drive(port: int, connections: int, requests: int) -> None:
    """The clients' side, in a process of its own: one request at a time per connection."""
    socks = [socket.create_connection(("127.0.0.1", port)) for _ in range(connections)]
    for sock in socks:
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    asked = HeartbeatRequest(group_id="a-group", generation_id=1, member_id="consumer-1-0123456789")
    frame = request_frame(KEY, VERSION, 1, "consumer-1", asked)
    for _ in range(requests // connections):
        for sock in socks:
            sock.sendall(frame)
        for sock in socks:
            sock.recv(4096)


async def measure(connections: int, requests: int) -> None:
    dispatcher = Dispatcher(Services(), Side.BROKER)
    handler = Handler(HeartbeatRequest, "0-4", heartbeat, lambda request, error: None)
    route = dispatcher.route(18, 0)
    dispatcher._routes[KEY, VERSION] = attrs.evolve(
        route, serve=handler, decode=decoder(HeartbeatRequest, VERSION), widen=None, narrow=None
    )
    service = NetService()
    port = service.bind("PLAINTEXT", "127.0.0.1", 0, dispatcher.session).port
    child = os.fork()
    if not child:
        drive(port, connections, requests)
        os._exit(0)
    async with trio.open_nursery() as nursery:
        await nursery.start(service.run)
        service.accept("PLAINTEXT")
        started = time.process_time()
        await trio.to_thread.run_sync(os.waitpid, child, 0)
        spent = time.process_time() - started
        nursery.cancel_scope.cancel()
    print(f"{connections} connections: {spent / requests * 1e6:.1f} us of CPU per request")


def main(arguments: Sequence[str]) -> None:
    requests = int(arguments[1]) if len(arguments) > 1 else 20_000
    for connections in [int(arguments[0])] if arguments else [1, 20]:
        trio.run(measure, connections, requests)


if __name__ == "__main__":
    main(sys.argv[1:])
