"""The sockets of brokers in processes that a test forks.

Rules: a socket is open until every process has closed it, and a forked process inherits all of
them. So a worker of the program under test would keep the port of a broker that has stopped, and
the connections of its clients. A forked process therefore gives up the sockets of the brokers in
the process that forked it. The sockets of clients stay as they are.
"""

import os
import socket
from collections.abc import Collection, Iterator
from contextlib import contextmanager, suppress
from typing import Final, NamedTuple, Protocol

_DESCRIPTORS: Final = "/dev/fd"


class Ports(NamedTuple):
    """The ports of a node's listeners."""

    of_clients: frozenset[int]
    between_nodes: frozenset[int]
    """Only the nodes of the same test broker connect to these."""


class Node(Protocol):
    """A node of a test broker."""

    def listener_ports(self) -> Ports:
        """Return the ports of the node's open listeners."""


_running: list[Collection[Node]] = []
"""The nodes of each broker in this process."""


@contextmanager
def kept_from_forks(nodes: Collection[Node]) -> Iterator[None]:
    """Keep the sockets of a broker's nodes from the processes that this one forks."""
    _running.append(nodes)
    try:
        yield
    finally:
        _running[:] = [other for other in _running if other is not nodes]


def _give_up_sockets() -> None:
    """Close this process's copies of the brokers' sockets."""
    if not _running:
        return
    each = [node.listener_ports() for nodes in _running for node in nodes]
    between_nodes = {port for ports in each for port in ports.between_nodes}
    own = between_nodes | {port for ports in each for port in ports.of_clients}
    nothing = os.open(os.devnull, os.O_RDWR | os.O_CLOEXEC)
    for name in os.listdir(_DESCRIPTORS):
        with suppress(OSError):  # It is no socket, or it listed the directory.
            local, peer = _ports(int(name))
            if local in own or peer in between_nodes:
                # An object still has this number, and closes it later: it must not be reused.
                os.dup2(nothing, int(name), inheritable=False)
    os.close(nothing)
    _running.clear()


def _ports(descriptor: int) -> tuple[int | None, int | None]:
    """Return the local port and the peer's port of a socket; raise OSError for other files."""
    with socket.socket(fileno=os.dup(descriptor)) as sock:
        if sock.family not in {socket.AF_INET, socket.AF_INET6}:
            return None, None
        local = sock.getsockname()[1]
        try:
            return local, sock.getpeername()[1]
        except OSError:  # It is not connected.
            return local, None


if hasattr(os, "register_at_fork"):  # pytest loads the plugin on Windows too.
    os.register_at_fork(after_in_child=_give_up_sockets)
