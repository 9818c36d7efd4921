"""Reads Java key stores (JKS): private keys with their certificates, and trusted certificates.

The format, as in OpenJDK: a header, entries with an alias each, and a SHA-1 digest of the password,
a fixed text and all preceding bytes. A private key is masked with SHA-1 digests that begin with the
password and a salt. Pure. Raises ValueError for damaged bytes or a wrong password.
"""

import hashlib
from struct import Struct
from typing import Final, NamedTuple

MAGIC: Final = b"\xfe\xed\xfe\xed"
_UINT16: Final = Struct(">H")
_UINT32: Final = Struct(">I")
_DIGEST_BYTES: Final = 20
_SALT: Final = b"Mighty Aphrodite"
_PRIVATE_KEY: Final = 1
_TIMESTAMP_BYTES: Final = 8
WRONG_PASSWORD: Final = "the password is wrong, or the file is damaged"


class KeyEntry(NamedTuple):
    """A masked private key, and its certificates, the key's own first."""

    masked: bytes
    certificates: tuple[bytes, ...]

    def unmask(self, password: str) -> bytes:
        """Return the private key (PKCS#8, DER)."""
        data = _octets(self.masked)
        mask, secret = data[:_DIGEST_BYTES], password.encode("utf-16-be")
        body, digest = data[_DIGEST_BYTES:-_DIGEST_BYTES], data[-_DIGEST_BYTES:]
        stream = b""
        while len(stream) < len(body):
            mask = _sha1(secret + mask)
            stream += mask
        key = bytes(a ^ b for a, b in zip(body, stream, strict=False))
        if _sha1(secret + key) != digest:
            raise ValueError("the password of the key is wrong")
        return key


class JavaStore(NamedTuple):
    """The entries of a store, in their order."""

    keys: list[KeyEntry]
    trusted: list[bytes]


def _sha1(data: bytes) -> bytes:
    return hashlib.sha1(data, usedforsecurity=False).digest()


class _Reader:
    """Reads big-endian fields one after the other."""

    def __init__(self, data: bytes) -> None:
        self._data, self._position = data, 0

    def take(self, count: int) -> bytes:
        start, self._position = self._position, self._position + count
        if self._position > len(self._data):
            raise ValueError(WRONG_PASSWORD)
        return self._data[start : self._position]

    def uint32(self) -> int:
        (value,) = _UINT32.unpack(self.take(4))
        return int(value)

    def text(self) -> bytes:
        (size,) = _UINT16.unpack(self.take(2))
        return self.take(size)


def read_store(data: bytes, password: str | None) -> JavaStore:
    """Return the entries; without a password, the file's digest is not checked."""
    body, digest = data[:-_DIGEST_BYTES], data[-_DIGEST_BYTES:]
    if password is not None and _sha1(password.encode("utf-16-be") + _SALT + body) != digest:
        raise ValueError(WRONG_PASSWORD)
    reader = _Reader(body)
    reader.take(len(MAGIC))
    version = reader.uint32()
    store = JavaStore([], [])
    for _ in range(reader.uint32()):
        kind = reader.uint32()
        reader.text()  # its alias
        reader.take(_TIMESTAMP_BYTES)
        if kind == _PRIVATE_KEY:
            masked = reader.take(reader.uint32())
            chain = tuple(_certificate(reader, version) for _ in range(reader.uint32()))
            store.keys.append(KeyEntry(masked, chain))
        else:
            store.trusted.append(_certificate(reader, version))
    return store


def _certificate(reader: _Reader, version: int) -> bytes:
    if version > 1:
        reader.text()  # its type, always X.509
    return reader.take(reader.uint32())


def _octets(encrypted_key: bytes) -> bytes:
    """Return the octet string at the end of an EncryptedPrivateKeyInfo.

    DER gives the length of a sequence, an algorithm and an octet string.
    """
    position = _skip_head(encrypted_key, 0)[0]
    algorithm, size = _skip_head(encrypted_key, position)
    start, size = _skip_head(encrypted_key, algorithm + size)
    return encrypted_key[start : start + size]


def _skip_head(data: bytes, position: int) -> tuple[int, int]:
    """Return the start and the length of the value of the DER element at ``position``."""
    size, start = data[position + 1], position + 2
    if size & 0x80:
        width = size & 0x7F
        size, start = int.from_bytes(data[start : start + width], "big"), start + width
    return start, size
