"""Build kwire/_speedups.c, the optional extension module: ``speedups.py [TARGET]``.

Uses only the standard library, and the Python that runs it. Rules: without a C compiler or without
Python.h nothing is built and nothing is said; a compiler that fails is one line on stderr; neither
is an error, because kwire does the same work in Python. A module newer than its source is kept.
"""

import os
import shlex
import shutil
import subprocess
import sys
import sysconfig
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
SOURCE = ROOT / "kwire" / "_speedups.c"
TARGET = ROOT / "kwire" / "_speedups.abi3.so"
"""The module for the stable ABI, which any later version of Python loads."""
FLAGS = ("-std=c11", "-O2", "-fPIC", "-Wall")


def build(target: Path = TARGET, source: Path = SOURCE) -> bool:
    """Build the module if it is missing or older than its source; return whether it is there."""
    if target.exists() and target.stat().st_mtime > source.stat().st_mtime:
        return True
    target.unlink(missing_ok=True)
    linker, include = compiler(), Path(sysconfig.get_paths()["include"])
    if linker is None or not (include / "Python.h").exists():
        return False
    with tempfile.TemporaryDirectory(dir=target.parent, prefix=".speedups-") as folder:
        built = Path(folder) / target.name
        command = [*linker, *FLAGS, f"-I{include}", str(source), "-o", str(built)]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode or not built.exists():
            reason = next(iter(done.stderr.splitlines()), f"exit code {done.returncode}")
            print(f"kwire: {source.name} was not built, Python is used: {reason}", file=sys.stderr)
            return False
        os.replace(built, target)
    return True


def compiler() -> list[str] | None:
    """Return the command that makes a module: this Python's own, else ``cc``; None without one."""
    for command in (sysconfig.get_config_var("LDSHARED") or "", "cc -shared"):
        parts = shlex.split(os.environ.get("LDSHARED") or command)
        if parts and shutil.which(parts[0]):
            return parts
    return None


if __name__ == "__main__":
    try:
        build(Path(sys.argv[1]) if sys.argv[1:] else TARGET)
    except OSError as failure:
        print(f"kwire: {SOURCE.name} was not built: {failure}", file=sys.stderr)
