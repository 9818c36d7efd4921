"""The server's side of one exchange of SASL tokens, and its failure."""

from collections.abc import Awaitable, Callable
from typing import Protocol


class AuthenticationFailed(Exception):
    """The client may not log in.

    ``text`` is sent to the client; without it, the client gets the same generic text whether the
    user does not exist or the password is wrong. ``reason`` is for the log.
    """

    def __init__(self, reason: str, text: str | None = None) -> None:
        super().__init__(reason)
        self.text = text


class Unready(Exception):
    """An exchange that has to wait for ``prepare`` before it can answer the same token."""

    def __init__(self, prepare: Callable[[], Awaitable[None]]) -> None:
        super().__init__("something has to be prepared")
        self.prepare = prepare


class Exchange(Protocol):
    """The exchange of tokens with one client by one mechanism."""

    user: str | None
    """The user who has logged in; None before the exchange is complete."""
    expires_ms: int | None
    """The time in ms since 1970 at which the client's credential expires; None if it does not."""

    by_token: bool
    """True if the client has presented a delegation token instead of its own account."""

    def answer(self, token: bytes) -> bytes:
        """Return the token to send; raise AuthenticationFailed, or Unready before any change."""
