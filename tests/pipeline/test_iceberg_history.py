"""Only the snapshots of the current state prove that a batch is in an Iceberg table."""

from typing import cast

import attrs
import pytest
from pyspark.sql import SparkSession

from kwire_pipeline.engine.offsets import Ranges
from kwire_pipeline.tables.iceberg import (
    OTHER_WRITERS,
    TAG,
    IcebergTable,
    ancestors,
    current,
    is_conflict,
    is_missing,
)
from kwire_pipeline.tables.table import BATCH, OWNER, PIPELINE, Mark, Origin


@attrs.frozen
class Snapshot:
    """A snapshot with Iceberg's methods."""

    number: int
    parent: int | None
    batch: int | None = None
    writer: tuple[str, str] | None = None
    """The property by which the writer knows its commits, and the writer's id."""

    def snapshotId(self) -> int:
        return self.number

    def sequenceNumber(self) -> int:
        return self.number

    def parentId(self) -> int | None:
        return self.parent

    def summary(self) -> dict[str, str]:
        if self.writer is not None:
            return dict([self.writer])
        return {} if self.batch is None else {PIPELINE: "11", BATCH: str(self.batch)}


class Table:
    """The snapshots of a table, the last of which is current unless another one is named."""

    def __init__(self, *snapshots: Snapshot, at: int | None = None) -> None:
        self._by_id = {snapshot.number: snapshot for snapshot in snapshots}
        self._at = snapshots[-1].number if snapshots and at is None else at
        self.reads = 0
        """The snapshots that were read, apart from the current one."""

    def snapshots(self) -> list[Snapshot]:
        self.reads += len(self._by_id)
        return list(self._by_id.values())

    def snapshot(self, number: int) -> Snapshot | None:
        self.reads += 1
        return self._by_id.get(number)

    def currentSnapshot(self) -> Snapshot | None:
        return None if self._at is None else self._by_id[self._at]

    def properties(self) -> dict[str, str]:
        return {f"{OWNER}orders": "11"}

    def refs(self) -> dict[str, "Snapshot"]:
        names = ("main", f"{TAG}job 0", f"{TAG}job 29", f"{TAG}11")
        return dict.fromkeys(names, SECOND)


ORIGIN = Origin("topic", "partition", "offset")


def numbers(table: Table) -> list[int]:
    return [snapshot.number for snapshot in current(table)]


def mark(batch_id: int) -> Mark:
    return Mark("11", batch_id, Ranges(()))


FIRST, SECOND, THIRD = Snapshot(1, None, 0), Snapshot(2, 1, 1), Snapshot(3, 2, 2)


def test_rolled_back_batch_is_missing() -> None:
    table = Table(FIRST, SECOND, THIRD, at=1)
    assert numbers(table) == [1]
    assert [is_missing(table, mark(batch)) for batch in (0, 1, 2)] == [False, True, True]
    after = Table(FIRST, SECOND, THIRD, Snapshot(4, 1))
    assert numbers(after) == [4, 1]
    assert is_missing(after, mark(1))


def test_batch_that_was_written_again_after_a_rollback_is_there() -> None:
    table = Table(FIRST, SECOND, Snapshot(3, 1, 1))
    assert numbers(table) == [3, 1]
    assert not is_missing(table, mark(1))


def test_empty_table_lacks_every_batch() -> None:
    table = Table()
    assert numbers(table) == []
    assert is_missing(table, mark(0))


@pytest.mark.parametrize(
    ("batch_id", "is_there"), [(10_000, False), (9_999, True), (9_998, False), (9_997, True)]
)
def test_start_reads_as_few_snapshots_of_a_long_history_as_of_a_short_one(
    monkeypatch: pytest.MonkeyPatch, batch_id: int, is_there: bool
) -> None:
    """Batch 9,998 had no rows; each read is a call to the JVM."""
    older = [Snapshot(batch + 1, batch, batch) for batch in range(9_998)]
    history = Table(*older, Snapshot(10_000, 9_998, 9_999))
    monkeypatch.setattr(IcebergTable, "_table", lambda _: history)
    table = IcebergTable(cast(SparkSession, Session()), "shop.orders", ORIGIN)
    assert table.last_batch("11") == 9_999
    assert table.has_batch(mark(batch_id), by_rows=False) is is_there
    assert not is_missing(history, mark(9_999))
    assert history.reads <= 3


def test_tagged_snapshot_counts_although_its_successors_expired() -> None:
    """`maintain` keeps the newest mark of each writer by a tag."""
    table = Table(FIRST, Snapshot(8, 7), Snapshot(9, 8))
    assert [snapshot.number for snapshot in ancestors(table)] == [9, 8]
    assert numbers(table) == [9, 8, 1]
    assert is_missing(table, mark(0)) is None


def test_rolled_back_snapshot_does_not_count_after_expiry() -> None:
    """It is newer than the oldest ancestor that is left."""
    table = Table(Snapshot(5, 4), Snapshot(6, 5, 1), Snapshot(7, 5))
    assert numbers(table) == [7, 5]


def test_commit_is_retried_only_after_the_commit_of_another_writer() -> None:
    assert is_conflict(
        "Found conflicting files that can contain records matching true: [a.parquet]"
    )
    assert is_conflict("Cannot determine history between starting snapshot 5 and the last known")
    assert not is_conflict("Cannot commit: the catalog does not answer")


class Session:
    """Statements of a session that nobody carries out."""

    def __init__(self) -> None:
        self.statements: list[str] = []

    def sql(self, statement: str) -> None:
        self.statements.append(statement)


def test_only_the_last_other_writers_keep_a_snapshot(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each start of a Flink job has a new id, and would keep data for ever."""
    jobs = [Snapshot(n + 2, n + 1, writer=("flink.job-id", f"job {n}")) for n in range(30)]
    query = Snapshot(32, 31, writer=("spark.sql.streaming.queryId", "query"))
    history = Table(FIRST, *jobs, query)
    monkeypatch.setattr(IcebergTable, "_table", lambda _: history)
    session = Session()
    IcebergTable(cast(SparkSession, session), "shop.orders", ORIGIN).protect_marks()
    dropped = [text for text in session.statements if "DROP TAG" in text]
    assert dropped == ["ALTER TABLE `shop`.`orders` DROP TAG `writer-job 0`"]
    tags = [text.split("`")[5] for text in session.statements if "CREATE" in text]
    newest = ["query", *(f"job {n}" for n in range(29, 30 - OTHER_WRITERS, -1))]
    assert sorted(tags) == sorted(f"{TAG}{writer}" for writer in [*newest, "11"])
    assert "`writer-job 29` AS OF VERSION 31" in " ".join(session.statements)
