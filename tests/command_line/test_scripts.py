"""`scripts/kwire` makes its environment when it is missing or stale, and only then."""

import os
import pwd
import shutil
import stat
import subprocess
import sys
from pathlib import Path

import pytest

SCRIPTS = Path(__file__).resolve().parents[2] / "scripts"


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    """Make a checkout whose set-up notes its run and makes a Python that prints its arguments."""
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


def test_environment_is_made_once(checkout: Path) -> None:
    for _ in range(2):
        pid, command_line = kwire(checkout)
        assert command_line == f"{pid} -m kwire serve --port 0", (
            "kwire replaces the script in the same process"
        )
    assert (checkout / "set-up").read_text() == "ran base\n"


def test_environment_is_made_again_after_a_change_of_pyproject(checkout: Path) -> None:
    kwire(checkout)
    (checkout / "pyproject.toml").touch()
    os.utime(checkout / ".venv" / ".ready-base", (1, 1))
    kwire(checkout)
    assert (checkout / "set-up").read_text() == "ran base\nran base\n"


def test_failed_set_up_is_exit_1(checkout: Path) -> None:
    script(checkout / "scripts" / "with-python", "exit 3\n")
    done = subprocess.run([checkout / "scripts" / "kwire"], check=False, timeout=30)
    assert done.returncode == 1


def test_environment_without_a_working_python_is_made_again(checkout: Path) -> None:
    """The environment is made anew when its Python is gone."""
    kwire(checkout)
    python = checkout / ".venv" / "bin" / "python"
    python.chmod(0o644)
    assert kwire(checkout)[1].endswith("-m kwire serve --port 0")
    assert (checkout / "set-up").read_text() == "ran base\nran base\n"


OTHER_UID = 65534
SET_UP_AS_OTHER_USER = f"""
import fcntl, os, pathlib, pwd, pkgutil, re, runpy, shutil, subprocess, sys, urllib.request, venv
if os.geteuid() == 0:
    os.setgroups([])
    os.setgid({OTHER_UID})
    os.setuid({OTHER_UID})
sys.argv = ["setup.py", "base"]
runpy.run_path("scripts/setup.py", run_name="__main__")
"""


def set_up_as_other_user(folder: Path) -> str:
    """Return the one line with which the set-up fails for a user who owns no files here."""
    (folder / "scripts").mkdir()
    shutil.copy(SCRIPTS / "setup.py", folder / "scripts" / "setup.py")
    (folder / "pyproject.toml").touch()
    folder.chmod(0o555)
    for parent in folder.parents:
        if not parent.stat().st_mode & stat.S_IXOTH:
            parent.chmod(0o755)
    done = subprocess.run(
        [sys.executable, "-c", SET_UP_AS_OTHER_USER],
        cwd=folder,
        capture_output=True,
        text=True,
        check=False,
        timeout=30,
    )
    assert done.returncode == 1, done.stderr
    (line,) = done.stderr.splitlines()
    return line


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can become another user")
@pytest.mark.parametrize("kind", ["closed", "of-a-closed-python", "without-python"])
def test_unusable_environment_of_another_user_is_one_line(tmp_path: Path, kind: str) -> None:
    """The owner's umask is 077, or the owner's Python is in the owner's home."""
    python = tmp_path / ".venv" / "bin" / "python"
    python.parent.mkdir(parents=True)
    (tmp_path / ".venv" / ".ready-base").touch()
    home = tmp_path / "home"
    if kind == "of-a-closed-python":
        home.mkdir()
        script(home / "python3", "exit 0\n")
        python.symlink_to(home / "python3")
        home.chmod(0o700)
    elif kind == "closed":
        script(python, "exit 0\n")
        (tmp_path / ".venv").chmod(0o700)
    line = set_up_as_other_user(tmp_path)
    other_user = pwd.getpwuid(OTHER_UID).pw_name
    where = f" (its Python is {home}/python3)" if home.exists() else ""
    assert line == (
        f"kwire: {tmp_path}/.venv was made by root, and {other_user} may not run it{where}; make a "
        "clone of your own, or ask for the right to read and run it"
    )


def test_checkout_of_another_user_is_one_line(tmp_path: Path) -> None:
    line = set_up_as_other_user(tmp_path)
    assert line.startswith(f"kwire: cannot make {tmp_path}/.venv: [Errno 13] Permission denied")
    assert f"run this once as the owner of {tmp_path}" in line


def test_too_old_python_is_one_line(tmp_path: Path) -> None:
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
