"""Short runs of `trial.py`, in a process of its own; ``scripts/test --all`` has longer ones.

The mode that has only idempotent producers is left to those: the other modes have such producers,
readers and auditors too.

They check invariants 1, 2, 3, 7, 8, 9, 10, 11, 12, 14, 21, 23, 25, 34, 35, 36, 37, 40, 41, 43, 44,
46, 49, 51, 61, 72, 79, 88, 108 and 110, as far as processes show them; with transactions also
invariants 4, 5, 6, 59 and 62, with groups of the new protocols also 66, 69, 70 and 75. The seed
changes every day, and decides whether voters can be changed; KWIRE_SEED sets it,
KWIRE_NEMESIS_SECONDS sets how long faults happen at least.
"""

from __future__ import annotations

import ast
import os
import re
import subprocess
import sys
import time
from pathlib import Path

import pytest

from compat_tests.harness.broker import ROOT

SECONDS = {"idempotent": 20.0, "transactions": 10.0, "consumer": 20.0, "share": 20.0}
"""The shortest time of faults; the clients of transactions take longer to recover from each."""
KINDS = 2
"""The fewest kinds of faults of a run: some seeds draw one that lasts as long as the run."""
SEED = int(os.environ.get("KWIRE_SEED", str(int(time.time()) // 86_400)))
END_SECONDS = 900
"""The longest time that a run may take beside its faults; it has a shorter limit of its own."""


def run(broker_kind: str, directory: Path, seconds: float, *arguments: str) -> str:
    """Run clients and faults, print what happens, and return that."""
    command = [sys.executable, "-m", "compat_tests.nemesis.trial", "--broker", broker_kind]
    command += ["--seed", str(SEED), "--directory", str(directory), *arguments]
    command += ["--seconds", str(seconds)]
    with subprocess.Popen(
        command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    ) as process:
        try:
            output, _ = process.communicate(timeout=seconds + END_SECONDS)
        finally:
            process.kill()
    print(output)
    assert process.returncode == 0, output
    return output


def counts(output: str, what: str) -> dict[str, int]:
    """Return the counts of ``what`` in the summary of a run."""
    (text,) = re.findall(rf"[,; ] {what} (\{{.*?\}})", output)
    return dict(ast.literal_eval(text))


@pytest.mark.parametrize(
    "mode",
    [
        pytest.param("consumer", marks=pytest.mark.long),
        pytest.param("idempotent", marks=pytest.mark.long),
        pytest.param("share", marks=pytest.mark.long),
        "transactions",
    ],
)
def test_clients_see_no_anomaly(mode: str, broker_kind: str, tmp_path: Path, capsys) -> None:
    seconds = float(os.environ.get("KWIRE_NEMESIS_SECONDS", SECONDS[mode]))
    voters = ["--dynamic"] if SEED % 2 else []
    output = run(broker_kind, tmp_path, seconds, "--mode", mode, "--kinds", str(KINDS), *voters)
    with capsys.disabled():
        print(f"\n{output}")
    assert output.splitlines()[-1] == "no anomaly"
    assert len(counts(output, "faults")) >= KINDS
    if mode == "transactions":
        ends = counts(output, "transactions")
        assert min(ends.get(outcome, 0) for outcome in ("committed", "aborted")) > 0, ends
    if mode in ("consumer", "share"):
        assert counts(output, "churn"), "no member left, crashed or paused"
