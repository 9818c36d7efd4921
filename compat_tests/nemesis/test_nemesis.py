"""Short runs of `run.py`, in a process of its own; ``scripts/test --all`` has longer ones.

They check invariants 1, 2, 3, 7, 8, 9, 10, 11, 12, 14, 21, 23, 25, 34, 35, 37, 41, 43, 44, 49, 51,
61, 72, 79, 88, 108 and 110, as far as processes show them; the longer runs with transactions also
invariants 4, 5, 6, 59 and 62. The seed changes every day; KWIRE_SEED sets it,
KWIRE_NEMESIS_SECONDS sets how long faults happen.
"""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from compat_tests.harness.broker import ROOT

SECONDS = float(os.environ.get("KWIRE_NEMESIS_SECONDS", "20"))
SEED = int(os.environ.get("KWIRE_SEED", str(int(time.time()) // 86_400)))
END_SECONDS = 900
"""The longest time that a run may take beside its faults; it has a shorter limit of its own."""


def run(broker_kind: str, directory: Path, *arguments: str) -> str:
    """Run clients and faults, print what happens, and return that."""
    command = [sys.executable, "-m", "compat_tests.nemesis.trial", "--broker", broker_kind]
    command += ["--seed", str(SEED), "--directory", str(directory), *arguments]
    with subprocess.Popen(
        command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    ) as process:
        try:
            output, _ = process.communicate(timeout=SECONDS + END_SECONDS)
        finally:
            process.kill()
    print(output)
    assert process.returncode == 0, output
    return output


@pytest.mark.parametrize("mode", ["idempotent"])
def test_clients_see_no_anomaly(mode: str, broker_kind: str, tmp_path: Path, capsys) -> None:
    output = run(broker_kind, tmp_path, "--mode", mode, "--seconds", str(SECONDS))
    with capsys.disabled():
        print(f"\n{output}")
    assert output.splitlines()[-1] == "no anomaly"
