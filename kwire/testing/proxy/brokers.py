"""The brokers of the target, each behind a port of the proxy.

Rules: a broker's port is the proxy's port, plus one, plus the broker's id, so that it is the same
after a restart of the proxy; with port 0, or if that port is unavailable, any free port is used. A
port stays open while the proxy runs. A broker with a new address keeps its port.
"""

import errno
import logging
import os
import ssl
import time
from collections.abc import Mapping, Sequence
from typing import Final

import attrs
import trio
from trio.abc import Stream

from kwire.codec.frame import RequestHead
from kwire.codec.primitives import MalformedError
from kwire.net.listener import Address
from kwire.node.run import leaves
from kwire.testing.faults import Faults
from kwire.testing.interception import Interception, Pause
from kwire.testing.proxy.relay import Relay
from kwire.testing.proxy.rewriting import Names, decode, names_in, rewrite
from kwire.testing.releases import Release
from kwire.testing.request_log import RequestLog
from kwire.types import in_address

logger = logging.getLogger(__name__)

CONNECTIONS_MAX: Final = 2000
"""The most connections at a time; further ones are closed at once."""
CONNECT_S: Final = 10.0
RETRY_S: Final = 1.0
"""The delay before a start tries again to reach the target."""
TOPICS_MAX: Final = 100_000
BOOTSTRAP: Final = -1
"""The broker id that stands for connections to the proxy's first port."""
_PORT_MAX: Final = 65535
_SHORT: Final = (
    *(errno.ECONNREFUSED, errno.ECONNRESET, errno.ETIMEDOUT),
    *(errno.EHOSTUNREACH, errno.ENETUNREACH),
)
"""Errors of connections that need no further explanation."""


@attrs.define(eq=False, repr=False)
class ProxiedCluster:
    """The target's brokers, their ports at the proxy, and the names of topics seen so far."""

    bootstrap_targets: Sequence[Address]
    """The target's addresses for clients of the first port; the first that accepts is used."""
    host: str
    """The address on which the proxy listens, also for clients."""
    tls: ssl.SSLContext | None
    """The TLS of connections to the target; None if they are not encrypted."""
    nursery: trio.Nursery
    release: Release | None = None
    """The older release that clients see; None for the target's own release."""
    faults: Faults = attrs.field(factory=Faults)
    requests: RequestLog = attrs.field(factory=RequestLog)
    pause: Pause = attrs.field(factory=Pause)
    targets: dict[int, Address] = attrs.field(factory=dict)
    """The addresses of the target's brokers by id."""
    addresses: dict[int, Address] = attrs.field(factory=dict)
    """The addresses of the same brokers at the proxy."""
    _topics: dict[bytes, str] = attrs.field(factory=dict)
    _opening: dict[int, trio.Event] = attrs.field(factory=dict)
    """Set once the port of a broker is open, by the broker's id."""
    _unreachable: set[int] = attrs.field(factory=set)
    """The brokers whose last connection failed, which has been logged."""
    _connection_count: int = 0

    async def start(self, port: int) -> Address:
        """Listen for clients; return the address. Raises OSError."""
        self.addresses[BOOTSTRAP] = await self._listen(BOOTSTRAP, port)
        return self.bootstrap

    async def watch_start(self) -> None:
        """Log whether the target cannot be reached yet, and when it can, without a client."""
        while True:
            stream = await self._connect_to(BOOTSTRAP)
            if stream is not None:
                await trio.aclose_forcefully(stream)
                return
            await trio.sleep(RETRY_S)

    @property
    def bootstrap(self) -> Address:
        """The address for clients."""
        return self.addresses[BOOTSTRAP]

    @property
    def brokers(self) -> Mapping[int, Address]:
        """The addresses of the brokers that the proxy knows, by id."""
        return {node: address for node, address in self.addresses.items() if node != BOOTSTRAP}

    async def rewrite(self, head: RequestHead, answer: memoryview) -> bytes:
        """Return a response with the proxy's addresses, once every broker in it has a port."""
        try:
            response = decode(head, answer)
        except MalformedError as error:
            logger.warning("response forwarded unchanged api=%d reason=%s", head.api_key, error)
            return len(answer).to_bytes(4, "big") + answer
        await self._learn(names_in(response))
        return rewrite(head, response, self.brokers)

    async def _learn(self, names: Names) -> None:
        if len(self._topics) + len(names.topics) > TOPICS_MAX:
            self._topics.clear()
        self._topics.update(names.topics)
        for node, address in names.brokers.items():
            self.targets[node] = address
            while (opening := self._opening.get(node)) is not None:
                await opening.wait()
            if node in self.addresses:
                continue
            opening = self._opening[node] = trio.Event()
            try:
                self.addresses[node] = await self._listen_for(node)
            finally:  # If it failed, the next response tries again.
                del self._opening[node]
                opening.set()
            logger.info(
                "broker id=%d target=%s:%d port=%d", node, *address, self.addresses[node][1]
            )

    async def _listen_for(self, node: int) -> Address:
        port = self.bootstrap.port + 1 + node
        try:
            return await self._listen(node, port if port <= _PORT_MAX else 0)
        except OSError as error:
            logger.warning("port not available port=%d broker=%d reason=%s", port, node, error)
            return await self._listen(node, 0)

    async def _listen(self, node: int, port: int) -> Address:
        (listener,) = await trio.open_tcp_listeners(port, host=self.host)
        self.nursery.start_soon(self._accept, node, listener)
        return Address(self.host, listener.socket.getsockname()[1])

    async def _accept(self, node: int, listener: trio.SocketListener) -> None:
        async def serve(client: trio.SocketStream) -> None:
            async with client:
                if self._connection_count < CONNECTIONS_MAX:
                    self._connection_count += 1
                    try:
                        await self._serve(node, client)
                    except Exception:
                        logger.exception("connection failed broker=%d", node)
                    finally:
                        self._connection_count -= 1

        await trio.serve_listeners(serve, [listener])

    async def _serve(self, node: int, client: trio.SocketStream) -> None:
        stream = await self._connect_to(node)
        if stream is None:
            return
        interception = Interception(
            node, self.faults, self.requests, self._topics.get, _wall_ms, self.pause, self.release
        )
        async with stream:
            await Relay(client, stream, interception, self.rewrite).run()

    async def _connect_to(self, node: int) -> Stream | None:
        """Return a connection to a broker, or to the first target that accepts one; None if none.

        A log line says when a broker becomes unreachable, and when it is reachable again.
        """
        problems = []
        for address in self.bootstrap_targets if node == BOOTSTRAP else [self.targets[node]]:
            try:
                with trio.fail_after(CONNECT_S):
                    stream = await self._connect(address)
            except (OSError, trio.TooSlowError, trio.BrokenResourceError) as error:
                problems.append(f"{in_address(address.host)}:{address.port} ({_reason(error)})")
            else:
                if node in self._unreachable:
                    self._unreachable.remove(node)
                    logger.info(
                        "target reachable address=%s:%d", in_address(address[0]), address[1]
                    )
                return stream
        if node not in self._unreachable:
            self._unreachable.add(node)
            what = "--target" if node == BOOTSTRAP else "the address that the broker advertises"
            logger.warning(
                "target not reachable addresses=%s; clients are disconnected until it is: "
                "start it, or correct %s",
                ", ".join(problems),
                what,
            )
        return None

    async def _connect(self, target: Address) -> Stream:
        if self.tls is None:
            return await trio.open_tcp_stream(*target)
        stream = await trio.open_ssl_over_tcp_stream(*target, ssl_context=self.tls)
        await stream.do_handshake()
        return stream


def _reason(error: Exception) -> str:
    """Return why a connection failed: the error of its first attempt, in few words."""
    if isinstance(error, trio.TooSlowError):
        return f"no answer within {CONNECT_S:g} s"
    cause: BaseException = error.__cause__ or error
    if isinstance(cause, BaseExceptionGroup):
        cause = next(leaves(cause))
    if isinstance(cause, OSError) and cause.errno in _SHORT:
        return os.strerror(cause.errno)  # The text of trio's errors repeats the address.
    return getattr(cause, "strerror", None) or str(cause) or type(cause).__name__


def _wall_ms() -> int:
    return time.time_ns() // 1_000_000
