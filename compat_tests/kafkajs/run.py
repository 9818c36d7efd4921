"""Node's client libraries, old and new: ``scripts/test --all``. Needs Node 20 or newer and npm.

    python -m compat_tests.kafkajs.run --broker kwire|kafka|HOST:PORT

kafkajs uses the protocol versions of 2019. The packages of package.json are installed once into the
cache, and the scripts are copied beside them. In addition to the scenarios, the list names every
operation of the libraries' clients that no scenario calls.
"""

from __future__ import annotations

import hashlib
import re
import shutil
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from compat_tests.harness import programs
from compat_tests.harness.listing import find_uncalled
from compat_tests.harness.suite import AUTHORIZING, Suite, Variant, cache, main

FOLDER = Path(__file__).resolve().parent
SECONDS = 600


def need(program: str) -> str:
    """Return the path of a program of Node; exit with what to install if it is missing."""
    return programs.need(program, "Node.js 20 or newer with npm")


def install() -> Path:
    """Return the folder with the packages; install them first if needed."""
    package = FOLDER / "package.json"
    digest = hashlib.sha256(package.read_bytes()).hexdigest()[:16]
    folder = cache("kafkajs", digest)
    if not (folder / "ok").exists():
        shutil.copy(package, folder)
        command = [need("npm"), "install", "--no-audit", "--no-fund", "--loglevel=error"]
        subprocess.run(command, cwd=folder, check=True)
        (folder / "ok").touch()
    return folder


SOURCES = {"kafkajs": [FOLDER / "kafkajs.cjs"], "platformatic": [FOLDER / "platformatic.mjs"]}


def upstream() -> list[str]:
    """Return the scenarios, and the libraries' operations that none of them calls."""
    operations = _print_names("operations.mjs")
    return [*_print_names("main.cjs", "scenarios"), *find_uncalled(operations, SOURCES)]


def _print_names(*arguments: str) -> list[str]:
    command = [need("node"), *arguments]
    folder = with_scripts()
    result = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=True)
    return result.stdout.split()


def with_scripts() -> Path:
    """Return the folder with the packages, after copying this folder's scripts into it."""
    folder = install()
    for script in FOLDER.glob("*.?js"):
        shutil.copy(script, folder)
    return folder


def run(address: str, names: Sequence[str]) -> Mapping[str, bool]:
    folder = with_scripts()
    command = [need("node"), "main.cjs", address, *names]
    result = subprocess.run(
        command, cwd=folder, capture_output=True, text=True, timeout=SECONDS, check=False
    )
    print(result.stdout + result.stderr)
    lines = re.findall(r"^(PASS|FAIL) ([^\s:]+)", result.stdout, re.MULTILINE)
    return {name: outcome == "PASS" for outcome, name in lines}


SUITE = Suite(
    "kafkajs",
    FOLDER,
    run,
    upstream,
    variants=[Variant(AUTHORIZING, lambda: ("kafkajs/acls",))],
)

if __name__ == "__main__":
    sys.exit(main(SUITE))
