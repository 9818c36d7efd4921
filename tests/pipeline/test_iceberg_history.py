"""Only the snapshots of the current state prove that a batch is in an Iceberg table."""

import attrs

from kwire_pipeline.engine.offsets import Ranges
from kwire_pipeline.tables.iceberg import ancestors, current, is_conflict, is_missing
from kwire_pipeline.tables.table import BATCH, PIPELINE, Mark


@attrs.frozen
class Snapshot:
    """A snapshot with Iceberg's methods."""

    number: int
    parent: int | None
    batch: int | None = None

    def snapshotId(self) -> int:
        return self.number

    def sequenceNumber(self) -> int:
        return self.number

    def parentId(self) -> int | None:
        return self.parent

    def summary(self) -> dict[str, str]:
        return {} if self.batch is None else {PIPELINE: "11", BATCH: str(self.batch)}


class Table:
    """The snapshots of a table, the last of which is current unless another one is named."""

    def __init__(self, *snapshots: Snapshot, at: int | None = None) -> None:
        self._by_id = {snapshot.number: snapshot for snapshot in snapshots}
        self._at = snapshots[-1].number if snapshots and at is None else at

    def snapshots(self) -> list[Snapshot]:
        return list(self._by_id.values())

    def snapshot(self, number: int) -> Snapshot | None:
        return self._by_id.get(number)

    def currentSnapshot(self) -> Snapshot | None:
        return None if self._at is None else self._by_id[self._at]


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
