"""The TLS of one listener: the context of its connections, and their handshakes."""

import logging
import socket
from typing import Final, Protocol

import attrs

from kwire.clock import NodeClock
from kwire.configs.principal_rules import PrincipalRules
from kwire.configs.tls import TlsConfig
from kwire.metrics import CERTIFICATE_EXPIRY, FAILED_AUTHENTICATIONS, Cell, Metrics
from kwire.net.byte_socket import ByteSocket
from kwire.net.framing import Disconnect
from kwire.net.tls.certificate import subject
from kwire.net.tls.contexts import ServerContext, server_context
from kwire.net.tls.handshakes import Handshakes, HandshakingClient
from kwire.net.tls.reloading import Reloading
from kwire.net.tls.replacement import check_names
from kwire.net.tls.tls_socket import TlsSocket

logger = logging.getLogger(__name__)

EXPIRY_WARNING_DAYS: Final = 30
_DAY_MS: Final = 86_400_000


class Identified(Protocol):
    """The requests of a connection, whose client a certificate may identify."""

    def identify(self, user: str) -> None:
        """Record the client's user name before the first request."""


class Connecting(HandshakingClient, Protocol):
    """An accepted connection before its first request."""

    sock: ByteSocket

    @property
    def requests(self) -> Identified: ...


@attrs.define(eq=False, repr=False)
class ServerTls:
    """The TLS of one listener."""

    listener: str
    certificates: Reloading[ServerContext]
    handshakes: Handshakes
    clock: NodeClock
    failures: Cell
    """Counts the connections that failed to be admitted."""
    rules: PrincipalRules = attrs.field(init=False)
    _warned_ms: float = float("-inf")
    """The time of the last warning that a certificate expires."""

    def __attrs_post_init__(self) -> None:
        rules = self.certificates.settings.ssl_principal_mapping_rules
        self.rules = PrincipalRules.parse(rules)

    def warn_of_expiry(self) -> None:
        """Log, at most once a day, that a certificate expires soon or has expired."""
        now_ms = self.clock.now_ms()
        remaining_ms = self.certificates.current.expires_ms - now_ms
        is_soon = remaining_ms < EXPIRY_WARNING_DAYS * _DAY_MS
        if is_soon and now_ms - self._warned_ms >= _DAY_MS:
            self._warned_ms = now_ms
            logger.warning(
                "certificate expires soon listener=%s days=%d: put a new one into its key store",
                self.listener,
                remaining_ms // _DAY_MS,
            )

    async def run(self) -> None:
        """Serve handshakes until cancelled."""
        await self.handshakes.run()

    @staticmethod
    def wrap(sock: socket.socket) -> TlsSocket:
        """Return the encrypted form of an accepted socket, before its handshake."""
        return TlsSocket(sock)

    async def admit(self, connection: Connecting) -> None:
        """Complete the handshake, and pass the client's user name to the connection's requests.

        Raises Disconnect with the reason, or OSError.
        """
        sock = connection.sock
        assert isinstance(sock, TlsSocket), "made by wrap"
        certificates = await self.certificates.refresh()
        self.warn_of_expiry()
        sock.begin(certificates.context)
        try:
            await self.handshakes.complete(connection, sock)
            self._identify(sock, connection.requests)
        except Disconnect:
            self.failures.value += 1
            raise

    def _identify(self, sock: TlsSocket, requests: Identified) -> None:
        certificate = sock.certificate
        if certificate is None:
            return
        name = subject(certificate)
        user = self.rules.user(name)
        if user is None:
            raise Disconnect(f"no rule of ssl.principal.mapping.rules applies to {name}")
        requests.identify(user)


def open_tls(listener: str, settings: TlsConfig, clock: NodeClock, metrics: Metrics) -> ServerTls:
    """Return the TLS of a listener; raise ConfigError if its certificates are unusable."""
    failures = metrics.cell(FAILED_AUTHENTICATIONS, listener)
    certificates = Reloading(
        f"listener={listener}", settings, server_context, clock.now, check_names
    )
    tls = ServerTls(listener, certificates, Handshakes(clock.now), clock, failures)
    metrics.register_function(CERTIFICATE_EXPIRY, lambda: certificates.current.expires_ms, listener)
    tls.warn_of_expiry()
    return tls
