"""A TCP connection with TLS, which connections and senders use like a plain socket.

OpenSSL works on two memory buffers (``ssl.MemoryBIO``) and never touches the socket itself. Rules:

* :meth:`TlsSocket.recv` returns all that has arrived, up to the requested size. If it returns less,
  no received bytes are left here, so it is correct to wait for the descriptor.
* :meth:`TlsSocket.send` encrypts at most :data:`SENT_BYTES` and keeps the bytes that the kernel
  does not take. It then raises BlockingIOError, and the repeated call reports these bytes as sent.
  So at most one such piece is held for a slow client, and the caller waits while anything is
  unsent.
* While a large frame arrives, the kernel reports bytes in portions (:meth:`TlsSocket._await_more`),
  because some clients send each 16 KB separately.
* OpenSSL is given one record at a time. A peer's messages about TLS itself, such as new keys, cost
  up to 0.2 ms each, so a connection with more than :data:`MESSAGES_MAX` of them ends, unless it has
  sent a MiB for each.
* A peer that ends TLS without closing the connection is treated as if it had hung up. A connection
  that closes without TLS's closing message ends normally: frames have sizes, so a truncated frame
  cannot be mistaken for a whole one.
"""

import socket
import ssl
from contextlib import suppress
from typing import Final, Protocol, cast

RECEIVED_BYTES: Final = 32 << 10
"""The most encrypted bytes that one call takes from the kernel."""
PORTION_BYTES: Final = 128 << 10
"""The most encrypted bytes of a large frame that one call takes, or that it waits for."""
SENT_BYTES: Final = 64 << 10
"""The most bytes that one call encrypts."""
_RECORD_BYTES: Final = 16 << 10
"""The most bytes in one TLS record, and so of one read from OpenSSL."""
MESSAGES_MAX: Final = 32
_HEADER_BYTES: Final = 5
"""The type of a record, its version and its length (RFC 8446, section 5.1)."""
_RECORD_TYPES: Final = range(20, 24)
_DATA: Final = 23
"""The type of records with data; with TLS 1.3, of all records after the handshake."""
_PAYLOAD_MAX: Final = (16 << 10) + 2048
"""The largest length that any version allows in the header of a record."""
_CONTROL_BYTES_MAX: Final = 64 << 10
"""The most unsent bytes of TLS's own messages: a peer could cause them without reading any."""


class _ReadInto(Protocol):
    """``SSLObject.read`` with a buffer, for which the types of the standard library lack a case."""

    def __call__(self, size: int, buffer: memoryview, /) -> int: ...


class TlsSocket:
    """One connection; no bytes are sent or received before :meth:`begin`."""

    __slots__ = (
        "_accepted",
        "_ahead",
        "_arrived",
        "_awaited_bytes",
        "_fed",
        "_incoming",
        "_is_empty",
        "_message_count",
        "_outgoing",
        "_read_record",
        "_received_bytes",
        "_sock",
        "_tls",
        "_unsent",
    )

    def __init__(self, sock: socket.socket) -> None:
        self._sock = sock
        self._tls: ssl.SSLObject | None = None
        self._incoming = ssl.MemoryBIO()
        self._outgoing = ssl.MemoryBIO()
        self._is_empty = False
        """True if the kernel had no more bytes when this call last took some."""
        self._unsent = b""
        """Encrypted bytes that the kernel has not taken yet."""
        self._accepted = 0
        """The number of bytes in ``_unsent``, before encryption, that a repeated send reports."""
        self._arrived = b""
        """Encrypted bytes from the kernel: whole records, then possibly part of one."""
        self._fed = 0
        """The number of bytes in ``_arrived`` that OpenSSL has been given."""
        self._received_bytes = 0
        self._awaited_bytes = 1
        """The number of arrived bytes at which the kernel reports the socket as readable."""
        self._message_count = 0
        """The records after the handshake that had no data."""
        self._ahead = b""
        """A byte that was received only to check whether there is one."""

    def begin(self, context: ssl.SSLContext, *, server_name: str | None = None) -> None:
        """Begin TLS: as a server, or as a client of the server with this name."""
        self._tls = context.wrap_bio(
            self._incoming,
            self._outgoing,
            server_side=server_name is None,
            server_hostname=server_name,
        )
        self._read_record = cast("_ReadInto", self._tls.read)

    @property
    def has_unsent(self) -> bool:
        """True while encrypted bytes wait for room in the kernel."""
        return bool(self._unsent)

    @property
    def certificate(self) -> bytes | None:
        """The peer's verified certificate (DER); None if it showed none."""
        return None if self._tls is None else self._tls.getpeercert(binary_form=True)

    def fileno(self) -> int:
        return self._sock.fileno()

    # The handshake.

    def receive(self, size: int = RECEIVED_BYTES) -> bytes:
        """Take encrypted bytes from the kernel and return them; an empty result is the end."""
        data = self._sock.recv(size)
        if data:
            self._received_bytes += len(data)
            rest = self._arrived[self._fed :]
            self._arrived, self._fed = rest + data if rest else data, 0
        else:
            self._incoming.write_eof()
        self._is_empty = len(data) < size
        return data

    def _feed(self) -> bool:
        """Give OpenSSL the next record; return False if no whole record has arrived.

        Bytes that are not a record are passed on unchanged, so that OpenSSL rejects them.
        """
        arrived, start = self._arrived, self._fed
        size = len(arrived)
        if size - start < _HEADER_BYTES:
            return False
        payload_bytes = arrived[start + 3] << 8 | arrived[start + 4]
        end = start + _HEADER_BYTES + payload_bytes
        if payload_bytes > _PAYLOAD_MAX or arrived[start] not in _RECORD_TYPES:
            end = size
        if end > size:
            return False
        self._incoming.write(memoryview(arrived)[start:end])
        if end == size:
            self._arrived, self._fed = b"", 0
        else:
            self._fed = end
        return True

    def _advance(self, size: int = RECEIVED_BYTES) -> None:
        """Give OpenSSL the next record, or the end; raise BlockingIOError to wait for it."""
        while not self._feed():
            if self._is_empty:
                raise BlockingIOError
            if not self.receive(size):
                return

    def shake_hands(self) -> bool:
        """Continue the handshake; return True once it is complete.

        Raises SSLError if it fails; the peer is told why.
        """
        assert self._tls is not None
        try:
            while True:
                with suppress(ssl.SSLWantReadError):
                    self._tls.do_handshake()
                    return True
                if not self._feed():
                    return False
        finally:
            with suppress(OSError):  # The connection's end is noticed when it is read.
                self.push()

    # Receiving.

    def recv(self, size: int, flags: int = 0) -> bytes:
        """Return up to ``size`` bytes; with MSG_PEEK, at most one, which remains."""
        if flags & socket.MSG_PEEK:
            if not self._ahead:
                self._is_empty = False
                self._ahead = self._read(1)
            return self._ahead
        self._await_bytes(1)
        self._is_empty = False
        data, self._ahead = self._ahead or self._read(size), b""
        if not data or (self._is_empty and not self._arrived and not self._pending()):
            return data
        pieces, room = [data], size - len(data)
        while room:
            try:
                data = self._read(room)
            except BlockingIOError:
                break
            if not data:
                self._note_end()
                break
            pieces.append(data)
            room -= len(data)
        return b"".join(pieces)

    def recv_into(self, buffer: memoryview) -> int:
        """Write received bytes to ``buffer``; the peer is known to send enough bytes to fill it."""
        self._is_empty = False
        size, count = len(buffer), len(self._ahead)
        if count:
            buffer[:count], self._ahead = self._ahead, b""
        while count < size:
            try:
                read = self._read_into(buffer[count:], PORTION_BYTES)
            except BlockingIOError:
                self._await_more(size - count)
                if not count:
                    raise
                break
            if not read:
                if count:
                    self._note_end()
                break
            count = self._read_whole_records(buffer, count + read)
        return count

    def _read_whole_records(self, buffer: memoryview, count: int) -> int:
        """Decrypt the records of data that have arrived behind ``count`` bytes of ``buffer``.

        Returns the new count. For the usual record, this loop does the same as :meth:`_read_into`.
        It is kept short, because nearly all bytes from producers pass through it.
        """
        arrived, start = memoryview(self._arrived), self._fed
        size, room = len(arrived), len(buffer)
        write, read = self._incoming.write, self._read_record
        while count < room and start + _HEADER_BYTES < size and arrived[start] == _DATA:
            end = start + _HEADER_BYTES + (arrived[start + 3] << 8 | arrived[start + 4])
            if end > size:
                break
            write(arrived[start:end])
            start = self._fed = end
            try:
                count += read(_RECORD_BYTES, buffer[count:])
            except ssl.SSLWantReadError:
                self._count_message()
            except (ssl.SSLZeroReturnError, ssl.SSLEOFError):
                self._note_end()
                break
        if start == size:
            self._arrived, self._fed = b"", 0
        if self._outgoing.pending:
            self._push_control()
        return count

    def _await_more(self, size: int) -> None:
        """Have the kernel report when a large part of ``size`` bytes from the peer has arrived.

        At least that many encrypted bytes will arrive, because encryption adds bytes.
        """
        rest = self._arrived[self._fed :]
        self._arrived, self._fed = rest, 0  # A connection that waits holds part of a record.
        self._await_bytes(max(1, min(size - len(rest), PORTION_BYTES)))

    def _await_bytes(self, count: int) -> None:
        if self._awaited_bytes != count:
            self._awaited_bytes = count
            self._sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVLOWAT, count)

    def _read(self, size: int) -> bytes:
        """Return decrypted bytes of one record, none at the end; raise BlockingIOError to wait."""
        room = memoryview(bytearray(min(size, _RECORD_BYTES)))
        return bytes(room[: self._read_into(room, RECEIVED_BYTES)])

    def _read_into(self, buffer: memoryview, received_bytes: int) -> int:
        """Write decrypted bytes of one record to ``buffer``, as :meth:`_read` returns them."""
        assert self._tls is not None
        if not self._tls.pending():  # An exception would cost more.
            self._advance(received_bytes)
        while True:
            try:
                return self._read_record(_RECORD_BYTES, buffer)
            except ssl.SSLWantReadError:
                self._count_message()
            except (ssl.SSLZeroReturnError, ssl.SSLEOFError):
                return 0
            finally:
                if self._outgoing.pending:
                    self._push_control()
            self._advance(received_bytes)

    def _count_message(self) -> None:
        """Count a record without data; end the connection of a peer that sends too many."""
        self._message_count += 1
        if self._message_count > MESSAGES_MAX + (self._received_bytes >> 20):
            raise ConnectionAbortedError("the peer sends too many TLS messages")

    def _pending(self) -> int:
        """Return the number of decrypted bytes of the current record not yet returned."""
        return 0 if self._tls is None else self._tls.pending()

    def _note_end(self) -> None:
        """Make the descriptor readable, because the end follows bytes that are returned first."""
        with suppress(OSError):
            self._sock.shutdown(socket.SHUT_RD)

    # Sending.

    def send(self, data: bytes | bytearray | memoryview, flags: int = 0) -> int:
        """Encrypt and send some of the bytes; return how many, as the file's header explains."""
        assert self._tls is not None
        if self._unsent:
            self.push()
            if self._unsent:
                raise BlockingIOError
        count, self._accepted = self._accepted, 0
        if count:
            return count
        piece = data if len(data) <= SENT_BYTES else memoryview(data)[:SENT_BYTES]
        count = self._tls.write(piece)
        self.push(flags)
        if self._unsent:
            self._accepted = count
            raise BlockingIOError
        return count

    def push(self, flags: int = 0) -> None:
        """Send as many encrypted bytes as the kernel takes."""
        data = self._unsent + self._outgoing.read()
        try:
            sent = self._sock.send(data, flags) if data else 0
        except BlockingIOError:
            sent = 0
        self._unsent = data[sent:]

    def _push_control(self) -> None:
        """Send TLS's own messages; end the connection if the peer does not read them."""
        self.push()
        if len(self._unsent) > SENT_BYTES + _CONTROL_BYTES_MAX:
            raise ConnectionAbortedError("the peer does not read TLS messages")

    def close(self) -> None:
        """Tell the peer that the connection ends, if the kernel takes that at once; close it."""
        if self._tls is not None:
            with suppress(OSError):
                self._tls.unwrap()
            with suppress(OSError):
                self.push()
        self._sock.close()
