"""Notices that a peer hung up while its request is still being answered.

While a handler waits nobody reads the connection, so a long poll of a dead consumer would go on.
On Linux one more epoll watches all connections for nothing but the hang-up: a request costs
nothing extra and an idle node is not woken.  Elsewhere it is noticed when the answer is sent.
"""

import select
from collections.abc import Callable
from typing import Protocol

import attrs
from trio.lowlevel import wait_readable


class HangUps(Protocol):
    """Calls back when a watched connection is closed by its peer."""

    def watch(self, descriptor: int, noticed: Callable[[], None]) -> None: ...
    def forget(self, descriptor: int) -> None: ...
    def close(self) -> None: ...
    async def run(self) -> None: ...


def _epoll() -> "select.epoll":
    return select.epoll()


@attrs.define
class EpollHangUps:
    """The watcher of Linux."""

    _epoll: "select.epoll" = attrs.field(factory=_epoll)
    _watched: dict[int, Callable[[], None]] = attrs.field(factory=dict)

    def watch(self, descriptor: int, noticed: Callable[[], None]) -> None:
        self._epoll.register(descriptor, select.EPOLLRDHUP | select.EPOLLET)
        self._watched[descriptor] = noticed

    def forget(self, descriptor: int) -> None:
        if self._watched.pop(descriptor, None) is not None:
            self._epoll.unregister(descriptor)

    def close(self) -> None:
        self._epoll.close()

    async def run(self) -> None:
        while True:
            await wait_readable(self._epoll.fileno())
            for descriptor, _ in self._epoll.poll(0):
                noticed = self._watched.get(descriptor)
                if noticed is not None:
                    noticed()


class NoHangUps:
    """Where there is no cheap way."""

    def watch(self, descriptor: int, noticed: Callable[[], None]) -> None: ...

    def forget(self, descriptor: int) -> None: ...

    def close(self) -> None: ...

    async def run(self) -> None: ...


def make() -> HangUps:
    """The best watcher of this platform."""
    return EpollHangUps() if hasattr(select, "epoll") else NoHangUps()
