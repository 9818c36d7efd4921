"""Tells systemd about a node: that it is ready, that it stops, and that it is alive.

The protocol of sd_notify(3): one datagram of ``NAME=VALUE`` lines to the socket that NOTIFY_SOCKET
names. Rules: without that variable, a node does none of this; a node keeps serving even if the
manager cannot be reached. A node that systemd watches (WATCHDOG_USEC) reports twice in that time,
from the event loop, so that a loop that hangs is noticed.
"""

import logging
import os
import socket
from collections.abc import Mapping
from typing import TYPE_CHECKING, Final, Self

import attrs
import trio

if TYPE_CHECKING:
    from kwire.node.server import Server

logger = logging.getLogger(__name__)

_US: Final = 1_000_000


@attrs.frozen(eq=False, repr=False)
class ServiceManager:
    """The socket of the service manager, and how often it expects reports from this process."""

    sock: socket.socket
    watchdog_s: float | None
    """The time after which systemd considers a silent process dead; None without a watchdog."""

    @classmethod
    def connect(cls, environment: Mapping[str, str], pid: int) -> Self | None:
        """Connect to the manager named by the environment; None if there is none within reach."""
        address = environment.get("NOTIFY_SOCKET", "")
        if address[:1] not in ("/", "@"):
            return None
        sock = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC)
        sock.setblocking(False)
        try:
            sock.connect("\0" + address[1:] if address[0] == "@" else address)
        except OSError as error:
            sock.close()
            logger.warning("cannot reach the service manager address=%s reason=%s", address, error)
            return None
        watchdog_us = environment.get("WATCHDOG_USEC", "")
        is_watched = environment.get("WATCHDOG_PID", str(pid)) == str(pid)
        is_set = watchdog_us.isdecimal() and int(watchdog_us) > 0 and is_watched
        return cls(sock, int(watchdog_us) / _US if is_set else None)

    def tell(self, **values: str) -> None:
        """Send one message; drop it if the manager's socket is full or gone."""
        message = "\n".join(f"{name}={value}" for name, value in values.items())
        try:
            self.sock.send(message.encode())
        except OSError as error:
            logger.warning("cannot notify the service manager %s reason=%s", values, error)

    async def follow(self, server: "Server") -> None:
        """Report the start of a node, and then that it is alive, until cancelled."""
        await server.ready.wait()
        host, port = server.address
        self.tell(READY="1", STATUS=f"serving on {host}:{port}")
        while self.watchdog_s is not None:
            await trio.sleep(self.watchdog_s / 2)
            self.tell(WATCHDOG="1")


def connect_service_manager() -> ServiceManager | None:
    """Connect to the manager of this process; child processes do not inherit this connection."""
    manager = ServiceManager.connect(os.environ, os.getpid())
    for name in ("NOTIFY_SOCKET", "WATCHDOG_USEC", "WATCHDOG_PID"):
        os.environ.pop(name, None)
    return manager
