"""Ports for servers of tests that are stopped and started again at the same address.

Rule: no port is given twice, by no process of the run.  A port is free while its server is down,
and a server of another test that took it then would keep the first one from starting.
"""

from __future__ import annotations

import os
import random
from typing import Final

from kwire.cluster import ports

FIRST: Final = ports.END
END: Final = 32_768
"""Above the ports that kwire chooses for itself, below those of outgoing connections."""


def _of_this_process() -> list[int]:
    worker = int(os.environ.get("PYTEST_XDIST_WORKER", "gw0").removeprefix("gw"))
    workers = int(os.environ.get("PYTEST_XDIST_WORKER_COUNT", "1"))
    mine = range(FIRST + worker, END, workers)
    return random.SystemRandom().sample(mine, len(mine))


_unused: Final = iter(_of_this_process())


def new_ports(count: int) -> tuple[int, ...]:
    """Return ``count`` ports that this run has not used and on which nothing listens."""
    return ports.take_free(count, _unused)
