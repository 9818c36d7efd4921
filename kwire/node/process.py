"""The operating system's figures for this process, read when metrics are requested.

Names and meanings are those of Prometheus' client libraries. Figures that a platform does not
provide are left out.
"""

import os
import resource
import time
from contextlib import suppress
from pathlib import Path
from typing import Final

from kwire import metrics as m
from kwire.clock import Clock

PROC: Final = Path("/proc/self")
_RESIDENT: Final = 1
"""The index of a ``statm`` field, in pages, as is :data:`_VIRTUAL`."""
_VIRTUAL: Final = 0
_START_TICKS: Final = 19
"""The index in ``stat``, counted after the name, of the start time in ticks since boot."""


def add_process(metrics: m.Metrics, clock: Clock) -> None:
    """Show this process's CPU time, memory, open descriptors and age."""
    metrics.register_function(m.CPU_SECONDS, time.process_time)
    metrics.register_function(m.MAX_FILES, lambda: resource.getrlimit(resource.RLIMIT_NOFILE)[0])
    with suppress(OSError, ValueError, AttributeError):
        started = _start_seconds(clock)
        metrics.register_function(m.START_TIME, lambda: started)
        metrics.register_function(m.RESIDENT_MEMORY, lambda: _pages(_RESIDENT))
        metrics.register_function(m.VIRTUAL_MEMORY, lambda: _pages(_VIRTUAL))
        metrics.register_function(m.OPEN_FILES, open_files)


def open_files() -> int:
    """Return the number of open descriptors; newer kernels give it as the directory's size."""
    return (PROC / "fd").stat().st_size or len(os.listdir(PROC / "fd"))


def _pages(field: int) -> int:
    return int((PROC / "statm").read_text().split()[field]) * os.sysconf("SC_PAGE_SIZE")


def _start_seconds(clock: Clock) -> float:
    ticks = int((PROC / "stat").read_text().rpartition(")")[2].split()[_START_TICKS])
    age = time.clock_gettime(time.CLOCK_BOOTTIME) - ticks / os.sysconf("SC_CLK_TCK")
    return clock.now_ms() / 1000 - age
