"""Bounds the memory of requests in flight: queued.max.request.bytes (KIP-72).

Bytes count when they arrive, not when they are announced.  When the bound is reached, connections
are not read until answers free some.  Incomplete frames could wait for each other for ever; so
while no request is being answered, or after :data:`STALLED_S` without freed bytes (as with only
long polls), one connection may pass the bound, and if it stops sending it is closed.
"""

from collections.abc import Callable
from typing import Final, Protocol

import attrs
import trio

STALLED_S: Final = 10.0


class Holder(Protocol):
    """A connection, as far as this module needs it."""

    last_active: float

    def close(self, reason: str) -> None: ...


@attrs.define(eq=False)
class _Claim:
    """Bytes that a connection waits for."""

    count: int
    holder: Holder
    granted: trio.Event = attrs.field(factory=trio.Event)


@attrs.define
class Memory:
    """The bytes that the requests of all connections of one node hold."""

    limit: int
    now: Callable[[], float] = trio.current_time
    used: int = 0
    answering: int = 0
    """The number of frames that are being answered; each will free its bytes."""
    _exempt: Holder | None = None
    _waiting: dict[_Claim, None] = attrs.field(factory=dict)
    """Claims in the order in which they are granted; only a granted claim is woken."""

    def fits(self, count: int) -> bool:
        return self.used + count <= self.limit

    async def claim(self, count: int, holder: Holder) -> None:
        """Count bytes of ``holder``; wait while they do not fit."""
        while not self.fits(count) and self._exempt is not holder:
            if self._exempt is None and not self.answering:
                self._exempt = holder
                break
            if await self._granted(_Claim(count, holder)):
                return
            if self._exempt is None:
                self._exempt = holder
                break
            self._close_stalled()
        self.used += count

    async def _granted(self, claim: _Claim) -> bool:
        """Whether the claim was granted within :data:`STALLED_S`; waits until then."""
        self._waiting[claim] = None
        try:
            with trio.move_on_after(STALLED_S):
                await claim.granted.wait()
        except BaseException:
            if claim.granted.is_set():
                self.free(claim.count, claim.holder)
            raise
        finally:
            self._waiting.pop(claim, None)
        return claim.granted.is_set()

    def free(self, count: int, holder: Holder) -> None:
        """Release the bytes of a frame that is answered, or whose connection is closed."""
        self.used -= count
        if self._exempt is holder:
            self._exempt = None
        if self._waiting:
            self._grant()

    def _grant(self) -> None:
        """Grant the claims that fit now; the first may pass the bound if nothing is answered."""
        while self._waiting:
            claim = next(iter(self._waiting))
            if not self.fits(claim.count):
                if self._exempt is not None or self.answering:
                    return
                self._exempt = claim.holder
            self.used += claim.count
            del self._waiting[claim]
            claim.granted.set()

    def _close_stalled(self) -> None:
        exempt = self._exempt
        if exempt is not None and self.now() - exempt.last_active >= STALLED_S:
            exempt.close("a frame that stalled while memory for requests was short")
