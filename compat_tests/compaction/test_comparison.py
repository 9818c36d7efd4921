"""The comparison itself: it finds no difference where there is none, and each one that there is.

Apache Kafka's cleaner is compared with itself, once over the same job and then over changed jobs.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import attrs
import pytest

from compat_tests.compaction.apache import Answer, ApacheCleaner
from compat_tests.compaction.comparison import Clean, compare
from compat_tests.compaction.inputs import Pass


def change_job(apache: ApacheCleaner, change: Callable[[Pass], Pass]) -> Clean:
    """Return a cleaner that is Apache Kafka's, but works on a changed job."""

    def clean(directory: Path, job: Pass, expected: Answer) -> Answer:
        answer = apache.clean(directory, change(job))
        return {**expected, **answer}

    return clean


@pytest.mark.parametrize("name", ["tombstones", "transactions"])
def test_apaches_cleaner_agrees_with_itself(
    apache: ApacheCleaner, tmp_path: Path, name: str
) -> None:
    passes = compare(name, 0, tmp_path, apache, change_job(apache, lambda job: job))
    assert passes


@pytest.mark.parametrize(
    ("name", "change", "difference"),
    [
        ("tombstones", lambda job: attrs.evolve(job, now_ms=job.now_ms + 1), "delete_horizon_ms"),
        ("plain", lambda job: attrs.evolve(job, first_dirty=job.first_dirty + 90), "clean_bytes"),
        ("small map", lambda job: attrs.evolve(job, memory_bytes=24 * 60), "clean_end"),
        (
            "many segments",
            lambda job: attrs.evolve(job, config=attrs.evolve(job.config, segment_bytes=9_000)),
            "segments",
        ),
    ],
)
def test_difference_is_found(
    apache: ApacheCleaner,
    tmp_path: Path,
    name: str,
    change: Callable[[Pass], Pass],
    difference: str,
) -> None:
    with pytest.raises(AssertionError, match=difference):
        compare(name, 0, tmp_path, apache, change_job(apache, change), opens=False)


def test_lost_value_is_found(apache: ApacheCleaner, tmp_path: Path) -> None:
    """Both cleaners lose the same: only the values of the keys show it."""

    def clean(directory: Path, job: Pass, expected: Answer) -> Answer:
        apache.clean(directory, job)
        for folder in (directory, directory.parent.parent / "apache-0" / directory.name):
            for path in folder.glob("*.log"):
                path.write_bytes(b"")
        return expected

    with pytest.raises(AssertionError, match="other values"):
        compare("plain", 0, tmp_path, apache, clean, opens=False)
