"""A table whose newest snapshots are all part of its current state was not rolled back."""

from collections.abc import Mapping, Sequence

import attrs
import pytest

from kwire_pipeline.engine.offsets import Ranges
from kwire_pipeline.tables.iceberg import has_newest
from kwire_pipeline.tables.table import Mark, summary_of


@attrs.frozen
class Snapshot:
    """A snapshot as Iceberg's API shows it; its id is its sequence number."""

    number: int
    parent: int | None
    own_summary: Mapping[str, str]
    is_of_version_1: bool = False

    def parentId(self) -> int | None:
        return self.parent

    def sequenceNumber(self) -> int:
        return 0 if self.is_of_version_1 else self.number

    def summary(self) -> Mapping[str, str]:
        return self.own_summary


@attrs.frozen
class Table:
    """A table of some snapshots, the last of which is the current one."""

    chain: Sequence[Snapshot]
    newest: int

    def currentSnapshot(self) -> Snapshot:
        return self.chain[-1]

    def snapshot(self, snapshot_id: int) -> Snapshot | None:
        return {each.number: each for each in self.chain}.get(snapshot_id)

    def operations(self) -> "Table":
        return self

    def current(self) -> "Table":
        return self

    def lastSequenceNumber(self) -> int:
        return self.newest


def batch(number: int, parent: int | None, pipeline_id: str = "p") -> Snapshot:
    return Snapshot(number, parent, summary_of(Mark(pipeline_id, number, Ranges(()))))


def compaction(number: int, parent: int) -> Snapshot:
    return Snapshot(number, parent, {})


@pytest.mark.parametrize(
    ("chain", "newest", "expected"),
    [
        ([batch(1, None), batch(2, 1)], 2, True),
        ([batch(1, None), compaction(2, 1), batch(3, 2, "other")], 3, True),
        ([batch(1, None)], 2, False),  # The last batch was rolled back.
        ([batch(1, None), batch(3, 1, "other")], 3, False),  # Another pipeline wrote since.
        ([batch(1, None, "other"), batch(2, 1, "other")], 2, False),  # There is no own batch.
        ([batch(4, 3)], 4, True),  # The snapshots before have expired.
    ],
)
def test_gap_after_the_last_batch_is_noticed(
    chain: list[Snapshot], newest: int, expected: bool
) -> None:
    assert has_newest(Table(chain, newest), "p") is expected


def test_numbers_of_the_first_format_version_show_nothing() -> None:
    chain = [attrs.evolve(batch(1, None), is_of_version_1=True)]
    assert not has_newest(Table(chain, 0), "p")
