"""The tests are compiled once, before the processes of a stage collect them."""

import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
SWITCH = "PYTHONDONTWRITEBYTECODE"


def pytest_run(*arguments: str) -> str:
    environment = {name: text for name, text in os.environ.items() if name != SWITCH}
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", *arguments],
        cwd=ROOT,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    return done.stdout + done.stderr


def test_pytest_takes_what_was_compiled(tmp_path: Path) -> None:
    (tmp_path / "test_one.py").write_text("def test_one():\n    assert [1] == [2]\n")
    (tmp_path / "conftest.py").write_text("X = 1\n")
    assert "failed" not in pytest_run("-p", "tests.support.compile_tests", str(tmp_path))
    compiled = {path: path.stat().st_mtime_ns for path in tmp_path.rglob("*.pyc")}
    assert len(compiled) == 2
    assert "At index 0 diff: 1 != 2" in pytest_run(str(tmp_path))
    assert {path: path.stat().st_mtime_ns for path in tmp_path.rglob("*.pyc")} == compiled
