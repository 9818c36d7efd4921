"""The server's side of a SASL login, and of a later login on the same connection.

Pure: frames in, answers out. The order is Kafka's: at most one ApiVersions, one SaslHandshake, then
tokens, in SaslAuthenticate requests after version 1 of the handshake and as bare frames after
version 0. Any other frame ends the connection. No other API is decoded before the client has logged
in.

A client that logs in again (KIP-368) keeps its mechanism and its user.
"""

from collections.abc import Callable, Mapping
from typing import Final, NamedTuple

import attrs

from kwire.codec.apis import BY_NAME, Api
from kwire.codec.compile import Part, decode
from kwire.codec.frame import Body, RequestHead, read_header, response_parts
from kwire.codec.messages.api_versions import ApiVersionsResponse
from kwire.codec.messages.sasl_authenticate import SaslAuthenticateRequest, SaslAuthenticateResponse
from kwire.codec.messages.sasl_handshake import SaslHandshakeRequest, SaslHandshakeResponse
from kwire.codec.primitives import MalformedError
from kwire.errors import (
    NONE,
    IllegalSaslState,
    SaslAuthenticationFailed,
    UnsupportedSaslMechanism,
)
from kwire.security.exchange import AuthenticationFailed, Exchange

_HANDSHAKE: Final = BY_NAME["SaslHandshake"]
_API_VERSIONS: Final = BY_NAME["ApiVersions"]
_AUTHENTICATE: Final = BY_NAME["SaslAuthenticate"]
HANDSHAKE: Final = _HANDSHAKE.key
_ALLOWED: Final = (_HANDSHAKE.key, _API_VERSIONS.key, _AUTHENTICATE.key)
"""The API keys of the requests that may precede a login."""


@attrs.frozen(kw_only=True, eq=False, repr=False)
class Mechanism:
    """A mechanism of a listener."""

    begin: Callable[[], Exchange]
    """Begins an exchange with a client."""
    lifetime_ms: int = 0
    """The time after which a client must log in again at the latest; 0 for no limit."""


Mechanisms = Mapping[str, Mechanism]
"""The mechanisms of a listener by name."""


class Login(NamedTuple):
    """A completed login."""

    user: str
    mechanism: str
    lifetime_ms: int | None
    """The time for which the login is valid; None without a limit."""
    by_token: bool = False
    """True if the client has presented a delegation token."""


class Rejected(Exception):
    """The connection must end; ``answer`` is sent first, unless it is empty."""

    def __init__(self, reason: str, answer: list[Part] | None = None) -> None:
        super().__init__(reason)
        self.answer = answer or []


@attrs.define(eq=False, repr=False)
class Conversation:
    """One login on one connection; :attr:`login` is set at its end."""

    mechanisms: Mechanisms
    before: Login | None = None
    """The login that this login renews."""
    login: Login | None = None
    _has_versions: bool = False
    """True once the client has received the versions, which it may request only once."""
    _mechanism: str = ""
    _exchange: Exchange | None = None
    _bare: bool = False
    """True if tokens come as bare frames."""

    def answer(self, frame: memoryview, now_ms: int) -> list[Part] | None:
        """Return the parts to send, or None for an ApiVersions request, which the caller answers.

        Raises Rejected, or Unready before any change.
        """
        if self._exchange is not None and self._bare:
            return self._answer_bare(self._exchange, frame, now_ms)
        head, pos = _read_header(frame)
        if self._exchange is not None:
            return self._answer_token(self._exchange, head, frame[pos:], now_ms)
        if head.api_key == _API_VERSIONS.key and not self._has_versions and self.before is None:
            self._has_versions = _API_VERSIONS.is_stable(head.api_version)
            return None
        if not _is(_HANDSHAKE, head):
            raise Rejected(f"unexpected request before the SASL handshake: {_key_text(head)}")
        return self._shake_hands(head, frame[pos:])

    def _shake_hands(self, head: RequestHead, body: memoryview) -> list[Part]:
        request = _decode(SaslHandshakeRequest, head, body)
        name = request.mechanism
        mechanism = self.mechanisms.get(name)
        names = sorted(self.mechanisms)
        if mechanism is None:
            refusal = SaslHandshakeResponse(
                error_code=UnsupportedSaslMechanism.code, mechanisms=names
            )
            raise Rejected("the client asks for another SASL mechanism", _parts(head, refusal))
        if self.before is not None and name != self.before.mechanism:
            raise Rejected(
                f"re-authentication with {name}, but the client logged in with "
                f"{self.before.mechanism}"
            )
        self._mechanism, self._exchange = name, mechanism.begin()
        self._bare = head.api_version == 0
        return _parts(head, SaslHandshakeResponse(error_code=NONE, mechanisms=names))

    def _answer_bare(self, exchange: Exchange, frame: memoryview, now_ms: int) -> list[Part]:
        try:
            token = exchange.answer(bytes(frame))
            self._finish(exchange, now_ms)
        except AuthenticationFailed as failure:
            raise Rejected(f"failed {self._word} ({failure})") from failure
        return [len(token).to_bytes(4, "big") + token]

    def _answer_token(
        self, exchange: Exchange, head: RequestHead, body: memoryview, now_ms: int
    ) -> list[Part]:
        if not _is(_AUTHENTICATE, head):
            raise Rejected(
                f"unexpected request during SASL authentication: {_key_text(head)}",
                _out_of_place(head),
            )
        request = _decode(SaslAuthenticateRequest, head, body)
        try:
            token = exchange.answer(bytes(request.auth_bytes))
            self._finish(exchange, now_ms)
        except AuthenticationFailed as failure:
            text = failure.text or (
                f"Authentication failed during {self._word} due to invalid credentials with SASL "
                f"mechanism {self._mechanism}"
            )
            refusal = SaslAuthenticateResponse(
                error_code=SaslAuthenticationFailed.code, error_message=text, auth_bytes=b""
            )
            raise Rejected(f"failed {self._word} ({failure})", _parts(head, refusal)) from failure
        lifetime_ms = None if self.login is None else self.login.lifetime_ms
        response = SaslAuthenticateResponse(auth_bytes=token, session_lifetime_ms=lifetime_ms or 0)
        return _parts(head, response)

    @property
    def _word(self) -> str:
        return "authentication" if self.before is None else "re-authentication"

    def _finish(self, exchange: Exchange, now_ms: int) -> None:
        """Complete the login if the exchange is complete."""
        user = exchange.user
        if user is None:
            return
        before = self.before
        if before is not None and (user, exchange.by_token) != (before.user, before.by_token):
            text = _change_text(before, user)
            raise AuthenticationFailed(text, text)
        limits_ms = []
        if self.mechanisms[self._mechanism].lifetime_ms:
            limits_ms.append(self.mechanisms[self._mechanism].lifetime_ms)
        if exchange.expires_ms is not None:
            limits_ms.append(max(exchange.expires_ms - now_ms, 0))
        lifetime_ms = min(limits_ms, default=None)
        self.login = Login(user, self._mechanism, lifetime_ms, exchange.by_token)


def _change_text(before: Login, user: str) -> str:
    """Return why a later login is rejected, in Kafka's words where Kafka rejects it too."""
    if user != before.user:
        start = "Cannot change principals during re-authentication from "
        return f"{start}User.{before.user}: User.{user}"
    former, other = ("delegation token", "password")[:: 1 if before.by_token else -1]
    return (
        f"Cannot change from a {former} to a {other} during re-authentication: log in on a new "
        "connection"
    )


def _read_header(frame: memoryview) -> tuple[RequestHead, int]:
    """Return the header, and the position of the body, of a request allowed before a login."""
    key = int.from_bytes(frame[:2], "big")
    if key not in _ALLOWED:
        raise Rejected(f"a request before authentication: API key {key}")
    try:
        return read_header(frame)
    except MalformedError as error:
        raise Rejected(f"malformed request before authentication: {error}") from error


def _is(api: Api, head: RequestHead) -> bool:
    """Return whether a request is one of this API, in a version that is served."""
    return head.api_key == api.key and api.is_stable(head.api_version)


def _decode(kind: type[Body], head: RequestHead, body: memoryview) -> Body:
    try:
        return decode(kind, body, head.api_version)
    except MalformedError as error:
        raise Rejected(f"malformed {kind.__name__}: {error}") from error


def _parts(head: RequestHead, response: Body) -> list[Part]:
    return response_parts(head.api_key, head.api_version, head.correlation_id, response)


def _out_of_place(head: RequestHead) -> list[Part] | None:
    """Return the answer to a handshake or ApiVersions amid the tokens; others get none."""
    if _is(_HANDSHAKE, head):
        return _parts(head, SaslHandshakeResponse(error_code=IllegalSaslState.code))
    if _is(_API_VERSIONS, head):
        return _parts(head, ApiVersionsResponse(error_code=IllegalSaslState.code))
    return None


def _key_text(head: RequestHead) -> str:
    return f"API key {head.api_key} version {head.api_version}"
