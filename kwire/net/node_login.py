"""This node's authentication to other nodes.

A salted password is computed once for each salt, in a thread.
"""

import logging
from typing import Final, Protocol, TypeVar

import attrs
import trio

from kwire.codec.messages.sasl_authenticate import SaslAuthenticateRequest, SaslAuthenticateResponse
from kwire.codec.messages.sasl_handshake import SaslHandshakeRequest
from kwire.codec.schema import Request
from kwire.net.framing import Disconnect
from kwire.security.exchange import AuthenticationFailed
from kwire.security.plain import PLAIN, client_token
from kwire.security.scram import NONCE_BYTES, ScramMechanism, salt_password, secret_text
from kwire.security.scram_client import Challenge, ScramClient

Resp = TypeVar("Resp")

logger = logging.getLogger(__name__)

WARNING_S: Final = 30.0
"""The shortest time between two warnings about refused logins."""


class SendRequest(Protocol):
    """Sends a request to the other node and returns its response."""

    async def __call__(self, request: Request[Resp], *, version: int | None = None) -> Resp: ...


class RandomBytes(Protocol):
    """Returns random bytes."""

    def __call__(self, count: int, /) -> bytes: ...


class Send(Protocol):
    """Sends a token to the other node and returns its answer; raises AuthenticationFailed."""

    async def __call__(self, token: bytes) -> SaslAuthenticateResponse: ...


class Proof(Protocol):
    """The proof of this node's identity, by one mechanism."""

    @property
    def mechanism(self) -> str: ...

    @property
    def user(self) -> str:
        """The name of this node, for logs."""

    async def prove(self, send: Send) -> int:
        """Log in; return the lifetime of the session in ms, or 0; raise AuthenticationFailed."""


@attrs.define(eq=False, repr=False)
class PlainProof:
    """A name and a password, both sent to the other node."""

    user: str
    password: str
    mechanism: str = PLAIN

    async def prove(self, send: Send) -> int:
        return (await send(client_token(self.user, self.password))).session_lifetime_ms


@attrs.define(eq=False, repr=False)
class ScramProof:
    """A name and a password that is proved without being sent."""

    user: str
    password: str
    scram: ScramMechanism
    random_bytes: RandomBytes
    _salted: dict[Challenge, bytes] = attrs.field(factory=dict)

    @property
    def mechanism(self) -> str:
        return self.scram.name

    async def prove(self, send: Send) -> int:
        nonce = secret_text(self.random_bytes(NONCE_BYTES))
        client = ScramClient(self.scram, self.user, nonce)
        response = await send(client.first())
        salted = await self._salt(client.challenge(bytes(response.auth_bytes)))
        response = await send(client.final(salted))
        client.check(bytes(response.auth_bytes))
        return response.session_lifetime_ms

    async def _salt(self, challenge: Challenge) -> bytes:
        salted = self._salted.get(challenge)
        if salted is None:
            salted = await trio.to_thread.run_sync(
                salt_password, self.scram, self.password, challenge.salt, challenge.iterations
            )
            self._salted = {challenge: salted}
        return salted


@attrs.define(eq=False, repr=False)
class NodeLogin:
    """This node's login at other nodes of its cluster."""

    proof: Proof
    _warned_at: float | None = None

    async def log_in(self, call: SendRequest, address: str) -> float:
        """Log in; return the seconds after which the next login is due, or 0.

        Raises Disconnect if the other node refuses.
        """
        try:
            lifetime_ms = await self._log_in(call)
        except AuthenticationFailed as failure:
            self._warn(address, str(failure))
            raise Disconnect(f"login refused: {failure}") from failure
        return lifetime_ms / 1000

    async def _log_in(self, call: SendRequest) -> int:
        name = self.proof.mechanism
        handshake = await call(SaslHandshakeRequest(mechanism=name), version=1)
        if handshake.error_code:
            offered = ",".join(handshake.mechanisms)
            raise AuthenticationFailed(f"the other node does not offer {name}, only {offered}")

        async def send(token: bytes) -> SaslAuthenticateResponse:
            response = await call(SaslAuthenticateRequest(auth_bytes=token))
            if response.error_code:
                text = response.error_message or f"error {response.error_code}"
                raise AuthenticationFailed(text)
            return response

        return await self.proof.prove(send)

    def _warn(self, address: str, reason: str) -> None:
        """Log occasionally that another node rejects this node's login, which is retried."""
        now = trio.current_time()
        if self._warned_at is None or now - self._warned_at >= WARNING_S:
            self._warned_at = now
            logger.warning(
                "login refused by another node address=%s user=%s reason=%s; see docs/security.md",
                address,
                self.proof.user,
                reason,
            )
