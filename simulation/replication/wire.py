"""The links between the machines of a simulated cluster: delays, losses, one-way cuts, firewalls.

A request is answered, refused because no node listens or because a firewall rejects it, or left
unanswered until its sender stops waiting.
"""

from collections.abc import Awaitable, Callable, Iterable
from math import inf
from random import Random

import attrs
import trio

from kwire.net.connection_pool import ConnectionRefused, OutOfReach
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
    """Notified when a node stops listening, or when a firewall begins to refuse connections."""
    delay_max_s: float = 0.005
    loss: float = 0.0
    cut: set[tuple[int, int]] = attrs.field(factory=set)
    """Links, as (source, target), that lose every message."""
    hidden: set[int] = attrs.field(factory=set)
    """Nodes that are unreachable for a while, regardless of ``cut``."""
    refused: dict[tuple[int, int], bool] = attrs.field(factory=dict)
    """Links, as (source, target), whose connections a firewall at the target refuses.

    True if it resets the connections that are open (iptables' ``REJECT --reject-with tcp-reset``),
    False if these stall (a plain ``REJECT``).
    """
    slow: set[int] = attrs.field(factory=set)
    """Nodes whose messages take up to half a second longer."""
    full: set[Socket] = attrs.field(factory=set)
    """Sockets that accept no data now: responses wait, and their records are not read yet."""
    drained: Signal = attrs.field(factory=Signal)
    """Notified when a full socket accepts responses again."""
    _admitted_at: dict[tuple[int, int], float] = attrs.field(factory=dict)
    """The time at which a firewall accepted connections again, by link."""
    _stalled: set[tuple[int, str]] = attrs.field(factory=set)
    """The sources and hosts whose open connections have stalled, so that the next one is new."""

    async def carry(self, source: int, host: str, request: object) -> object:
        """Deliver a request to a host and return its answer."""
        if host not in self.servers:
            await trio.sleep(self._delay())
            raise ConnectionRefused(host)
        target, serve = self.servers[host]
        await self._enter(source, target, host)
        await self._pass(source, target)
        if self.servers.get(host, (target, None))[1] != serve:
            raise ConnectionRefused(host)
        answer = await serve(request)
        if self.resets(source, target):
            raise OutOfReach(host)
        await self._pass(target, source)
        return answer

    async def _enter(self, source: int, target: int, host: str) -> None:
        """Pass the firewall of a host, which lets a connection that is open stall or resets it."""
        if (source, target) not in self.refused:
            return
        await trio.sleep(self._delay())
        if not self.resets(source, target) and (source, host) not in self._stalled:
            self._stalled.add((source, host))
            await trio.sleep_forever()
        raise ConnectionRefused(host)

    def refuse(self, links: Iterable[tuple[int, int]], *, resets: bool) -> None:
        """Let firewalls refuse connections."""
        self.refused.update(dict.fromkeys(links, resets))
        self.closed.notify()

    def admit(self, links: Iterable[tuple[int, int]]) -> None:
        """Let firewalls accept connections again."""
        for link in links:
            if self.refused.pop(link, None) is not None:
                self._admitted_at[link] = trio.current_time()
        self._stalled.clear()

    def resets(self, source: int, target: int) -> bool:
        """Return whether open connections from ``source`` to ``target`` are reset."""
        return self.refused.get((source, target), False)

    def was_refused(self, source: int, target: int, since: float) -> bool:
        """Return whether a firewall has refused connections at any time since then."""
        link = source, target
        return link in self.refused or self._admitted_at.get(link, -inf) >= since

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
        return not (self.cut or self.hidden or self.loss or self.refused)

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
        self.admit(list(self.refused))
        self.slow.clear()
        self.drain(list(self.full))
        self.loss, self.delay_max_s = 0.0, 0.005
