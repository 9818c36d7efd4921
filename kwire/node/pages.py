"""The pages of a node with ``--metrics-port``: metrics, liveness and readiness.

The figures of this process have the names and meanings of Prometheus' client libraries, and are
read from the operating system when metrics are requested. Figures that a platform does not provide
are left out.
"""

import os
import resource
import time
from contextlib import suppress
from itertools import chain
from pathlib import Path
from typing import Final

import trio

from kwire import metrics as m
from kwire.clock import Clock
from kwire.net.http_pages import Page, Pages
from kwire.node.gauges import add_gauges
from kwire.node.server import Server

_PROC: Final = Path("/proc/self")
_RESIDENT: Final = 1
"""The index of a ``statm`` field, in pages, as is :data:`_VIRTUAL`."""
_VIRTUAL: Final = 0
_START_TICKS: Final = 19
"""The index in ``stat``, counted after the name, of the start time in ticks since boot."""


def pages(server: Server) -> Pages:
    """Create a node's pages; ``/livez`` answers as soon as the event loop runs."""
    core = server.core
    metrics, clock = core.metrics, core.clock
    _add_process(metrics, clock)
    group_counts = add_gauges(core, server.broker)
    telemetry = None if server.broker is None else server.broker.services.telemetry
    delay = metrics.cell(m.LOOP_DELAY)

    async def text() -> Page:
        asked_at = clock.now()
        await trio.lowlevel.checkpoint()
        delay.value = clock.now() - asked_at
        await group_counts.update()
        others = () if telemetry is None else telemetry.lines()
        return Page(200, chain(metrics.lines_and_gaps(), others))

    async def live() -> Page:
        return Page(200, ["ok"])

    async def ready() -> Page:
        if server.is_serving:
            return Page(200, ["ok"])
        return Page(503, ["stopping" if server.ready.is_set() else "starting"])

    return {"/metrics": text, "/livez": live, "/readyz": ready}


def _add_process(metrics: m.Metrics, clock: Clock) -> None:
    """Show this process's CPU time, memory, open descriptors and age."""
    metrics.register_function(m.CPU_SECONDS, time.process_time)
    metrics.register_function(m.MAX_FILES, lambda: resource.getrlimit(resource.RLIMIT_NOFILE)[0])
    with suppress(OSError, ValueError, AttributeError):
        started = _start_seconds(clock)
        metrics.register_function(m.START_TIME, lambda: started)
        metrics.register_function(m.RESIDENT_MEMORY, lambda: _pages(_RESIDENT))
        metrics.register_function(m.VIRTUAL_MEMORY, lambda: _pages(_VIRTUAL))
        metrics.register_function(m.OPEN_FILES, _open_files)


def _open_files() -> int:
    """Return the number of open descriptors; newer kernels give it as the directory's size."""
    return (_PROC / "fd").stat().st_size or len(os.listdir(_PROC / "fd"))


def _pages(field: int) -> int:
    return int((_PROC / "statm").read_text().split()[field]) * os.sysconf("SC_PAGE_SIZE")


def _start_seconds(clock: Clock) -> float:
    ticks = int((_PROC / "stat").read_text().rpartition(")")[2].split()[_START_TICKS])
    age = time.clock_gettime(time.CLOCK_BOOTTIME) - ticks / os.sysconf("SC_CLK_TCK")
    return clock.now_ms() / 1000 - age
