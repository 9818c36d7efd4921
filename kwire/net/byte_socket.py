"""The part of a non-blocking socket that connections and senders use.

A TCP socket implements it, and so does a connection with TLS (:mod:`kwire.net.tls.tls_socket`).
"""

from typing import Protocol


class ByteSocket(Protocol):
    """A non-blocking connection; a call that would have to wait raises BlockingIOError.

    If :meth:`send` had to wait, the next call must begin with the same bytes; more bytes may
    follow.
    """

    def fileno(self) -> int:
        """Return the descriptor to wait for."""

    def recv(self, size: int, flags: int = 0, /) -> bytes:
        """Return up to ``size`` bytes: fewer only if no more have arrived, none at the end."""

    def recv_into(self, buffer: memoryview, /) -> int:
        """Write received bytes to ``buffer`` and return their number, under the same rules."""

    def send(self, data: bytes | bytearray | memoryview, flags: int = 0, /) -> int:
        """Send some of the bytes and return their number."""

    def close(self) -> None: ...
