"""The log lines of a test broker, kept out of the log of the program under test.

A context variable, which the tasks and threads of a node inherit, distinguishes the brokers of one
process. While a test broker runs, the logger "kwire" has no parent, so its lines do not appear in
the program's log; the logger's own handlers still get them. The logger's attribute ``propagate``
cannot be used for this, because pytest captures loggers that do not propagate.
"""

import logging
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Final

LINES_MAX: Final = 10_000
_CURRENT: Final[ContextVar["LogLines | None"]] = ContextVar("kwire_test_broker_log", default=None)
_LOGGER: Final = logging.getLogger("kwire")


class LogLines(logging.Handler):
    """The last :data:`LINES_MAX` lines that the nodes of one test broker logged."""

    def __init__(self) -> None:
        super().__init__()
        self.setFormatter(logging.Formatter("%(asctime)s %(levelname)s %(name)s %(message)s"))
        self.lines: deque[str] = deque(maxlen=LINES_MAX)
        self.count = 0
        """The number of all lines so far."""
        self._former = (logging.NOTSET, _LOGGER.parent)
        """The logger's level and parent before the first test broker of this process."""

    def emit(self, record: logging.LogRecord) -> None:
        if _CURRENT.get() is self:
            self.lines.append(self.format(record))
            self.count += 1

    @contextmanager
    def writing(self) -> Iterator[None]:
        """Collect the lines of the nodes that are created and started in this context."""
        token = _CURRENT.set(self)
        try:
            yield
        finally:
            _CURRENT.reset(token)

    @contextmanager
    def attach(self) -> Iterator[None]:
        """Receive kwire's log lines during the context."""
        others = _handlers()
        self._former = others[0]._former if others else (_LOGGER.level, _LOGGER.parent)
        if not others:
            _LOGGER.parent = None
            if _LOGGER.level == logging.NOTSET:
                _LOGGER.setLevel(logging.INFO)
        _LOGGER.addHandler(self)
        try:
            yield
        finally:
            _LOGGER.removeHandler(self)
            if not _handlers():
                level, _LOGGER.parent = self._former
                _LOGGER.setLevel(level)


def _handlers() -> "list[LogLines]":
    return [handler for handler in _LOGGER.handlers if isinstance(handler, LogLines)]
