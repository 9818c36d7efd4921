"""The compatibility tests that a run chooses."""

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]


def collect(folder: str, *options: str) -> set[str]:
    """Return the modules whose tests a run would start."""
    command = [sys.executable, "-m", "pytest", "--collect-only", f"compat_tests/{folder}"]
    done = subprocess.run([*command, *options], cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    return {line.split("::")[0] for line in done.stdout.splitlines() if "::" in line}


def test_run_against_kafka_leaves_out_tests_with_brokers_of_their_own() -> None:
    assert collect("readme", "--broker=kafka") == {"readme/test_readme.py"}
