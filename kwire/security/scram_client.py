"""The client's side of a SCRAM login (RFC 5802), as one node performs it at another."""

from base64 import b64encode
from hashlib import new as new_hash
from hmac import compare_digest, digest
from typing import Final, NamedTuple

import attrs

from kwire.security.exchange import AuthenticationFailed
from kwire.security.scram import (
    ITERATIONS_MIN,
    ScramMechanism,
    decode_base64,
    encode_name,
    value_of,
    xor,
)

ITERATIONS_LIMIT: Final = 1_000_000
"""The most iterations that a server may ask for; they take about a second."""
_HEADER: Final = "n,,"


class Challenge(NamedTuple):
    """The server's challenge: how to salt the password."""

    salt: bytes
    iterations: int


@attrs.define(eq=False, repr=False)
class ScramClient:
    """The client's side of one login."""

    mechanism: ScramMechanism
    user: str
    client_nonce: str
    """Random, and new for each login."""
    _server_first: str = ""
    _nonce: str = ""
    _signature: bytes = b""
    """The server's signature, if it has the credential."""

    @property
    def _bare(self) -> str:
        return f"n={encode_name(self.user)},r={self.client_nonce}"

    def first(self) -> bytes:
        """Return the first message."""
        return f"{_HEADER}{self._bare}".encode()

    def challenge(self, server_first: bytes) -> Challenge:
        """Return the server's challenge; raise AuthenticationFailed."""
        text = server_first.decode(errors="replace")
        parts = text.split(",", 3)
        if len(parts) < 3:
            raise AuthenticationFailed("a malformed challenge")
        nonce, iterations = value_of("r", parts[0]), value_of("i", parts[2])
        if not nonce.startswith(self.client_nonce) or nonce == self.client_nonce:
            raise AuthenticationFailed("a challenge with another nonce")
        if not iterations.isascii() or not iterations.isdigit() or len(iterations) > 9:
            raise AuthenticationFailed("a malformed challenge")
        if not ITERATIONS_MIN <= int(iterations) <= ITERATIONS_LIMIT:
            raise AuthenticationFailed(f"a challenge with {iterations} iterations")
        self._server_first, self._nonce = text, nonce
        return Challenge(decode_base64(value_of("s", parts[1])), int(iterations))

    def final(self, salted_password: bytes) -> bytes:
        """Return the final message."""
        name = self.mechanism.hash_name
        without_proof = f"c={b64encode(_HEADER.encode()).decode()},r={self._nonce}"
        transcript = f"{self._bare},{self._server_first},{without_proof}".encode()
        client_key = digest(salted_password, b"Client Key", name)
        stored_key = new_hash(name, client_key).digest()
        proof = xor(client_key, digest(stored_key, transcript, name))
        server_key = digest(salted_password, b"Server Key", name)
        self._signature = digest(server_key, transcript, name)
        return f"{without_proof},p={b64encode(proof).decode()}".encode()

    def check(self, server_final: bytes) -> None:
        """Raise AuthenticationFailed if the server does not have the user's credential, too."""
        text = server_final.decode(errors="replace").partition(",")[0]
        if not compare_digest(decode_base64(value_of("v", text)), self._signature):
            raise AuthenticationFailed("the other node does not have the user's credential")
