"""The check that this operating system can hold the data of a node.

Rules: imports nothing else of kwire and nothing that only some systems have, because it runs first.
Linux is tested. Other Unix systems do without Linux's own calls: epoll, sendfile, fallocate, reads
that do not wait.
"""

import os


class UnsupportedSystemError(Exception):
    """The operating system lacks calls that files of records need."""


def check_system() -> None:
    """Raise UnsupportedSystemError on Windows."""
    if not hasattr(os, "pwritev"):
        raise UnsupportedSystemError(
            "a broker cannot run on Windows, where Python lacks os.pread and os.pwritev; use WSL 2 "
            "or the container image"
        )
