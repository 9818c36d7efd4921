"""Limits the memory of requests in flight: queued.max.request.bytes (KIP-72).

Bytes count when they arrive, not when they are announced. When the limit is reached, connections
are not read further until answers free some bytes; then each claim that fits is granted, oldest
first. So smaller claims can overtake a large one, and if all frames were incomplete, they could
wait for each other forever. Therefore the oldest claim may exceed the limit while nothing is being
answered, or once it has waited for :data:`STALLED_S`. Only one connection at a time may exceed the
limit, until its frame is answered; if that connection stops sending, it is closed.
"""

import math
from collections.abc import Callable
from typing import Final, Protocol

import attrs
import trio

STALLED_S: Final = 10.0


class Holder(Protocol):
    """The part of a connection that this module uses."""

    last_active: float

    def close(self, reason: str) -> None: ...


@attrs.define(eq=False, repr=False)
class _Claim:
    """Bytes of request memory for which a connection waits."""

    count: int
    holder: Holder
    granted: trio.Event = attrs.field(factory=trio.Event)
    is_late: bool = False
    """True once the claim has waited for :data:`STALLED_S`."""


@attrs.define(eq=False, repr=False)
class RequestMemory:
    """The bytes that the requests of all connections of one node hold."""

    limit: int
    now: Callable[[], float] = trio.current_time
    used: int = 0
    answering: int = 0
    """The number of frames that are being answered; each will free its bytes."""
    _exempt: Holder | None = None
    _waiting: dict[_Claim, None] = attrs.field(factory=dict)
    """The waiting claims, oldest first; none of them fits now."""
    _least: float = math.inf
    """A lower bound of the waiting claims' sizes, so that few answers have to scan the claims."""

    def fits(self, count: float) -> bool:
        return self.used + count <= self.limit

    async def claim(self, count: int, holder: Holder) -> None:
        """Count bytes of ``holder``, waiting while they exceed the limit."""
        if self.fits(count) or self._exempt is holder:
            self.used += count
            return
        claim = _Claim(count, holder)
        self._least = min(self._least, count) if self._waiting else count
        self._waiting[claim] = None
        self._exempt_oldest()
        try:
            while not claim.granted.is_set():
                with trio.move_on_after(STALLED_S):
                    await claim.granted.wait()
                    break
                claim.is_late = True
                self._close_stalled()
                self._exempt_oldest()
        except BaseException:
            if claim.granted.is_set():
                self.free(count, holder)
            raise
        finally:
            self._waiting.pop(claim, None)

    def exempts(self, holder: Holder) -> bool:
        """Return whether the connection was allowed to exceed the limit for its current frame."""
        return self._exempt is holder

    def free(self, count: int, holder: Holder | None) -> None:
        """Release the bytes of an answered frame, or of a closed connection.

        ``holder`` is None if the frame that exceeds the limit may be another one of the connection.
        """
        self.used -= count
        if holder is not None and self._exempt is holder:
            self._exempt = None
        if self._waiting:
            if self.fits(self._least):
                self._grant_fitting()
            self._exempt_oldest()

    def _grant_fitting(self) -> None:
        """Grant the claims that fit, oldest first."""
        granted, least = [], math.inf
        for claim in self._waiting:
            if not self.fits(self._least):
                break
            if self.fits(claim.count):
                self.used += claim.count
                granted.append(claim)
            else:
                least = min(least, claim.count)
        else:
            self._least = least
        for claim in granted:
            self._end_wait(claim)

    def _exempt_oldest(self) -> None:
        """Let the oldest claim exceed the limit if nothing else will end its wait."""
        if self._exempt is not None or not self._waiting:
            return
        oldest = next(iter(self._waiting))
        if oldest.is_late or not self.answering:
            self._exempt = oldest.holder
            self.used += oldest.count
            self._end_wait(oldest)

    def _end_wait(self, claim: _Claim) -> None:
        del self._waiting[claim]
        claim.granted.set()

    def _close_stalled(self) -> None:
        exempt = self._exempt
        if exempt is not None and self.now() - exempt.last_active >= STALLED_S:
            exempt.close("a frame that stalled while memory for requests was short")
