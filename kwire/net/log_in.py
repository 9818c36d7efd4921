"""The requests of a connection whose client must log in first (SASL).

Until then, frames are limited to ``sasl.server.max.receive.size``, and
:mod:`kwire.net.pending_logins` limits the connection. A failed login is answered only after
``connection.failed.authentication.delay.ms``, so guessing passwords is slow, and then the
connection ends. If sessions have a lifetime, the client must log in again in time (KIP-368): the
first other request after its session has expired ends the connection.
"""

from collections.abc import Callable, Sequence
from functools import partial
from typing import Final

import attrs
import trio

from kwire.clock import Clock
from kwire.metrics import (
    AUTHENTICATIONS,
    EXPIRED_CONNECTIONS,
    FAILED_AUTHENTICATIONS,
    FAILED_REAUTHENTICATIONS,
    REAUTHENTICATIONS,
    Cell,
    Metrics,
)
from kwire.net.framing import Disconnect, Framer
from kwire.net.listener import Answer, ConnectionRequests, LoginRequired, finish_answer
from kwire.net.pending_logins import Guests
from kwire.net.send import Part
from kwire.security.conversation import HANDSHAKE, Conversation, Login, Mechanisms, Rejected
from kwire.security.exchange import Unready
from kwire.waits import Slow

REAUTHENTICATION_S: Final = 1.0
"""The shortest time between two logins on one connection, as in Kafka."""


@attrs.frozen(eq=False, repr=False)
class LoginCounts:
    """The counters of one listener."""

    succeeded: Cell
    failed: Cell
    renewed: Cell
    not_renewed: Cell
    expired: Cell

    @classmethod
    def of(cls, metrics: Metrics, listener: str) -> "LoginCounts":
        return cls(
            metrics.cell(AUTHENTICATIONS, listener),
            metrics.cell(FAILED_AUTHENTICATIONS, listener),
            metrics.cell(REAUTHENTICATIONS, listener),
            metrics.cell(FAILED_REAUTHENTICATIONS, listener),
            metrics.cell(EXPIRED_CONNECTIONS, listener),
        )


@attrs.frozen(kw_only=True, eq=False, repr=False)
class LoginRules:
    """The settings of one listener."""

    mechanisms: Mechanisms
    max_frame_bytes: int
    """The largest frame before the login."""
    failure_delay_s: float
    clock: Clock
    counts: LoginCounts


@attrs.define(eq=False, repr=False)
class LoginRequests(LoginRequired):
    """The requests of one connection, before and after its client has logged in."""

    rules: LoginRules
    requests: ConnectionRequests
    """The requests of a client that has not logged in; only ApiVersions is passed on to them."""
    as_user: Callable[[Login], ConnectionRequests]
    """Returns the requests of the user who has logged in."""
    _framer: Framer | None = None
    _guests: Guests | None = None
    """None once the client has logged in."""
    _max_bytes: int = 0
    """The largest frame after the login."""
    _conversation: Conversation | None = None
    """The login in progress; None once the client has logged in."""
    _login: Login | None = None
    _expires_at: float | None = None
    _renewal_at: float | None = None
    """The time when the client last started to log in again."""

    def __attrs_post_init__(self) -> None:
        self._conversation = Conversation(self.rules.mechanisms)

    def limit(self, framer: Framer, guests: Guests) -> None:
        self._framer, self._guests, self._max_bytes = framer, guests, framer.max_bytes
        framer.max_bytes = min(self.rules.max_frame_bytes, framer.max_bytes)

    @property
    def muted_s(self) -> float:
        return self.requests.muted_s

    @muted_s.setter
    def muted_s(self, value: float) -> None:
        self.requests.muted_s = value

    def answer_now(self, frame: memoryview) -> Answer:
        """Return the answer of the user's requests, or of the login exchange."""
        conversation = self._conversation
        if conversation is None and self._expires_at is not None:
            conversation = self._conversation = self._renewal(frame, self._expires_at)
        if conversation is None:
            return self.requests.answer_now(frame)
        if self._guests is not None and self._framer is not None:
            self._guests.on_request(self._framer)
        try:
            answer = conversation.answer(frame, self.rules.clock.now_ms())
        except Rejected as rejected:
            self._count(failed=True)
            # Without the exception, whose frames refer to the connection: such a cycle would stay
            # until the next full collection.
            return Slow(partial(self._reject, str(rejected), rejected.answer))
        except Unready as unready:
            return Slow(partial(self._answer_later, unready, frame))
        if answer is None:
            return self.requests.answer_now(frame)
        if conversation.login is not None:
            self._on_login(conversation.login)
        return answer

    async def _answer_later(self, unready: Unready, frame: memoryview) -> Sequence[Part] | None:
        """Answer a login frame once the data for it are prepared."""
        await unready.prepare()
        return await finish_answer(self.answer_now(frame))

    async def _reject(self, reason: str, answer: Sequence[bytes | memoryview]) -> None:
        await trio.sleep(self.rules.failure_delay_s)
        raise Disconnect(reason, answer)

    def _renewal(self, frame: memoryview, expires_at: float) -> Conversation | None:
        """Return the login that a frame starts; None for a request of a valid session."""
        now = self.rules.clock.now()
        if int.from_bytes(frame[:2], "big") == HANDSHAKE:
            if self._renewal_at is None or now - self._renewal_at >= REAUTHENTICATION_S:
                self._renewal_at = now
                return Conversation(self.rules.mechanisms, before=self._login)
        elif now > expires_at:
            self.rules.counts.expired.value += 1
            raise Disconnect("the session has expired, and the client has not logged in again")
        return None

    def _on_login(self, login: Login) -> None:
        self._count(failed=False)
        if self._login is None:
            self.requests = self.as_user(login)
            if self._guests is not None and self._framer is not None:
                self._framer.max_bytes = self._max_bytes
                self._guests.on_login(self._framer)
                self._framer = self._guests = None
        self._login, self._conversation = login, None
        self._expires_at = None
        if login.lifetime_ms is not None:
            self._expires_at = self.rules.clock.now() + login.lifetime_ms / 1000

    def _count(self, *, failed: bool) -> None:
        counts = self.rules.counts
        if self._login is None:
            cell = counts.failed if failed else counts.succeeded
        else:
            cell = counts.not_renewed if failed else counts.renewed
        cell.value += 1

    def identify(self, user: str) -> None:
        """Do nothing: the login determines the user, whichever certificate was presented."""

    def only_reads(self, frame: memoryview) -> bool:
        return self._conversation is None and self.requests.only_reads(frame)

    def may_begin_early(self, frame: memoryview) -> bool:
        return self._conversation is None and self.requests.may_begin_early(frame)

    def on_closed(self) -> None:
        self.requests.on_closed()
