"""Performs the handshakes of one listener, before the connections' first requests.

A full handshake costs about a millisecond of CPU, before the client is authenticated. Rules:

* In each turn of the event loop, one handshake continues; all others wait for their turns.
* A client that makes kwire wait longer than :data:`PATIENCE_S` in all is disconnected.
* At most :data:`SILENT_MAX` clients may keep kwire waiting at a time. If there are more, the client
  that has been silent for longest is disconnected, so that a flood of half-open handshakes locks
  nobody out.
"""

import ssl
from collections.abc import Callable
from contextlib import suppress
from typing import Final, Protocol

import attrs
import trio
from trio.lowlevel import wait_writable

from kwire.net.framing import Disconnect
from kwire.net.readiness import WatchedSocket
from kwire.net.task_pacer import TaskPacer
from kwire.net.tls.tls_socket import TlsSocket

PATIENCE_S: Final = 10.0
"""The time for which Kafka's clients wait (``socket.connection.setup.timeout.ms``)."""
SILENT_MAX: Final = 2048
"""Enough for thousands of clients that reconnect together, whose answers take a while."""
_PER_TURN: Final = 1
_HANDSHAKE: Final = 0x16
"""The first byte of every TLS handshake."""
_REASONS: Final = {
    "TLSV1_ALERT_UNKNOWN_CA": "the client does not trust the certificate",
    "SSLV3_ALERT_BAD_CERTIFICATE": "the client rejects the certificate",
    "SSLV3_ALERT_CERTIFICATE_UNKNOWN": "the client rejects the certificate",
    "SSLV3_ALERT_CERTIFICATE_EXPIRED": "the certificate has expired, says the client",
    "UNSUPPORTED_PROTOCOL": "the client has only versions of TLS that are not enabled",
    "NO_SHARED_CIPHER": "the client has none of the enabled cipher suites",
    "PEER_DID_NOT_RETURN_A_CERTIFICATE": "the client showed no certificate",
}


class HandshakingClient(Protocol):
    """The part of a connection that this module uses."""

    readiness: WatchedSocket

    def close(self, reason: str) -> None: ...


@attrs.define(eq=False, repr=False)
class Handshakes:
    """The handshakes in progress on one listener."""

    now: Callable[[], float] = trio.current_time
    _pacer: TaskPacer = attrs.field(factory=lambda: TaskPacer(_PER_TURN))
    _silent: dict[HandshakingClient, None] = attrs.field(factory=dict)
    """The clients whose next bytes are awaited, the longest silent first."""

    async def run(self) -> None:
        """Give handshakes their turns until cancelled."""
        await self._pacer.run()

    async def complete(self, client: HandshakingClient, sock: TlsSocket) -> None:
        """Wait until the handshake is complete.

        Raises Disconnect with the reason if it fails or takes too long, and ConnectionError if the
        client hangs up before it has sent anything, as port probes do.
        """
        patience_s, has_spoken, is_complete = PATIENCE_S, False, False
        while not is_complete or sock.has_unsent:
            patience_s -= await self._wait(client, sock, patience_s, for_data=not is_complete)
            await self._pacer.wait_turn()
            if is_complete:
                sock.push()
                continue
            with suppress(BlockingIOError):
                is_complete = _take_step(sock, has_spoken)
                has_spoken = True

    async def _wait(
        self, client: HandshakingClient, sock: TlsSocket, patience_s: float, *, for_data: bool
    ) -> float:
        """Wait until the client takes the unsent bytes and, with ``for_data``, sends some.

        Return the seconds that this took.
        """
        began = self.now()
        self._silent[client] = None
        if len(self._silent) > SILENT_MAX:
            longest = next(iter(self._silent))
            del self._silent[longest]
            longest.close("no TLS handshake, and others wait")
        try:
            with trio.move_on_after(patience_s) as waiting:
                while sock.has_unsent:
                    await wait_writable(sock.fileno())
                    sock.push()
                if for_data:
                    await client.readiness.wait_data()
        finally:
            self._silent.pop(client, None)
        if waiting.cancelled_caught:
            raise Disconnect(f"no TLS handshake within {PATIENCE_S:.0f} seconds")
        return self.now() - began


def _take_step(sock: TlsSocket, has_spoken: bool) -> bool:
    """Handle the bytes that the client has sent; return True once the handshake is complete."""
    received = sock.receive()
    if not has_spoken:
        if not received:
            raise ConnectionAbortedError("the client hung up before the TLS handshake")
        if received[0] != _HANDSHAKE:
            raise Disconnect("plaintext on a TLS listener; check the client's security.protocol")
    elif not received:
        raise Disconnect(
            "the client hung up during the TLS handshake; it may not trust the certificate"
        )
    try:
        return sock.shake_hands()
    except ssl.SSLCertVerificationError as error:
        raise Disconnect(f"the client's certificate is rejected: {error.verify_message}") from error
    except ssl.SSLError as error:
        reason = error.reason or str(error)
        raise Disconnect(f"TLS handshake failed: {_REASONS.get(reason, reason)}") from error
