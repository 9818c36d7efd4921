"""A clock that a test can move, for a node in the test's own process.

Give the same object to trio and to the node::

    time = MockTime()
    trio.run(main, clock=time.of_trio)  # main creates make_node(config, this_computer(clock=time))
    time.move(3600)
"""

from trio.testing import MockClock

from kwire.clock import SystemClock


class MockTime:
    """Monotonic and wall-clock time that pass normally; a test can move both forward together."""

    def __init__(self, start_ms: int | None = None) -> None:
        """Start the wall clock at ``start_ms``, by default at the system's time."""
        self.of_trio = MockClock(rate=1.0)
        """The clock for :func:`trio.run`, which all sleeps and time limits of the node use."""
        self._zero_ms = SystemClock().now_ms() if start_ms is None else start_ms
        self._zero = self.of_trio.current_time()
        self._suspended_s = 0.0

    def now(self) -> float:
        return self.of_trio.current_time()

    def now_ms(self) -> int:
        return self._zero_ms + int((self.now() - self._zero) * 1000)

    def suspended_s(self) -> float:
        return self._suspended_s

    def suspend(self, seconds: float) -> None:
        """Advance the time of the world but not :meth:`now`, as if the machine were suspended."""
        self._suspended_s += seconds
        self._zero_ms += int(seconds * 1000)

    def move(self, seconds: float) -> None:
        """Move the time forward at once; call this in trio's thread, such as from a task."""
        self.of_trio.jump(seconds)
