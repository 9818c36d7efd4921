"""Nodes of kwire as forks of one process that has imported kwire: most of a start are imports.

Rules: the process that forks has one thread and runs no event loop.
"""

from __future__ import annotations

import gc
import os
import signal
import subprocess
import time
import traceback
from collections.abc import Sequence
from typing import Final, NoReturn, cast

import attrs

import kwire.node.run
import kwire.node.server  # noqa: F401  (imported before the forks)
from compat_tests.cluster.nodes import Node
from kwire import cli

BETWEEN_LOOKS_S: Final = 0.01


@attrs.define(eq=False)
class Forked:
    """A forked process, with the part of subprocess.Popen that nodes use."""

    pid: int
    returncode: int | None = None

    def poll(self) -> int | None:
        if self.returncode is None:
            pid, status = os.waitpid(self.pid, os.WNOHANG)
            if pid:
                self.returncode = os.waitstatus_to_exitcode(status)
        return self.returncode

    def wait(self, timeout: float | None = None) -> int:
        end = None if timeout is None else time.monotonic() + timeout
        while (code := self.poll()) is None:
            if end is not None and time.monotonic() > end:
                raise subprocess.TimeoutExpired(str(self.pid), timeout or 0.0)
            time.sleep(BETWEEN_LOOKS_S)
        return code

    def terminate(self) -> None:
        self._signal(signal.SIGTERM)

    def kill(self) -> None:
        self._signal(signal.SIGKILL)

    def _signal(self, number: int) -> None:
        if self.poll() is None:
            os.kill(self.pid, number)


class ForkedNode(Node):
    """A node of kwire whose process is a fork of this one."""

    def launch(self) -> None:
        gc.freeze()
        with self.log.open("ab") as log:
            pid = os.fork()
            if pid == 0:
                _run(["serve", "--config", str(self.config)], log.fileno())
        self.process = cast("subprocess.Popen[bytes]", Forked(pid))


def _run(arguments: Sequence[str], log: int) -> NoReturn:
    """Be a node, in the forked process."""
    code = 1
    try:
        os.setsid()
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        nothing = os.open(os.devnull, os.O_RDONLY)
        os.dup2(nothing, 0)
        os.dup2(log, 1)
        os.dup2(log, 2)
        os.closerange(3, max(log, nothing) + 1)
        cli.main(arguments)
        code = 0
    except SystemExit as end:
        code = end.code if isinstance(end.code, int) else 1
    except BaseException:
        traceback.print_exc()
    finally:
        os._exit(code)
