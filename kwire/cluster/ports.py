"""Free ports for servers that start later.

Rule: the ports are below the range that the system assigns to outgoing connections. A port in that
range may be free now, yet in use by a client's own end when the server starts or restarts.
"""

from __future__ import annotations

import random
import socket
from collections.abc import Iterator
from contextlib import ExitStack
from typing import Final

from kwire.cluster.layout import HOST

FIRST: Final = 10_000
END: Final = 20_000
"""Linux assigns outgoing connections ports from 32768 (ip_local_port_range); macOS from 49152."""


def free_ports(count: int) -> tuple[int, ...]:
    """Return ``count`` different ports on which nothing listens now, chosen at random."""
    return take_free(count, iter(random.SystemRandom().sample(range(FIRST, END), END - FIRST)))


def take_free(count: int, candidates: Iterator[int]) -> tuple[int, ...]:
    """Return the first ``count`` candidates on which nothing listens."""
    ports: list[int] = []
    with ExitStack() as stack:
        while len(ports) < count:
            port = next(candidates, None)
            if port is None:
                raise OSError(f"no {count} free ports are left")
            probe = stack.enter_context(socket.socket())
            try:
                probe.bind((HOST, port))
            except OSError:  # Another program uses the port.
                continue
            ports.append(port)
    return tuple(ports)
