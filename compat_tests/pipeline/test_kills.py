"""Kills of driver and brokers at random moments; `kills.py` runs other seeds by hand."""

from __future__ import annotations

from pathlib import Path

import pytest

from compat_tests.pipeline.kills import KILLS, RECORDS, run_trial


@pytest.mark.long
@pytest.mark.usefixtures("patience")
@pytest.mark.parametrize("nodes", [1, 3])
def test_rows_are_the_committed_records_whatever_is_killed(
    broker_kind: str, tmp_path: Path, nodes: int
) -> None:
    run_trial(tmp_path, broker_kind, nodes=nodes, seed=nodes, records=RECORDS, kills=KILLS)
