"""Hellos of TLS clients, byte by byte, which offer what today's libraries can no longer offer.

A server chooses one of the offered cipher suites. Offering the rest again, until it refuses, lists
all that it accepts. Up to TLS 1.2 only: a hello of TLS 1.3 needs a key, and has good suites only.
"""

from __future__ import annotations

import os
import socket
from collections.abc import Collection
from struct import pack, unpack_from
from typing import Final, NamedTuple

SSL_3, TLS_1_0, TLS_1_1, TLS_1_2 = 0x0300, 0x0301, 0x0302, 0x0303
SUITES: Final = (*range(0x0001, 0x00C6), *range(0xC001, 0xC0B0), *range(0xCCA8, 0xCCAF))
"""The numbers of suites that IANA has given out for TLS 1.2 and before."""
_HANDSHAKE: Final = 22
_SERVER_HELLO: Final = 2
_DEFLATE, _NO_COMPRESSION = 1, 0


class Choice(NamedTuple):
    """The choice of a server among a client's offers."""

    version: int
    suite: int
    compression: int


def _extension(kind: int, body: bytes) -> bytes:
    return pack(">HH", kind, len(body)) + body


def _list_of(numbers: Collection[int]) -> bytes:
    return pack(f">H{len(numbers)}H", 2 * len(numbers), *numbers)


_EXTENSIONS: Final = (
    _extension(10, _list_of((29, 23, 24, 25)))  # groups: x25519, P-256, P-384, P-521
    + _extension(11, b"\x01\x00")  # points are not compressed
    + _extension(13, _list_of((0x0804, 0x0805, 0x0403, 0x0503, 0x0401, 0x0501, 0x0201, 0x0203)))
    + _extension(0xFF01, b"\x00")  # secure renegotiation
)


def hello(version: int, suites: Collection[int]) -> bytes:
    """Return the record with a client's hello, which also offers compression."""
    extensions = b"" if version == SSL_3 else pack(">H", len(_EXTENSIONS)) + _EXTENSIONS
    body = (
        pack(">H", version)
        + os.urandom(32)
        + b"\x00"  # no session
        + _list_of(suites)
        + bytes((2, _DEFLATE, _NO_COMPRESSION))
        + extensions
    )
    message = b"\x01" + len(body).to_bytes(3, "big") + body
    return pack(">BHH", _HANDSHAKE, min(version, TLS_1_0), len(message)) + message


def offer(address: tuple[str, int], version: int, suites: Collection[int]) -> Choice | None:
    """Return what the server chooses; None if it refuses the offer."""
    with socket.create_connection(address, 30) as sock:
        sock.sendall(hello(version, suites))
        data = b""
        while len(data) < 5 or len(data) < 5 + unpack_from(">H", data, 3)[0]:
            try:
                received = sock.recv(65536)
            except ConnectionError:
                return None
            if not received:
                return None
            data += received
    if data[0] != _HANDSHAKE or data[5] != _SERVER_HELLO:
        return None
    (chosen,) = unpack_from(">H", data, 9)
    end = 44 + data[43]  # The session follows 32 random bytes.
    (suite,) = unpack_from(">H", data, end)
    return Choice(chosen, suite, data[end + 2])


def accepted_choices(address: tuple[str, int], version: int) -> list[Choice]:
    """Return all choices of a server, in the order of its preference."""
    offered, choices = list(SUITES), list[Choice]()
    while offered and (choice := offer(address, version, offered)) is not None:
        choices.append(choice)
        offered.remove(choice.suite)
    return choices
