"""The TLS of this node's connections to one listener of other nodes."""

import logging
import socket
import ssl
from collections.abc import Callable
from functools import partial
from typing import Final

import attrs
import trio
from trio.lowlevel import wait_readable, wait_writable

from kwire.configs.tls import TlsConfig
from kwire.net.framing import Disconnect
from kwire.net.tls.contexts import ServerContext, client_context
from kwire.net.tls.reloading import Reloading
from kwire.net.tls.replacement import check_expiry, check_trust
from kwire.net.tls.tls_socket import TlsSocket

logger = logging.getLogger(__name__)

REPORT_S: Final = 10.0
"""The shortest time between two log lines about the certificates of other nodes."""


@attrs.define(eq=False, repr=False)
class ClientTls:
    """The certificates with which this node connects to others."""

    certificates: Reloading[ssl.SSLContext]
    _reported_at: float = float("-inf")

    async def shake_hands(self, sock: socket.socket, host: str) -> TlsSocket:
        """Return the encrypted form of a connected socket.

        Raises SSLError, which is an OSError, if the other node cannot be verified as ``host``, and
        Disconnect if the other node hangs up.
        """
        wire = TlsSocket(sock)
        wire.begin(await self.certificates.refresh(), server_name=host)
        try:
            await _complete(wire)
        except ssl.SSLError as error:
            self.report(host, error)
            raise
        return wire

    async def wrap(self, stream: trio.SocketStream, host: str) -> trio.SSLStream[trio.SocketStream]:
        """Return a stream for a connection over which nothing will be sent.

        Raises OSError if the handshake fails.
        """
        context = await self.certificates.refresh()
        encrypted = trio.SSLStream(stream, context, server_hostname=host)
        try:
            await encrypted.do_handshake()
        except trio.BrokenResourceError as error:
            await trio.aclose_forcefully(stream)
            self.report(host, error.__cause__ or error)
            raise ConnectionAbortedError(str(error.__cause__ or error)) from error
        return encrypted

    async def check_replacement(
        self, settings: TlsConfig, old: ServerContext, new: ServerContext, now_ms: int
    ) -> None:
        """Raise ConfigError unless nodes with and without the new settings accept each other.

        ``old`` and ``new``: this node's own side of a listener between nodes.
        """
        check_expiry(new, now_ms)
        check = partial(check_trust, ignores_expiry=old.expires_ms <= now_ms)
        client = await self.certificates.examine(settings)
        await trio.to_thread.run_sync(check, new, self.certificates.current)
        await trio.to_thread.run_sync(check, old, client)

    def report(self, host: str, error: BaseException) -> None:
        """Log why a handshake failed, unless a failure was logged a moment ago."""
        now = self.certificates.now()
        if now - self._reported_at >= REPORT_S:
            self._reported_at = now
            reason = getattr(error, "verify_message", "") or error
            logger.warning("TLS with another node failed host=%s reason=%s", host, reason)


async def _complete(wire: TlsSocket) -> None:
    is_complete = wire.shake_hands()
    while not is_complete or wire.has_unsent:
        while wire.has_unsent:
            await wait_writable(wire.fileno())
            wire.push()
        if is_complete:
            return
        await wait_readable(wire.fileno())
        try:
            if not wire.receive():
                raise Disconnect("closed by the other node during the TLS handshake")
        except BlockingIOError:
            continue
        is_complete = wire.shake_hands()


def open_client_tls(listener: str, settings: TlsConfig, now: Callable[[], float]) -> ClientTls:
    """Return the TLS for connections to a listener; raise ConfigError for unusable certificates."""
    return ClientTls(Reloading(f"connections_to={listener}", settings, client_context, now))
