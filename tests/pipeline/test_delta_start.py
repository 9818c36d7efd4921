"""The versions of a Delta table, at a start and before each batch: few are read, none is missed."""

import datetime
import json
from collections.abc import Sequence
from unittest.mock import MagicMock

import pytest
from py4j.java_gateway import JavaObject
from pyspark.sql import DataFrame, DataFrameWriter

from kwire_pipeline.engine.offsets import Ranges
from kwire_pipeline.errors import Refusal
from kwire_pipeline.tables.delta import DeltaTable
from kwire_pipeline.tables.delta_history import PARTS, Version
from kwire_pipeline.tables.table import Mark, summary_of

START = datetime.datetime.fromisoformat("2026-11-25 12:00:00")
PIPELINE = "p"


def mark(batch_id: int) -> Mark:
    return Mark(PIPELINE, batch_id, Ranges(()))


class Log(DeltaTable):
    """A table whose log is a list; `reads` has the number of versions of each query."""

    def __init__(self, batch_count: int) -> None:
        self.url = "lake/orders"
        self.name = f"delta.`{self.url}`"
        self.versions: list[Version] = []
        self.reads: list[int] = []
        self._cached_history = None
        self._last = None
        self.commit("CREATE TABLE")
        for batch_id in range(batch_count):
            self.commit("WRITE", mark(batch_id))

    def commit(self, operation: str, mark: Mark | None = None, version: int | None = None) -> None:
        number = len(self.versions)
        self.versions.append(
            Version(
                number,
                START + datetime.timedelta(minutes=number),
                operation,
                {} if version is None else {"version": str(version)},
                None if mark is None else json.dumps(summary_of(mark)),
            )
        )

    def last_batch(self, pipeline_id: str) -> int | None:
        batches = [json.loads(each.metadata) for each in self.versions if each.metadata is not None]
        own = [int(each["kwire.batch-id"]) for each in batches]
        return max(own, default=None) if pipeline_id == PIPELINE else None

    def _snapshot(self) -> JavaObject:
        fields = {"id": "1", "partitionColumns": [], "configuration": {}}
        snapshot = MagicMock()
        snapshot.version.return_value = len(self.versions) - 1
        snapshot.metadata().json.return_value = json.dumps({"metaData": fields})
        return snapshot

    def _read_history(self, limit: int | None) -> list[Version]:
        newest: Sequence[Version] = self.versions[-limit:] if limit else self.versions
        self.reads.append(len(newest))
        return list(newest)

    def _appender(self, frame: DataFrame) -> DataFrameWriter:
        return MagicMock()

    def write(self, batch_id: int) -> None:
        self.append(MagicMock(), mark(batch_id))
        self.commit("WRITE", mark(batch_id))


@pytest.mark.parametrize("batch_count", [1000, 20_000])
def test_start_reads_as_many_versions_of_a_large_table_as_of_a_small_one(batch_count: int) -> None:
    log = Log(batch_count)
    assert log.rolled_back(PIPELINE) is None
    assert log.rolled_back("another") is None
    assert log.has_batch(mark(batch_count - 1), by_rows=True)
    assert log.reads == [PARTS[0]]


def test_quiet_pipeline_is_found_behind_the_newest_versions() -> None:
    log = Log(2)
    for _ in range(PARTS[0] + 1):
        log.commit("OPTIMIZE")
    assert log.rolled_back(PIPELINE) is None
    assert log.reads == [PARTS[0], len(log.versions)]


def test_restore_among_the_newest_versions_is_traced_through_all_of_them() -> None:
    log = Log(3000)
    log.commit("RESTORE", version=2000)
    assert log.rolled_back(PIPELINE) == 2999
    assert log.reads[-1] == len(log.versions)
    with pytest.raises(Refusal, match="was restored to a version before batch 2999"):
        log.has_batch(mark(2999), by_rows=True)
    log.commit("RESTORE", version=3000)
    assert log.rolled_back(PIPELINE) is None


def test_restore_during_a_run_is_refused_before_the_next_batch() -> None:
    log = Log(5)
    log.write(5)
    log.write(6)
    assert log.reads == []  # Nobody else has written, so there is nothing to look for.
    log.commit("OPTIMIZE")
    log.write(7)
    log.commit("RESTORE", version=6)
    with pytest.raises(Refusal, match="was rolled back during the run and lacks batch 7: undo"):
        log.write(8)


def test_page_of_a_day_reads_no_more_versions_than_it_shows() -> None:
    log = Log(5000)
    since = log.versions[-50].at.astimezone(datetime.UTC)
    assert len(log.history(PIPELINE, since).entries) == 50
    assert log.reads == [PARTS[0]]
