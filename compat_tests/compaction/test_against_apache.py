"""kwire's cleaner leaves the same log as Apache Kafka's, and both brokers open it.

Run over each shape of ``shapes.py`` with one seed; the long run takes eight more seeds of each.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import attrs
import pytest

from compat_tests.compaction.apache import ApacheCleaner
from compat_tests.compaction.comparison import Cleaned, compare
from compat_tests.compaction.features import FEATURES, features
from compat_tests.compaction.kwire_cleaner import clean_directory, clean_in_process
from compat_tests.compaction.shapes import SHAPES
from compat_tests.harness.jvm import Jvm
from kwire.log.formats import names

DUMP = "org.apache.kafka.tools.DumpLogSegments"
INDEXES = (names.INDEX, names.TIME_INDEX)
LONG_SEEDS = range(1, 9)


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


@contextmanager
def folder_in_memory(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """Make a folder where syncs cost nothing, if the system has such a place."""
    memory = Path("/dev/shm")
    base = memory if memory.is_dir() else tmp_path_factory.mktemp("compaction")
    with tempfile.TemporaryDirectory(dir=base, prefix="kwire-") as root:
        yield Path(root)


@pytest.fixture(scope="module")
def results(apache: ApacheCleaner, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Results]:
    with folder_in_memory(tmp_path_factory) as root:
        yield Results(root, apache)


@pytest.mark.parametrize("name", SHAPES)
def test_both_cleaners_leave_the_same_log(results: Results, name: str) -> None:
    assert results.of(name)


def test_histories_reach_every_rule(results: Results) -> None:
    """The comparison is worth something only if it meets what the rules are about."""
    reached = {
        feature for name in SHAPES for cleaned in results.of(name) for feature in features(cleaned)
    }
    assert reached == FEATURES


def test_child_process_leaves_the_same_log(
    apache: ApacheCleaner, tmp_path_factory: pytest.TempPathFactory
) -> None:
    with folder_in_memory(tmp_path_factory) as root:
        assert compare("transactions", 0, root, apache, clean_in_process, opens=False)


def test_apaches_dump_finds_nothing_wrong(results: Results, jvm: Jvm) -> None:
    """It misses the times of emptied batches, as it does in what Apache Kafka's cleaner leaves."""
    files = [
        path
        for name in SHAPES
        # The tool decodes the values of control records; those of foreign ones it cannot.
        if not SHAPES[name].foreign_markers
        for path in results.of(name)[-1].directory.iterdir()
    ]
    logs = [path for path in files if path.suffix == names.LOG]
    printed = dump(jvm, logs, "--deep-iteration")
    for complaint in ("ismatch", "isvalid: false", "out of order", "Exception", "Could not"):
        assert not [line for line in printed.splitlines() if complaint in line][:5]
    indexes = [path for path in files if path.suffix in INDEXES]
    printed = dump(jvm, indexes, "--index-sanity-check")
    assert printed.count("passed") == len([path for path in indexes if path.stat().st_size])
    printed = dump(jvm, indexes, "--verify-index-only")
    assert "Index offset" not in printed
    complaints = [line for line in printed.splitlines() if "Index timestamp: " in line]
    assert complaints  # From the empty batches.
    assert all(line.endswith("log timestamp: -1") for line in complaints)


def dump(jvm: Jvm, files: list[Path], *arguments: str) -> str:
    """Return what the tool prints about those of the files that are not empty."""
    paths = ",".join(str(path) for path in files if path.stat().st_size)
    ran = jvm.tool(DUMP, *arguments, "--files", paths)
    return ran.ok() + ran.err


@pytest.mark.long
@pytest.mark.parametrize("seed", LONG_SEEDS)
def test_both_cleaners_leave_the_same_log_with_more_seeds(
    apache: ApacheCleaner, tmp_path_factory: pytest.TempPathFactory, seed: int
) -> None:
    differences = []
    for name in SHAPES:
        with folder_in_memory(tmp_path_factory) as root:
            try:
                compare(name, seed, root, apache, clean_directory)
            except AssertionError as error:
                differences.append(str(error))
    assert not differences, "\n\n".join(differences)
