"""Keeps the public keys of an issuer of tokens: fetched at the start, then at an interval.

A token with an unknown key causes an early fetch, but no earlier than :data:`EARLY_S` after the
last one, so that clients with invented key ids cannot cause many requests. That login fails; the
client's next login finds the new key. While the issuer cannot be reached, the known keys stay in
use. A file is read again at a login if it was last checked more than :data:`FILE_S` ago.
"""

import logging
from typing import Final

import attrs
import trio

from kwire.clock import Clock
from kwire.net.oauth.documents import Documents, Unavailable
from kwire.security.oauth.claims import Claims
from kwire.security.oauth.messages import TokenRejected
from kwire.security.oauth.signed import KeySet, UnknownKey

logger = logging.getLogger(__name__)

EARLY_S: Final = 10.0
FILE_S: Final = 5.0
WARNING_S: Final = 30.0
"""The shortest time between two warnings that keys cannot be fetched."""


@attrs.frozen(kw_only=True, eq=False, repr=False)
class FetchTimes:
    """The times at which keys are fetched, in seconds."""

    refresh_s: float
    backoff_s: float
    """The pause after a first failure; it doubles after each further failure."""
    backoff_max_s: float


@attrs.define(eq=False, repr=False)
class IssuerKeys:
    """The keys that verify the tokens of a listener's clients."""

    listener: str
    documents: Documents
    times: FetchTimes
    clock: Clock
    _keys: KeySet | None = None
    _fetched_at: float = float("-inf")
    _early: trio.Event = attrs.field(factory=trio.Event)
    """Set to fetch the keys early."""
    _warned_at: float = float("-inf")

    def verify(self, token: str) -> Claims:
        """Return the claims of a token with a valid signature; raise TokenRejected."""
        if self._keys is None:
            raise TokenRejected("the keys of the issuer are not known yet")
        if self.documents.is_file and self.clock.now() - self._fetched_at >= FILE_S:
            self._early.set()
        try:
            return self._keys.verify(token)
        except UnknownKey:
            self._early.set()
            raise

    def load_file(self) -> None:
        """Read the keys if they are in a file; raise Unavailable or ValueError."""
        if self.documents.is_file:
            self._adopt(self.documents.read_file())

    async def run(self) -> None:
        """Fetch keys until cancelled."""
        backoff_s = self.times.backoff_s
        while True:
            self._early = trio.Event()
            if await self._fetch():
                backoff_s = self.times.backoff_s
                await self._pause()
            else:
                await trio.sleep(backoff_s)
                backoff_s = min(2 * backoff_s, self.times.backoff_max_s)

    async def _pause(self) -> None:
        """Wait until the next fetch is due, at an interval or early."""
        early_s = min(EARLY_S, self.times.refresh_s)
        await trio.sleep(min(early_s, FILE_S) if self.documents.is_file else early_s)
        with trio.move_on_after(self.times.refresh_s - early_s):
            await self._early.wait()

    async def _fetch(self) -> bool:
        """Fetch the keys; return whether they are usable."""
        try:
            self._adopt(await self.documents.get())
        except (Unavailable, ValueError) as error:
            self._warn(str(error))
            return False
        return True

    def _adopt(self, document: bytes) -> None:
        keys = KeySet.parse(document)
        if self._keys is None:
            logger.info(
                "keys of the issuer of tokens loaded listener=%s url=%s count=%d",
                self.listener,
                self.documents.url,
                len(keys.keys),
            )
        self._keys, self._fetched_at = keys, self.clock.now()

    def _warn(self, reason: str) -> None:
        now = self.clock.now()
        if now - self._warned_at >= WARNING_S:
            self._warned_at = now
            logger.warning(
                "keys of the issuer of tokens not loaded listener=%s url=%s reason=%s: %s",
                self.listener,
                self.documents.url,
                reason,
                "logins with tokens fail until they are"
                if self._keys is None
                else "the previous keys stay in use",
            )
