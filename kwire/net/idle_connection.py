"""An idle connection, whose end shows that the other process has ended."""

from typing import TYPE_CHECKING, Protocol, Self

import attrs
import trio

from kwire.net.listener import Address

if TYPE_CHECKING:
    from kwire.net.tls.client_tls import ClientTls


class IdleConnection(Protocol):
    """An open connection; leaving its context closes it."""

    @property
    def address(self) -> Address:
        """The other side's numeric address."""

    async def wait_end(self) -> None:
        """Wait until the other side has closed the connection."""

    async def __aenter__(self) -> Self: ...

    async def __aexit__(self, *error: object) -> None: ...


@attrs.define(eq=False, repr=False)
class SocketConnection:
    """An idle connection over a socket."""

    address: Address
    _stream: trio.abc.Stream

    async def wait_end(self) -> None:
        try:
            while await self._stream.receive_some():
                pass
        except trio.BrokenResourceError:
            pass

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *error: object) -> None:
        await self._stream.aclose()


async def connect(
    host: str,
    port: int,
    *,
    is_numeric: bool,
    tls: "ClientTls | None" = None,
    server_name: str = "",
) -> SocketConnection:
    """Connect as described in :meth:`kwire.net.connection_pool.Network.connect_idle`."""
    stream = await _open_stream(host, port, is_numeric=is_numeric)
    try:
        name: tuple[str, int] = stream.socket.getpeername()[:2]
        whole = stream if tls is None else await tls.wrap(stream, server_name)
    except BaseException:  # The other side may have reset the connection already.
        await trio.aclose_forcefully(stream)
        raise
    return SocketConnection(Address(*name), whole)


async def _open_stream(host: str, port: int, *, is_numeric: bool) -> trio.SocketStream:
    if not is_numeric:
        return await trio.open_tcp_stream(host, port)
    family = trio.socket.AF_INET6 if ":" in host else trio.socket.AF_INET
    sock = trio.socket.socket(family, trio.socket.SOCK_STREAM)
    try:
        await sock.connect((host, port))
    except BaseException:
        sock.close()
        raise
    return trio.SocketStream(sock)
