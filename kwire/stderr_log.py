"""The log of a process on standard error.

Rule: clients choose the names of groups and members, which could forge lines of the log or control
the terminal of its reader. So each message is one line of visible characters, and the lines of a
traceback are indented.
"""

import logging
from typing import Any


class OneLine(logging.Formatter):
    """Writes each message as one line, followed by its traceback, if any."""

    def formatMessage(self, record: logging.LogRecord) -> str:
        record.message = visible(record.message)
        return super().formatMessage(record)

    # Any: the type of the argument is an alias of the standard library's stubs.
    def formatException(self, ei: Any) -> str:
        lines = super().formatException(ei).split("\n")
        return "\n".join(f"  {visible(line)}" for line in lines)


def visible(text: str) -> str:
    """Return a text with its control characters as escape sequences."""
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() else repr(c)[1:-1] for c in text)


def log_to_stderr(level: str, name: str | None = None) -> None:
    """Send the log to standard error; ``name`` marks the lines, because others write there too."""
    who = f"[{name}] " if name else ""
    line = f"%(asctime)s %(levelname)s {who}%(name)s %(message)s"
    handler = logging.StreamHandler()
    handler.setFormatter(OneLine(line))
    logging.basicConfig(level=level, handlers=[handler])
