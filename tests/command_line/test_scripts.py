"""`scripts/kwire` makes its environment when that is missing or stale, and only then."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

SCRIPTS = Path(__file__).resolve().parents[2] / "scripts"


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    """A checkout whose set-up only notes that it ran and makes a python that says its arguments."""
    (tmp_path / "scripts").mkdir()
    shutil.copy(SCRIPTS / "kwire", tmp_path / "scripts" / "kwire")
    script(
        tmp_path / "scripts" / "with-python",
        f"echo ran $2 >> {tmp_path}/set-up\nmkdir -p {tmp_path}/.venv/bin\n"
        f'printf \'#!/bin/sh\\necho "$$" "$@"\\n\' > {tmp_path}/.venv/bin/python\n'
        f"chmod +x {tmp_path}/.venv/bin/python\ntouch {tmp_path}/.venv/.ready-base\n",
    )
    (tmp_path / "pyproject.toml").touch()
    os.utime(tmp_path / "pyproject.toml", (1, 1))
    return tmp_path


def script(path: Path, body: str) -> None:
    path.write_text(f"#!/bin/sh\n{body}")
    path.chmod(0o755)


def kwire(checkout: Path) -> tuple[int, str]:
    process = subprocess.Popen(
        [checkout / "scripts" / "kwire", "serve", "--port", "0"],
        stdout=subprocess.PIPE,
        text=True,
        cwd="/",
    )
    output, _ = process.communicate(timeout=30)
    return process.pid, output.strip()


def test_the_environment_is_made_once(checkout: Path) -> None:
    for _ in range(2):
        pid, said = kwire(checkout)
        assert said == f"{pid} -m kwire serve --port 0", "it becomes kwire: the same process"
    assert (checkout / "set-up").read_text() == "ran base\n"


def test_a_changed_pyproject_makes_it_stale(checkout: Path) -> None:
    kwire(checkout)
    (checkout / "pyproject.toml").touch()
    os.utime(checkout / ".venv" / ".ready-base", (1, 1))
    kwire(checkout)
    assert (checkout / "set-up").read_text() == "ran base\nran base\n"


def test_a_failed_set_up_is_exit_1(checkout: Path) -> None:
    script(checkout / "scripts" / "with-python", "exit 3\n")
    done = subprocess.run([checkout / "scripts" / "kwire"], check=False, timeout=30)
    assert done.returncode == 1


SET_UP_AS_NOBODY = """
import fcntl, os, pathlib, pkgutil, re, runpy, shutil, subprocess, sys, urllib.request, venv
if os.geteuid() == 0:
    os.setgroups([])
    os.setgid(65534)
    os.setuid(65534)
sys.argv = ["setup.py", "base"]
runpy.run_path("scripts/setup.py", run_name="__main__")
"""


def test_a_checkout_of_another_user_is_told_in_one_line(tmp_path: Path) -> None:
    (tmp_path / "scripts").mkdir()
    shutil.copy(SCRIPTS / "setup.py", tmp_path / "scripts" / "setup.py")
    (tmp_path / "pyproject.toml").touch()
    tmp_path.parent.chmod(0o755)
    tmp_path.parent.parent.chmod(0o755)
    tmp_path.chmod(0o555)
    done = subprocess.run(
        [sys.executable, "-c", SET_UP_AS_NOBODY],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
        timeout=30,
    )
    assert done.returncode == 1, done.stderr
    (line,) = done.stderr.splitlines()
    assert line.startswith(f"kwire: cannot make {tmp_path}/.venv: [Errno 13] Permission denied")
    assert f"run this once as the owner of {tmp_path}" in line


def test_a_python_that_is_too_old_is_told_in_one_line(tmp_path: Path) -> None:
    for name in ("python3", "python3.11", "python3.12", "python3.13", "python3.14"):
        script(tmp_path / name, "exit 1\n")
    done = subprocess.run(
        ["/bin/sh", SCRIPTS / "with-python", "setup.py"],
        env={"PATH": str(tmp_path)},
        capture_output=True,
        text=True,
        check=False,
        timeout=30,
    )
    assert done.returncode == 1
    assert done.stderr.splitlines() == [
        "kwire needs Python 3.11 or newer (Debian: apt-get install python3)"
    ]
