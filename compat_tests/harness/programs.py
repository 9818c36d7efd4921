"""Programs that a suite needs beside Python: compilers, package managers, interpreters."""

from __future__ import annotations

import shutil


def need(program: str, package: str) -> str:
    """Return the path of a program; exit with the package to install if it is missing."""
    path = shutil.which(program)
    if path is None:
        raise SystemExit(f"`{program}` is missing: install {package}")
    return path
