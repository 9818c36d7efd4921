"""Kills of driver, broker, store and catalog; `trial.py` runs other seeds by hand."""

from __future__ import annotations

from pathlib import Path

import pytest

from compat_tests.lake.install import reason_to_skip
from compat_tests.lake.trial import KILLS, RECORDS, run_lake_trial
from kwire_pipeline.config.values import TableFormat


@pytest.mark.long
@pytest.mark.usefixtures("patience")
@pytest.mark.parametrize("kind", [TableFormat.ICEBERG, TableFormat.DELTA])
def test_table_has_the_committed_records_whatever_is_killed(
    broker_kind: str, tmp_path: Path, kind: TableFormat
) -> None:
    if (reason := reason_to_skip()) is not None:
        pytest.skip(reason)
    run_lake_trial(tmp_path, broker_kind, kind, seed=1, records=RECORDS, kills=KILLS)
