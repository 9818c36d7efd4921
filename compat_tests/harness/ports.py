"""Ports for servers of tests that are stopped and started again at the same address.

Rule: no port is given twice, by no process of the run.  A port is free while its server is down,
and a server of another test that took it then would keep the first one from starting.
"""

from __future__ import annotations

import os
import random
import socket
from typing import Final

import kwire.cluster.ports

HOST: Final = "127.0.0.1"
FIRST: Final = kwire.cluster.ports.END
END: Final = 32_768
"""Above the ports that kwire chooses for itself, below those of outgoing connections."""


def _of_this_process() -> list[int]:
    worker = int(os.environ.get("PYTEST_XDIST_WORKER", "gw0").removeprefix("gw"))
    workers = int(os.environ.get("PYTEST_XDIST_WORKER_COUNT", "1"))
    ports = range(FIRST + worker, END, workers)
    return random.SystemRandom().sample(ports, len(ports))


_unused: Final = iter(_of_this_process())


def new_ports(count: int) -> tuple[int, ...]:
    """Return ``count`` ports that this run has not used and on which nothing listens."""
    ports: list[int] = []
    while len(ports) < count:
        port = next(_unused, None)
        if port is None:
            raise OSError(f"no port is left between {FIRST} and {END}")
        with socket.socket() as probe:
            # A connection of an earlier run in TIME_WAIT keeps no server from listening.
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                probe.bind((HOST, port))
            except OSError:  # Another program has it.
                continue
        ports.append(port)
    return tuple(ports)
