"""kwire's cleaner leaves the same log as Apache Kafka's, and both brokers open it.

Run over each shape of ``shapes.py`` with one seed; the long run takes eight seeds of each.
"""

from __future__ import annotations

import shutil
import tempfile
from pathlib import Path

import attrs
import pytest

from compat_tests.compaction.apache import ApacheCleaner
from compat_tests.compaction.comparison import Cleaned, compare
from compat_tests.compaction.features import FEATURES, features
from compat_tests.compaction.kwire_cleaner import clean_directory
from compat_tests.compaction.shapes import SHAPES
from compat_tests.harness.jvm import Jvm

DUMP = "org.apache.kafka.tools.DumpLogSegments"
LONG_SEEDS = range(1, 9)
PENDING = {"retained forever"}
"""Shapes that fail: ``delete.retention.ms`` so large that the horizon exceeds 63 bits."""
SOUND = [name for name in SHAPES if name not in PENDING]


@attrs.define
class Results:
    """The passes over each shape, made when they are first needed."""

    root: Path
    apache: ApacheCleaner
    by_name: dict[str, list[Cleaned]] = attrs.Factory(dict)

    def of(self, name: str) -> list[Cleaned]:
        if name not in self.by_name:
            root = Path(tempfile.mkdtemp(dir=self.root))
            self.by_name[name] = compare(name, 0, root, self.apache, clean_directory)
        return self.by_name[name]


@pytest.fixture(scope="module")
def results(apache: ApacheCleaner, tmp_path_factory: pytest.TempPathFactory) -> Results:
    return Results(tmp_path_factory.mktemp("compaction"), apache)


@pytest.mark.parametrize("name", SOUND)
def test_both_cleaners_leave_the_same_log(results: Results, name: str) -> None:
    assert results.of(name)


def test_histories_reach_every_rule(results: Results) -> None:
    """The comparison is worth something only if it meets what the rules are about."""
    reached = {
        feature for name in SOUND for cleaned in results.of(name) for feature in features(cleaned)
    }
    assert reached == FEATURES


def test_apaches_dump_has_no_complaint(results: Results, jvm: Jvm) -> None:
    logs, indexes = [], []
    for name in SOUND:
        if SHAPES[name].foreign_markers:
            continue  # The tool decodes the values of control records, which here are none.
        directory = results.of(name)[-1].directory
        logs += [str(path) for path in directory.glob("*.log") if path.stat().st_size]
        indexes += [str(path) for path in directory.glob("*index") if path.stat().st_size]
    for arguments in (
        ["--deep-iteration", "--files", ",".join(logs)],
        ["--index-sanity-check", "--files", ",".join(indexes)],
        ["--verify-index-only", "--files", ",".join(indexes)],
    ):
        ran = jvm.tool(DUMP, *arguments)
        printed = ran.ok() + ran.err
        for complaint in ("ismatch", "isvalid: false", "out of order", "Exception", "Could not"):
            lines = [line for line in printed.splitlines() if complaint in line]
            assert not lines, lines[:5]


@pytest.mark.long
@pytest.mark.parametrize("seed", LONG_SEEDS)
def test_both_cleaners_leave_the_same_log_with_more_seeds(
    apache: ApacheCleaner, tmp_path: Path, seed: int
) -> None:
    differences = []
    for name in SOUND:
        root = tmp_path / name.replace(" ", "-")
        try:
            compare(name, seed, root, apache, clean_directory)
        except AssertionError as error:
            differences.append(str(error))
        else:
            shutil.rmtree(root)
    assert not differences, "\n\n".join(differences)
