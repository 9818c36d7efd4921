"""The tests of a Go module, fetched from the module proxy and compiled once into the cache."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from collections.abc import Callable, Sequence
from pathlib import Path


def find_go() -> str:
    """Return the path of the go command; exit with what to install if it is missing."""
    go = shutil.which("go")
    if go is None:
        raise SystemExit("`go` is missing: install Go 1.26 or newer (https://go.dev/dl)")
    return go


def compile_tests(
    built: Path,
    module: str,
    version: str,
    package: str,
    flags: Sequence[str] = (),
    prepare: Callable[[Path], None] = lambda source: None,
) -> None:
    """Compile the package's tests to the file ``built``, unless it exists.

    A writable copy of the module lies beside it, in the folder `source`; ``prepare`` may change it.
    """
    if built.exists():
        return
    go = find_go()
    command = [go, "mod", "download", "-json", f"{module}@{version}"]
    answer = subprocess.run(command, cwd=built.parent, capture_output=True, text=True, check=False)
    if answer.returncode != 0:
        raise SystemExit(f"go could not download {module}@{version}: {answer.stdout}")
    source = built.parent / "source"
    shutil.rmtree(source, ignore_errors=True)
    shutil.copytree(json.loads(answer.stdout)["Dir"], source, copy_function=shutil.copy)
    for path in [source, *source.rglob("*")]:
        path.chmod(path.stat().st_mode | 0o200)
    prepare(source)
    command = [go, "test", "-c", *flags, "-o", str(built), package]
    subprocess.run(command, cwd=source, check=True)


def install_program(built: Path, package: str, version: str) -> None:
    """Install a program to the file ``built``, whose name is the package's; once."""
    if built.exists():
        return
    environment = {**os.environ, "GOBIN": str(built.parent)}
    subprocess.run([find_go(), "install", f"{package}@{version}"], env=environment, check=True)
