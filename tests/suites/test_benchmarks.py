"""Each benchmark runs: with a small workload, or to its help if it starts brokers.

They say how fast kwire is, not what it does: only the long run starts them.
"""

import subprocess
import sys
from pathlib import Path
from typing import Final

import pytest

FOLDER: Final = Path(__file__).resolve().parents[2] / "benchmarks"
HELP: Final = ("--help",)
WORKLOADS: Final = {
    "aged_group": HELP,
    "attack": HELP,
    "bad_log_ins": HELP,
    "codec": ("--run-ms=0",),
    "compaction": ("--mb=1", "--map-mb=1"),
    "data_path": ("--rounds=10",),
    "failover": HELP,
    "fanout": HELP,
    "in_process": ("--starts=3", "--brokers=2", "--tests=2"),
    "group_load": ("--commits=100", "--groups=10"),
    "log": ("--batches=10",),
    "memory": HELP,
    "net": ("--bytes=1000000", "2", "10"),
    "observers": ("--rounds=1",),
    "pipeline": HELP,
    "rebalance": HELP,
    "records": ("--rounds=10",),
    "sessions": HELP,
    "security": ("--peers=kwire", "--only=acls"),
    "shares": HELP,
    "stalls": HELP,
    "starts": HELP,
}


def test_every_benchmark_has_a_workload() -> None:
    assert {path.stem for path in FOLDER.glob("*.py")} == WORKLOADS.keys()


@pytest.mark.long
@pytest.mark.parametrize("name", WORKLOADS)
def test_benchmark_runs(name: str, tmp_path: Path) -> None:
    command = [sys.executable, str(FOLDER / f"{name}.py"), *WORKLOADS[name]]
    ran = subprocess.run(
        command, cwd=tmp_path, capture_output=True, text=True, timeout=180, check=False
    )
    assert ran.returncode == 0, ran.stderr
    assert ran.stdout
