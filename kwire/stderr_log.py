"""The log of a process on standard error."""

import logging


class OneLine(logging.Formatter):
    """Writes each message as one line of visible characters.

    Clients choose the names of groups and members, which could otherwise forge lines of the log or
    control the terminal of its reader.
    """

    def formatMessage(self, record: logging.LogRecord) -> str:
        if not record.message.isprintable():
            record.message = "".join(
                c if c.isprintable() else repr(c)[1:-1] for c in record.message
            )
        return super().formatMessage(record)


def log_to_stderr(level: str, name: str | None = None) -> None:
    """Send the log to standard error; ``name`` marks the lines, because others write there too."""
    who = f"[{name}] " if name else ""
    line = f"%(asctime)s %(levelname)s {who}%(name)s %(message)s"
    handler = logging.StreamHandler()
    handler.setFormatter(OneLine(line))
    logging.basicConfig(level=level, handlers=[handler])
