"""The start of Spark's JVM, with a copy of its standard error.

Rules of this file: only this copy shows whether an option is wrong or Maven is unreachable, because
pyspark only reports that the JVM has ended. Output of the JVM after this process has ended is lost.
"""

import os
import threading
from collections import deque
from collections.abc import Sequence
from contextlib import suppress
from typing import Final

from pyspark import SparkConf, SparkContext
from pyspark.errors import PySparkRuntimeError
from pyspark.java_gateway import launch_gateway

from kwire_pipeline.explain import launch_problem

KEPT_LINES: Final = 1000
JOIN_S: Final = 10


class ErrorOutput:
    """The standard error of the JVM: passed on, with its last lines kept."""

    def __init__(self) -> None:
        reader, self.descriptor = os.pipe()
        self._lines: deque[str] = deque(maxlen=KEPT_LINES)
        self._thread = threading.Thread(target=self._pass_on, args=(reader,), daemon=True)
        self._thread.start()

    def _pass_on(self, reader: int) -> None:
        with open(reader, "rb") as lines:
            for line in lines:
                self._lines.append(line.decode(errors="replace").rstrip())
                try:
                    os.write(2, line)
                except OSError:  # Nobody reads the output any longer, but the JVM must not block.
                    continue

    def lines_at_end(self) -> Sequence[str]:
        """Return the last lines of a JVM that has ended."""
        self._thread.join(JOIN_S)
        return list(self._lines)


def launch(configuration: SparkConf) -> None:
    """Start the JVM, unless this process has one; raise the reason if it ends at once."""
    if SparkContext._gateway is not None:
        return
    output = ErrorOutput()
    gateway = None
    try:
        with suppress(PySparkRuntimeError):  # The exception only says that the JVM has ended.
            process = {"stderr": output.descriptor}
            gateway = launch_gateway(configuration, process)  # type: ignore[no-untyped-call]
    finally:
        os.close(output.descriptor)
    if gateway is None:
        raise launch_problem(output.lines_at_end())
    SparkContext._ensure_initialized(gateway=gateway)
