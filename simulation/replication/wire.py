"""The links between the machines of a simulated cluster: delays, losses and one-way cuts.

A request is answered, refused because no node listens, or left unanswered until its sender stops
waiting.
"""

from collections.abc import Awaitable, Callable, Iterable
from random import Random

import attrs
import trio

from kwire.net.connection_pool import ConnectionRefused
from kwire.waits import Signal

Socket = tuple[int, int, str]
"""A node's socket for responses: the node, the requesting node, and the listener's name."""
Serve = Callable[[object], Awaitable[object]]
"""Answers a request; raises OutOfReach if the process ends meanwhile."""


@attrs.define(eq=False)
class Wire:
    """The links between all nodes."""

    random: Random
    servers: dict[str, tuple[int, Serve]] = attrs.field(factory=dict)
    """Listening nodes by host: the node's id, and its request handler."""
    closed: Signal = attrs.field(factory=Signal)
    """Notified when a node stops listening."""
    delay_max_s: float = 0.005
    loss: float = 0.0
    cut: set[tuple[int, int]] = attrs.field(factory=set)
    """Links, as (source, target), that lose every message."""
    hidden: set[int] = attrs.field(factory=set)
    """Nodes that are unreachable for a while, regardless of ``cut``."""
    slow: set[int] = attrs.field(factory=set)
    """Nodes whose messages take up to half a second longer."""
    full: set[Socket] = attrs.field(factory=set)
    """Sockets that accept no data now: responses wait, and their records are not read yet."""
    drained: Signal = attrs.field(factory=Signal)
    """Notified when a full socket accepts responses again."""

    async def carry(self, source: int, host: str, request: object) -> object:
        """Deliver a request to a host and return its answer."""
        if host not in self.servers:
            await trio.sleep(self._delay())
            raise ConnectionRefused(host)
        target, serve = self.servers[host]
        await self._pass(source, target)
        if self.servers.get(host, (target, None))[1] != serve:
            raise ConnectionRefused(host)
        answer = await serve(request)
        await self._pass(target, source)
        return answer

    async def _pass(self, source: int, target: int) -> None:
        await trio.sleep(self._delay())
        if source in self.slow or target in self.slow:
            await trio.sleep(self.random.random() / 2)
        if self.is_cut(source, target) or self.random.random() < self.loss:
            await trio.sleep_forever()

    async def wait_writable(self, socket: Socket) -> None:
        """Wait until a socket accepts a response."""
        while socket in self.full:
            await self.drained.wait()

    def drain(self, sockets: Iterable[Socket]) -> None:
        """Let full sockets accept responses again."""
        self.full.difference_update(sockets)
        self.drained.notify()

    @property
    def is_whole(self) -> bool:
        """True if every message arrives, however late."""
        return not (self.cut or self.hidden or self.loss)

    def is_cut(self, source: int, target: int) -> bool:
        """Return whether messages from ``source`` to ``target`` are lost now."""
        hidden = source != target and bool(self.hidden & {source, target})
        return hidden or (source, target) in self.cut

    def _delay(self) -> float:
        return 0.0002 + self.delay_max_s * self.random.random()

    def isolate(self, node: int, others: list[int], *, inwards: bool, outwards: bool) -> None:
        """Cut a node's links from others (``inwards``), to others (``outwards``), or both."""
        for other in others:
            if other != node and inwards:
                self.cut.add((other, node))
            if other != node and outwards:
                self.cut.add((node, other))

    def calm(self) -> None:
        """Restore all links, without loss and with short delays."""
        self.cut.clear()
        self.hidden.clear()
        self.slow.clear()
        self.drain(list(self.full))
        self.loss, self.delay_max_s = 0.0, 0.005
