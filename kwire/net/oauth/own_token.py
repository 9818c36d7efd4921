"""The access tokens with which this node authenticates to other nodes.

The node proves its identity to the identity provider with a secret, or with an assertion that it or
another program signs. An assertion replaces either the secret (RFC 7523, section 2.2) or the grant
itself (section 2.1).

A token of an identity provider is used until the fraction :data:`FRESH` of its lifetime is over.
Apache Kafka renews a token at the same point, in the background; kwire asks for a new one when it
next logs in.
"""

import json
from base64 import b64encode
from collections.abc import Mapping
from typing import Final, Protocol
from urllib.parse import urlencode

import attrs
import trio

from kwire.clock import Clock
from kwire.net.node_login import Send
from kwire.net.oauth.assertions import Assertions
from kwire.net.oauth.documents import Documents, Unavailable
from kwire.security.exchange import AuthenticationFailed
from kwire.security.oauth.claims import seconds
from kwire.security.oauth.messages import (
    ACKNOWLEDGEMENT,
    OAUTHBEARER,
    TokenRejected,
    client_message,
)
from kwire.security.oauth.sections import decode_section
from kwire.security.oauth.unsecured import unsecured_token

FRESH: Final = 0.8
_GRANT: Final = "urn:ietf:params:oauth:grant-type:jwt-bearer"
_ASSERTION: Final = "urn:ietf:params:oauth:client-assertion-type:jwt-bearer"


class TokenSource(Protocol):
    """The source of this node's access tokens."""

    async def token(self) -> str:
        """Return a token; raise Unavailable."""


@attrs.define(eq=False, repr=False)
class ProvidedToken:
    """The tokens of an identity provider, or of a file that another program writes."""

    documents: Documents
    clock: Clock
    client_id: str = ""
    client_secret: str = ""
    scope: str | None = None
    assertions: Assertions | None = None
    """None if the node proves its identity with its secret."""
    is_grant: bool = False
    """True if the assertion is the grant itself, not just the proof of the node's identity."""
    _token: str = ""
    _fresh_until_ms: float = 0.0

    async def token(self) -> str:
        """Return a fresh token; raise Unavailable."""
        if self.clock.now_ms() >= self._fresh_until_ms:
            self._token = await self._ask()
            self._fresh_until_ms = self._freshness_ms(self._token)
        return self._token

    async def _ask(self) -> str:
        if self.documents.is_file:
            return (await self.documents.get()).decode(errors="replace").strip()
        headers = {
            "Accept": "application/json",
            "Content-Type": "application/x-www-form-urlencoded",
        }
        if self.assertions is None:
            account = f"{self.client_id}:{self.client_secret}".encode()
            headers["Authorization"] = f"Basic {b64encode(account).decode()}"
            form = {"grant_type": "client_credentials"}
        else:
            form = self._form_of(await trio.to_thread.run_sync(self.assertions.read))
        if self.scope:
            form["scope"] = self.scope
        answer = await self.documents.post(urlencode(form).encode(), headers)
        try:
            token = json.loads(answer)["access_token"]
        except (ValueError, TypeError, KeyError, RecursionError):
            token = None
        if not isinstance(token, str):
            raise Unavailable("the answer has no access_token")
        return token

    def _form_of(self, assertion: str) -> dict[str, str]:
        """Return the fields of a token request that uses an assertion."""
        if self.is_grant:
            return {"grant_type": _GRANT, "assertion": assertion}
        form = {
            "grant_type": "client_credentials",
            "client_assertion_type": _ASSERTION,
            "client_assertion": assertion,
        }
        if self.client_id:
            form["client_id"] = self.client_id
        return form

    def _freshness_ms(self, token: str) -> float:
        """Return the time until which a token should be used; 0 if the token has no expiry."""
        try:
            claims = decode_section(token.split(".")[1])
            expires_s = seconds(claims, "exp")
        except (IndexError, TokenRejected):
            return 0.0
        now_ms = self.clock.now_ms()
        return 0.0 if expires_s is None else now_ms + FRESH * (expires_s * 1000 - now_ms)


@attrs.frozen(eq=False, repr=False)
class UnsecuredToken:
    """Tokens without a signature, for tests."""

    options: Mapping[str, str]
    """The options of the JAAS line, which describe the claims."""
    clock: Clock

    @classmethod
    def of(cls, options: Mapping[str, str], clock: Clock) -> "UnsecuredToken":
        """Return the source; raise ValueError for options that describe no token."""
        unsecured_token(options, clock.now_ms())
        return cls(options, clock)

    async def token(self) -> str:
        return unsecured_token(self.options, self.clock.now_ms())


@attrs.define(eq=False, repr=False)
class TokenProof:
    """This node's login with an access token."""

    source: TokenSource
    extensions: tuple[tuple[str, str], ...] = ()
    mechanism: str = OAUTHBEARER
    user: str = "the bearer of an access token"

    async def prove(self, send: Send) -> int:
        """Log in; return the lifetime of the session in ms, or 0; raise AuthenticationFailed."""
        try:
            message = client_message(await self.source.token(), self.extensions)
        except (Unavailable, ValueError) as error:
            raise AuthenticationFailed(f"no access token: {error}") from None
        response = await send(message)
        if response.auth_bytes:
            reason = bytes(response.auth_bytes).decode(errors="replace")
            await send(ACKNOWLEDGEMENT)  # The answer is the error that ends the login.
            raise AuthenticationFailed(reason)
        return response.session_lifetime_ms
