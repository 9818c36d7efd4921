"""Logins request by request: with a password, and with a delegation token."""

from __future__ import annotations

from base64 import b64encode
from typing import Any

from compat_tests.harness.wire import connect
from kwire.codec.messages.sasl_authenticate import SaslAuthenticateRequest
from kwire.codec.messages.sasl_handshake import SaslHandshakeRequest
from kwire.security.scram import BY_NAME, salt_password
from kwire.security.scram_client import ScramClient
from kwire.testing.wire import WireClient


def connect_as(address: str, user: str, password: str) -> WireClient:
    """Return a connection of a user who has logged in with a password (PLAIN)."""
    client = connect(address)
    assert client.call(SaslHandshakeRequest(mechanism="PLAIN"), 1).error_code == 0
    token = f"\0{user}\0{password}".encode()
    assert client.call(SaslAuthenticateRequest(auth_bytes=token), 2).error_code == 0
    return client


def log_in_with_token(
    client: WireClient, token_id: str, hmac: bytes, mechanism: str = "SCRAM-SHA-256"
) -> Any:
    """Log in by SCRAM with a delegation token; return the last answer."""
    scram = BY_NAME[mechanism]
    talk = TokenScramClient(scram, token_id, "nonce")
    assert client.call(SaslHandshakeRequest(mechanism=mechanism), 1).error_code == 0
    answer = client.call(SaslAuthenticateRequest(auth_bytes=talk.first()), 2)
    if answer.error_code:
        return answer
    challenge = talk.challenge(bytes(answer.auth_bytes))
    password = b64encode(hmac).decode()
    salted = salt_password(scram, password, challenge.salt, challenge.iterations)
    answer = client.call(SaslAuthenticateRequest(auth_bytes=talk.final(salted)), 2)
    if not answer.error_code:
        talk.check(bytes(answer.auth_bytes))
    return answer


class TokenScramClient(ScramClient):
    """A client that says that its user name is the id of a token."""

    __slots__ = ()

    @property
    def _bare(self) -> str:
        return f"{super()._bare},tokenauth=true"
