"""Kills of driver and brokers at random moments; `kills.py` runs other seeds by hand."""

from __future__ import annotations

from pathlib import Path

import pytest

from compat_tests.pipeline.kills import (
    BATCH_OFFSETS,
    KILLS,
    LETTERS_IN,
    RECORDS,
    TOPIC,
    file_of,
    run_trial,
)
from kwire_pipeline.config.load import load


@pytest.mark.parametrize("letters", LETTERS_IN)
def test_file_of_the_trial_is_accepted(tmp_path: Path, letters: str) -> None:
    """The file that the long trials of kills run is valid."""
    file = tmp_path / "orders.yaml"
    file.write_text(file_of("127.0.0.1:9092", tmp_path, letters))
    pipeline = load(str(file), [], {})
    assert pipeline.source.topics == (TOPIC,)
    assert pipeline.limits.max_offsets_per_trigger == BATCH_OFFSETS


@pytest.mark.long
@pytest.mark.usefixtures("patience")
@pytest.mark.parametrize(("nodes", "letters"), [(1, "table"), (3, "topic")])
def test_rows_are_the_committed_records_whatever_is_killed(
    broker_kind: str, tmp_path: Path, nodes: int, letters: str
) -> None:
    run_trial(
        tmp_path,
        broker_kind,
        nodes=nodes,
        letters=letters,
        seed=nodes,
        records=RECORDS,
        kills=KILLS,
    )
