"""The server's side of a login with OAUTHBEARER."""

from collections.abc import Callable

import attrs

from kwire.security.exchange import AuthenticationFailed
from kwire.security.oauth.claims import AccessToken
from kwire.security.oauth.messages import (
    TokenRejected,
    error_object,
    parse_client_message,
)


@attrs.define(eq=False, repr=False)
class TokenServer:
    """The server's side of one login.

    A client whose token is rejected gets the reason as a JSON object. Its next message, an
    acknowledgement according to the RFC, gets the error that ends the connection.
    """

    check: Callable[[str], AccessToken]
    """Returns the user of a token; raises TokenRejected."""
    user: str | None = None
    expires_ms: int | None = None
    by_token: bool = False
    _failure: AuthenticationFailed | None = None
    """The failure that was sent to the client as a JSON object."""

    def answer(self, token: bytes) -> bytes:
        """Return the empty token, or a rejection's JSON object; raise AuthenticationFailed."""
        if self._failure is not None:
            raise self._failure
        message = parse_client_message(token)
        try:
            access = self.check(message.token)
        except TokenRejected as rejected:
            text = error_object(rejected)
            self._failure = AuthenticationFailed(str(rejected), text)
            return text.encode()
        if message.authorization_id not in ("", access.user):
            text = (
                f"Authentication failed: Client requested an authorization id "
                f"({message.authorization_id}) that is different from the token's principal name "
                f"({access.user})"
            )
            raise AuthenticationFailed("the authorization id differs from the user name", text)
        self.user, self.expires_ms = access
        return b""
