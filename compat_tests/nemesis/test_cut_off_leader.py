"""A leader that is cut off from its controllers, and not from its clients (invariant 34)."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys

import pytest

from compat_tests.harness.broker import ROOT
from compat_tests.nemesis.links import isolated_command

REFUSED_S = 60.0
"""The longest time for which connections that all controllers refuse count as their end."""
SESSION_S = 1.5
LIMIT_S = 300.0


@pytest.mark.long
@pytest.mark.parametrize("way", ["drop", "reset", "icmp"])
def test_leader_without_controllers_acknowledges_no_longer_than_its_lease(
    broker_kind: str, way: str
) -> None:
    """Packets to the controllers are lost, or refused by a firewall; a successor is elected."""
    if broker_kind != "kwire":
        pytest.skip("a leader of Apache Kafka acknowledges for as long as it is cut off")
    if isinstance(reason := isolated_command(), str):
        pytest.skip(reason)
    if way != "drop" and shutil.which("iptables") is None:
        pytest.skip("iptables is missing")
    command = [sys.executable, "-m", "compat_tests.nemesis.cut_off_leader", way]
    run = subprocess.run(
        command, cwd=ROOT, capture_output=True, text=True, timeout=LIMIT_S, check=False
    )
    assert run.returncode == 0, run.stdout + run.stderr
    times = json.loads(run.stdout.splitlines()[-1])
    first, last = times["successor first"], times["old leader last"]
    assert first is not None, "a successor acknowledges"
    if way == "drop":
        assert last is None or last < first, times
    else:
        assert last is None or last < REFUSED_S + SESSION_S, times
