"""The mechanism PLAIN (RFC 4616): the client sends its name and password in one token.

Passwords are compared as digests, so the time depends on neither the length nor the content of the
right password, and it is the same for a user that does not exist.
"""

from collections.abc import Mapping
from hashlib import sha256
from hmac import compare_digest
from typing import Final

import attrs

from kwire.security.exchange import AuthenticationFailed
from kwire.security.jaas import LoginModule

PLAIN: Final = "PLAIN"
LOGIN_MODULE: Final = "org.apache.kafka.common.security.plain.PlainLoginModule"
_USER: Final = "user_"
_WRONG: Final = "Authentication failed: Invalid username or password"
_NOBODY: Final = bytes(32)
"""The digest for users that do not exist; no password has it."""


def digest(password: str) -> bytes:
    """Return the digest of a password, by which passwords are compared."""
    return sha256(password.encode()).digest()


def passwords_of(module: LoginModule) -> dict[str, bytes]:
    """Return the digests of the passwords by user: the options ``user_NAME``."""
    return {
        name.removeprefix(_USER): digest(password)
        for name, password in module.options.items()
        if name.startswith(_USER)
    }


def client_token(user: str, password: str) -> bytes:
    """Return the token with which a client logs in."""
    return f"\0{user}\0{password}".encode()


@attrs.define(eq=False, repr=False)
class PlainServer:
    """The server's side of one login."""

    passwords: Mapping[str, bytes]
    """The digests of the passwords, by user."""
    user: str | None = None
    expires_ms: int | None = None
    by_token: bool = False

    def answer(self, token: bytes) -> bytes:
        """Return the empty token; raise AuthenticationFailed with Kafka's messages."""
        parts = token.split(b"\0", 3)
        if len(parts) != 3:
            raise _failure(f"Invalid SASL/PLAIN response: expected 3 tokens, got {len(parts)}")
        try:
            role, name, password = (part.decode() for part in parts)
        except UnicodeDecodeError:
            raise _failure(_WRONG) from None
        if not name:
            raise _failure("Authentication failed: username not specified")
        if not password:
            raise _failure("Authentication failed: password not specified")
        if not compare_digest(digest(password), self.passwords.get(name, _NOBODY)):
            raise _failure(_WRONG)
        if role not in ("", name):
            raise _failure(
                "Authentication failed: Client requested an authorization id that is different "
                "from username"
            )
        self.user = name
        return b""


def _failure(text: str) -> AuthenticationFailed:
    return AuthenticationFailed(text, text)
