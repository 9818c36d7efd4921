"""A table whose newest snapshots are all part of its current state was not rolled back."""

from collections.abc import Collection, Iterator, Mapping, Sequence
from unittest.mock import MagicMock

import attrs
import pytest

from kwire_pipeline.engine.offsets import Ranges
from kwire_pipeline.tables.iceberg import IcebergTable, has_newest
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

    def snapshotId(self) -> int:
        return self.number

    def sequenceNumber(self) -> int:
        return 0 if self.is_of_version_1 else self.number

    def summary(self) -> Mapping[str, str]:
        return self.own_summary


@attrs.frozen
class Table:
    """A table of some snapshots, the last of which is the current one."""

    chain: Sequence[Snapshot]
    newest: int
    has_others: bool = False
    """True if there are snapshots outside the current state."""
    tags: Mapping[str, Snapshot] = attrs.field(factory=dict)

    def currentSnapshot(self) -> Snapshot | None:
        return self.chain[-1] if self.chain else None

    def refs(self) -> Mapping[str, Snapshot]:
        return self.tags

    def properties(self) -> Mapping[str, str]:
        return {f"kwire.pipeline.{name}": pipeline_id for name, pipeline_id in OWNERS.items()}

    def snapshots(self) -> "Table":
        return self

    def iterator(self) -> "Table":
        return self

    def __iter__(self) -> Iterator[Snapshot]:
        return iter(self.chain)

    def hasNext(self) -> bool:
        return bool(self.chain) or self.has_others

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


def test_table_without_snapshots_was_not_rolled_back() -> None:
    assert has_newest(Table([], 0), "p")


def test_table_that_was_replaced_by_an_empty_one_may_lack_batches() -> None:
    """Iceberg keeps the snapshots before a CREATE OR REPLACE TABLE, and none is current."""
    assert not has_newest(Table([], 2, has_others=True), "p")


def test_numbers_of_the_first_format_version_show_nothing() -> None:
    chain = [attrs.evolve(batch(1, None), is_of_version_1=True)]
    assert not has_newest(Table(chain, 0), "p")


OWNERS = {"orders": "p", "returns": "other"}
EXPIRED = [compaction(9, 8)]
"""The rest after another tool has expired all snapshots but the newest, and their marks."""


class Iceberg(IcebergTable):
    """A table whose snapshots and rows are known; marks of other pipelines are of ``topics``."""

    def __init__(self, chain: Sequence[Snapshot], *, has_rows: bool, topics: str = "") -> None:
        self.table = Table(chain, chain[-1].number)
        self.has_rows, self.topics = has_rows, topics

    def exists(self) -> bool:
        return True

    def owners(self) -> dict[str, str]:
        return OWNERS

    def keys(self) -> tuple[str, ...]:
        return ()

    def marks_of(self, pipeline_ids: Collection[str]) -> list[Mark]:
        ranges = Ranges.between({}, {topic: {0: 9} for topic in self.topics.split()})
        return [Mark(pipeline_id, 0, ranges) for pipeline_id in pipeline_ids]

    def _table(self) -> Table:
        return self.table

    def _has_rows(self, mark: Mark) -> bool:
        return self.has_rows


NEWEST = Mark("p", 3, Ranges.between({}, {"orders": {0: 9}}))


@pytest.mark.parametrize(
    ("chain", "has_rows", "is_lost"),
    [
        (EXPIRED, True, False),
        (EXPIRED, False, True),
        ([batch(1, None)], True, True),  # The snapshots are complete, so the mark would be there.
        ([batch(2, 1)], True, True),
        ([batch(3, 2), compaction(4, 3)], False, False),
    ],
)
def test_expiry_by_another_tool_is_no_loss_of_a_batch_in_a_shared_table(
    chain: list[Snapshot], has_rows: bool, is_lost: bool
) -> None:
    assert Iceberg(chain, has_rows=has_rows).lacks(NEWEST, by_rows=True) is is_lost


@pytest.mark.parametrize(
    ("chain", "topics", "expected"),
    [
        (EXPIRED, "returns", True),
        (EXPIRED, "returns orders", False),  # The rows may be the other pipeline's.
        ([batch(1, None)], "returns", False),  # No mark has expired.
    ],
)
def test_rows_prove_a_half_done_batch_in_a_shared_table_after_an_expiry(
    chain: list[Snapshot], topics: str, expected: bool
) -> None:
    table = Iceberg(chain, has_rows=True, topics=topics)
    assert table.has_batch(NEWEST, by_rows=True) is expected
    assert not table.has_batch(NEWEST, by_rows=False)


def test_maintenance_moves_only_the_tags_of_pipelines_that_wrote_since() -> None:
    """Each change of a tag is a commit: hundreds of pipelines may share their dead letters."""
    chain = [batch(1, None, "other"), batch(2, 1), batch(3, 2)]
    table = Iceberg(chain, has_rows=True)
    table.name, table._spark = "kwire.shop.dead", MagicMock()
    table.table = attrs.evolve(
        table.table, tags={"writer-other": chain[0], "writer-p": chain[1], "main": chain[2]}
    )
    table.protect_marks()
    (statement,) = [call.args[0] for call in table._spark.sql.call_args_list]
    assert statement.endswith("CREATE OR REPLACE TAG `writer-p` AS OF VERSION 3")
