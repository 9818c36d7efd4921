"""`scripts/kwire` makes its environment when that is missing or stale, and only then."""

import os
import shutil
import subprocess
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
