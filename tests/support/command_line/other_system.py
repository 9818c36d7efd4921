"""The `kwire` command without what another operating system lacks: ``other_system.py SYSTEM …``.

Rules: trio and the standard library keep what they need of Linux, so they are imported first. What
is missing under macOS and Windows is taken from Python's documentation.
"""

import os
import select
import signal
import socket
import subprocess  # noqa: F401  It uses much of what is removed.
import sys
import time
from types import ModuleType

import trio  # noqa: F401

LINUX_ONLY = {
    os: (
        "RWF_NOWAIT",
        "POSIX_FADV_DONTNEED",
        "posix_fadvise",
        "posix_fallocate",
        "memfd_create",
        "eventfd",
        "copy_file_range",
        "pipe2",
        "sched_getaffinity",
        "sched_setscheduler",
        "splice",
    ),
    socket: (
        "MSG_NOSIGNAL",
        "SOCK_CLOEXEC",
        "SOCK_NONBLOCK",
        "SO_BINDTODEVICE",
        "TCP_USER_TIMEOUT",
    ),
    time: ("CLOCK_BOOTTIME", "CLOCK_MONOTONIC_RAW"),
}
UNIX_ONLY = {
    os: ("fork", "getuid", "nice", "pread", "preadv", "pwrite", "pwritev", "sendfile", "sysconf"),
    signal: ("SIGCHLD", "SIGCONT", "SIGHUP", "SIGKILL", "SIGSTOP", "SIGUSR1"),
}


def remove(names: dict[ModuleType, tuple[str, ...]]) -> None:
    for module, some in names.items():
        for name in some:
            if hasattr(module, name):
                delattr(module, name)


def main() -> None:
    system = sys.argv.pop(1)
    remove(LINUX_ONLY)
    epoll = select.epoll
    del select.epoll
    if system == "win32":
        remove(UNIX_ONLY)
        for name in ("fcntl", "grp", "pwd", "resource", "termios"):
            sys.modules[name] = None  # type: ignore[assignment]
    sys.platform = system
    import kwire.cli
    import kwire.net.readiness

    assert not kwire.net.readiness.HAS_EPOLL
    select.epoll = epoll  # type: ignore[misc]
    kwire.cli.main()


main()
