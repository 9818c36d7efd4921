"""SCRAM (RFC 5802, KIP-84): credentials, and the server's side of a login.

The server does not store passwords: a login proves that the client has the password, and costs the
server two HMACs. The expensive salted password is only computed when a credential is created
(:func:`salt_password`).

For a user that does not exist, every node of the cluster returns the same invented salt, and the
login fails only at the proof: a client cannot tell that from a wrong password. Channel binding is
not supported ("n"), extensions other than that of delegation tokens are ignored.
"""

from base64 import b64decode, b64encode
from collections.abc import Callable
from hashlib import new as new_hash
from hashlib import pbkdf2_hmac
from hmac import compare_digest, digest
from typing import Final, NamedTuple

import attrs

from kwire.security.exchange import AuthenticationFailed

LOGIN_MODULE: Final = "org.apache.kafka.common.security.scram.ScramLoginModule"
ITERATIONS_MIN: Final = 4096
ITERATIONS_MAX: Final = 16384
_DIGITS: Final = "0123456789abcdefghijklmnopqrstuvwxyz"
NONCE_BYTES: Final = 17
"""The random bytes for a salt or a nonce."""
_SECRET_BITS: Final = 130


class ScramMechanism(NamedTuple):
    """A variant of SCRAM."""

    name: str
    number: int
    """The mechanism in records and requests."""
    hash_name: str


MECHANISMS: Final = (
    ScramMechanism("SCRAM-SHA-256", 1, "sha256"),
    ScramMechanism("SCRAM-SHA-512", 2, "sha512"),
)
BY_NAME: Final = {mechanism.name: mechanism for mechanism in MECHANISMS}
BY_NUMBER: Final = {mechanism.number: mechanism for mechanism in MECHANISMS}


class Credential(NamedTuple):
    """The proof of a password, without the password."""

    salt: bytes
    stored_key: bytes
    server_key: bytes
    iterations: int


class TokenCredential(NamedTuple):
    """The credential of a delegation token, whose id is the user name at the login."""

    credential: Credential
    owner: str
    """The user as which the bearer of the token is logged in."""
    expires_ms: int


def secret_text(random_bytes: bytes) -> str:
    """Return random bytes as a number in letters and digits, like Kafka's salts and nonces.

    As in Kafka, the number has 130 bits, so most have 25 or 26 digits.
    """
    number = int.from_bytes(random_bytes[:NONCE_BYTES], "big") % (1 << _SECRET_BITS)
    digits: list[str] = []
    while number or not digits:
        number, digit = divmod(number, len(_DIGITS))
        digits.append(_DIGITS[digit])
    return "".join(reversed(digits))


def salt_password(mechanism: ScramMechanism, password: str, salt: bytes, iterations: int) -> bytes:
    """Return the salted password; takes milliseconds, so it must not run on the event loop."""
    return pbkdf2_hmac(mechanism.hash_name, password.encode(), salt, iterations)


def make_credential(
    mechanism: ScramMechanism, salted_password: bytes, salt: bytes, iterations: int
) -> Credential:
    """Return the credential for a salted password."""
    name = mechanism.hash_name
    client_key = digest(salted_password, b"Client Key", name)
    return Credential(
        salt,
        stored_key=new_hash(name, client_key).digest(),
        server_key=digest(salted_password, b"Server Key", name),
        iterations=iterations,
    )


@attrs.frozen(eq=False, repr=False)
class Decoys:
    """Credentials for users that do not exist: fixed for each name, and matching no password.

    ``key`` is the same on all nodes and after each start, and no client knows it before its login.
    """

    key: bytes

    def credential(self, mechanism: ScramMechanism, user: str) -> Credential:
        name = mechanism.hash_name
        secret = digest(self.key, f"{name} {user}".encode(), name)
        salt = secret_text(secret).encode()
        return Credential(salt, digest(self.key, secret, name), secret, ITERATIONS_MIN)


@attrs.define(eq=False, repr=False)
class ScramServer:
    """The server's side of one login."""

    mechanism: ScramMechanism
    find: Callable[[str], Credential | None]
    """Returns the credential of a user."""
    decoys: Decoys
    server_nonce: str
    """Random, and new for each login."""
    find_token: Callable[[str], TokenCredential | None] | None = None
    """Returns the credential of a delegation token by its id; raises Unready."""
    user: str | None = None
    expires_ms: int | None = None
    by_token: bool = False
    _challenge: "_Challenge | None" = None

    def answer(self, token: bytes) -> bytes:
        """Return the server's first or final message; raise AuthenticationFailed."""
        try:
            text = token.decode()
        except UnicodeDecodeError:
            raise AuthenticationFailed("a SCRAM message that is not UTF-8") from None
        if self._challenge is None:
            self._challenge = self._begin(text)
            return self._challenge.server_first.encode()
        return self._finish(self._challenge, text)

    def _begin(self, text: str) -> "_Challenge":
        first = _ClientFirst.parse(text)
        decoy = self.decoys.credential(self.mechanism, first.user)
        token = None
        if not first.by_token:
            credential = self.find(first.user)
        else:
            token = self.find_token(first.user) if self.find_token is not None else None
            credential = None if token is None else token.credential
        is_usable = credential is not None and credential.iterations >= ITERATIONS_MIN
        chosen = credential if credential is not None and is_usable else decoy
        nonce = first.nonce + self.server_nonce
        salt = b64encode(chosen.salt).decode()
        return _Challenge(
            first, nonce, f"r={nonce},s={salt},i={chosen.iterations}", chosen, is_usable, token
        )

    def _finish(self, challenge: "_Challenge", text: str) -> bytes:
        without_proof, mark, proof_text = text.rpartition(",p=")
        parts = without_proof.split(",", 2)
        if not mark or len(parts) < 2:
            raise AuthenticationFailed("a malformed final SCRAM message")
        binding, nonce = value_of("c", parts[0]), value_of("r", parts[1])
        if decode_base64(binding) != challenge.first.header.encode():
            raise AuthenticationFailed(
                "the channel bindings of the first and the final SCRAM message differ"
            )
        if nonce != challenge.nonce:
            raise AuthenticationFailed(
                "the nonces of the challenge and the final SCRAM message differ"
            )
        credential, name = challenge.credential, self.mechanism.hash_name
        messages = (challenge.first.bare, challenge.server_first, without_proof)
        transcript = ",".join(messages).encode()
        proof, signature = (
            decode_base64(proof_text),
            digest(credential.stored_key, transcript, name),
        )
        if len(proof) != len(signature):
            raise AuthenticationFailed("a SCRAM proof of the wrong length")
        client_key = xor(proof, signature)
        is_right = compare_digest(new_hash(name, client_key).digest(), credential.stored_key)
        if not is_right or not challenge.is_known:
            raise AuthenticationFailed("Invalid client credentials")
        self.user = challenge.first.user
        if challenge.token is not None:
            self.user, self.by_token = challenge.token.owner, True
            self.expires_ms = challenge.token.expires_ms
        return b"v=" + b64encode(digest(credential.server_key, transcript, name))


@attrs.frozen(eq=False, repr=False)
class _ClientFirst:
    """A client's first message."""

    header: str
    """The GS2 header, which the final message repeats as its channel binding."""
    bare: str
    user: str
    nonce: str
    by_token: bool
    """True if the user name is the id of a delegation token (KIP-48)."""

    @classmethod
    def parse(cls, text: str) -> "_ClientFirst":
        parts = text.split(",", 4)
        if len(parts) < 4 or parts[0] != "n":
            raise AuthenticationFailed("a malformed first SCRAM message")
        user, nonce = decode_name(value_of("n", parts[2])), value_of("r", parts[3])
        if not nonce.isascii() or not nonce.isprintable() or " " in nonce:
            raise AuthenticationFailed("a malformed SCRAM nonce")
        if parts[1] and decode_name(value_of("a", parts[1])) != user:
            raise AuthenticationFailed(
                "the authorization id differs from the user name",
                "Authentication failed: Client requested an authorization id that is different "
                "from username",
            )
        header = f"{parts[0]},{parts[1]},"
        extensions = [each.lower() for each in parts[4].split(",")] if len(parts) > 4 else []
        by_token = "tokenauth=true" in extensions
        return cls(header, text[len(header) :], user, nonce, by_token)


@attrs.frozen(eq=False, repr=False)
class _Challenge:
    """A login between its two messages."""

    first: _ClientFirst
    nonce: str
    """The client's nonce and then the server's."""
    server_first: str
    credential: Credential
    is_known: bool
    """False if the credential is a decoy."""
    token: TokenCredential | None
    """The delegation token whose bearer the client claims to be, if it exists."""


def encode_name(user: str) -> str:
    """Return a user's name as it is encoded in messages."""
    return user.replace("=", "=3D").replace(",", "=2C")


def decode_name(text: str) -> str:
    """Return the user's name that a message contains; raise AuthenticationFailed."""
    parts = text.split("=")
    for part in parts[1:]:
        if part[:2] not in ("2C", "3D"):
            raise AuthenticationFailed("a malformed user name")
    return text.replace("=2C", ",").replace("=3D", "=")


def xor(a: bytes, b: bytes) -> bytes:
    """Return the bitwise XOR of two equally long byte strings."""
    number = int.from_bytes(a, "big") ^ int.from_bytes(b, "big")
    return number.to_bytes(len(a), "big")


def value_of(name: str, part: str) -> str:
    """Return the value of an attribute; raise AuthenticationFailed if it is another or empty."""
    key, equals, value = part.partition("=")
    if key != name or not equals or not value or "\0" in value:
        raise AuthenticationFailed(f"a SCRAM message without a valid attribute {name}")
    return value


def decode_base64(text: str) -> bytes:
    """Return the bytes; raise AuthenticationFailed."""
    try:
        return b64decode(text, validate=True)
    except ValueError:
        raise AuthenticationFailed("a SCRAM message with invalid base64") from None
