"""Holds back small answers to requests that arrived together, to send them together.

An answer is held back while the connection's next request is handled, but only while the
connection's task runs: when that task waits for anything, :meth:`WriteCoalescer.run` sends the
answer.
"""

from collections.abc import Sequence
from typing import Final, TypeGuard

import attrs
import trio

from kwire.net.send import Part, Sender

COALESCED_BYTES: Final = 4096


def is_small(parts: Sequence[Part]) -> TypeGuard[Sequence[bytes]]:
    """Return whether an answer is small enough to be held back."""
    size = 0
    for part in parts:
        if type(part) is not bytes:
            return False
        size += len(part)
    return size <= COALESCED_BYTES


@attrs.define(eq=False, repr=False)
class WriteCoalescer:
    """The senders of one node that are holding back answers."""

    _senders: list[Sender] = attrs.field(factory=list)
    _to_flush: trio.lowlevel.ParkingLot = attrs.field(factory=trio.lowlevel.ParkingLot)

    def hold(self, sender: Sender, parts: Sequence[bytes]) -> None:
        """Hold back a small answer until the next answer; not allowed while the sender drains."""
        if not self._senders:
            self._to_flush.unpark()
        if not sender.unsent:
            self._senders.append(sender)
        sender.unsent += parts

    async def run(self) -> None:
        """Flush the senders whose tasks wait or end; usually they have nothing left."""
        async with trio.open_nursery() as nursery:
            while True:
                if not self._senders:
                    await self._to_flush.park()
                for sender in self._senders:
                    sender.flush()
                    if sender.unsent:
                        sender.draining = trio.CancelScope()
                        nursery.start_soon(sender.drain, sender.draining)
                self._senders.clear()
