"""The client's side of SCRAM, written from RFC 5802 alone, for tests of the server's side."""

import hashlib
import hmac
from base64 import b64decode, b64encode

import attrs


@attrs.define
class Client:
    """One login; attributes may be changed before a message is made, to break it."""

    hash_name: str
    user: str
    password: str
    nonce: str = "fyko+d2lbbFgONRv9qkxdawL"
    header: str = "n,,"
    extensions: str = ""
    channel: str = ""
    """The header that the final message repeats; the header of the first one if empty."""
    sent: str = ""
    received: str = ""
    transcript: bytes = b""
    salted: bytes = b""

    def first(self) -> bytes:
        self.sent = f"n={self.user},r={self.nonce}{self.extensions}"
        return (self.header + self.sent).encode()

    def final(self, server_first: bytes, nonce: str | None = None) -> bytes:
        self.received = server_first.decode()
        fields = dict(part.split("=", 1) for part in self.received.split(","))
        assert fields["r"].startswith(self.nonce)
        salt, iterations = b64decode(fields["s"]), int(fields["i"])
        self.salted = hashlib.pbkdf2_hmac(self.hash_name, self.password.encode(), salt, iterations)
        channel = b64encode((self.channel or self.header).encode()).decode()
        without_proof = f"c={channel},r={fields['r'] if nonce is None else nonce}"
        self.transcript = f"{self.sent},{self.received},{without_proof}".encode()
        key = self._mac(self.salted, b"Client Key")
        signature = self._mac(hashlib.new(self.hash_name, key).digest(), self.transcript)
        proof = bytes(a ^ b for a, b in zip(key, signature, strict=True))
        return f"{without_proof},p={b64encode(proof).decode()}".encode()

    def accepts(self, server_final: bytes) -> bool:
        """Return whether the server has the credential of the password, too."""
        key = self._mac(self.salted, b"Server Key")
        return server_final == b"v=" + b64encode(self._mac(key, self.transcript))

    def _mac(self, key: bytes, data: bytes) -> bytes:
        return hmac.new(key, data, self.hash_name).digest()
