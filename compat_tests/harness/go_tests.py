"""The tests of a Go module, fetched from the module proxy and compiled once into the cache."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from compat_tests.harness.programs import need


def find_go() -> str:
    """Return the path of the go command; exit with what to install if it is missing."""
    return need("go", "Go 1.26 or newer (https://go.dev/dl)")


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


def list_tests(built: Path, package: Path) -> list[str]:
    """Return the names of all compiled tests, without subtests; they run in the folder given."""
    command = [str(built), "-test.list", "."]
    listed = subprocess.run(command, cwd=package, capture_output=True, text=True, check=True)
    return [line for line in listed.stdout.splitlines() if line.startswith("Test")]


def run_tests(
    built: Path,
    package: Path,
    names: Sequence[str],
    environment: Mapping[str, str],
    *,
    seconds: int,
    at_once: int,
    skip: str = "",
) -> dict[str, bool]:
    """Run compiled tests by name; return whether each test and each of its subtests passed.

    ``at_once`` parallel tests run at the same time; those that match ``skip`` do not run. The
    output goes to ``last-run.log`` beside the compiled tests.
    """
    command = [str(built), "-test.v", f"-test.parallel={at_once}", f"-test.timeout={seconds}s"]
    command += [f"-test.run=^({'|'.join(names)})$", *([f"-test.skip={skip}"] if skip else [])]
    log = built.parent / "last-run.log"
    with log.open("w") as output:
        subprocess.run(
            command,
            cwd=package,
            env={**os.environ, **environment},
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            check=False,
        )
    text = log.read_text(errors="replace")
    lines = re.findall(r"^\s*--- (PASS|FAIL): (\S+)", text, re.MULTILINE)
    return {name: outcome == "PASS" for outcome, name in lines}


def install_program(built: Path, package: str, version: str) -> None:
    """Install a program to the file ``built``, whose name is the package's; once."""
    if built.exists():
        return
    environment = {**os.environ, "GOBIN": str(built.parent)}
    subprocess.run([find_go(), "install", f"{package}@{version}"], env=environment, check=True)
