"""Free ports for servers that start later.

Rule: the ports lie below those that the system gives to outgoing connections. A port of that range
is free at one moment, and a client's own end has it when the server starts, or starts again.
"""

from __future__ import annotations

import random
import socket
from contextlib import ExitStack
from typing import Final

from kwire.cluster.layout import HOST

FIRST: Final = 10_000
END: Final = 20_000
"""Linux gives outgoing connections ports from 32768 on (ip_local_port_range); macOS from 49152."""


def free_ports(count: int) -> tuple[int, ...]:
    """Return ``count`` different ports on which nothing listens now, chosen at random."""
    ports: list[int] = []
    with ExitStack() as stack:
        for port in random.SystemRandom().sample(range(FIRST, END), END - FIRST):
            if len(ports) == count:
                return tuple(ports)
            probe = stack.enter_context(socket.socket())
            try:
                probe.bind((HOST, port))
            except OSError:  # Another program has it.
                continue
            ports.append(port)
    raise OSError(f"no {count} free ports between {FIRST} and {END}")
