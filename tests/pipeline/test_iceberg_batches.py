"""The history of an Iceberg table, for the page of a day: batches until their snapshots expire."""

import datetime

import attrs

from kwire_pipeline.engine.offsets import Ranges
from kwire_pipeline.tables.iceberg_history import Snapshot, history_of
from kwire_pipeline.tables.table import History, Mark, summary_of


def snapshot(number: int, parent: int | None, pipeline_id: str = "p") -> Snapshot:
    at = datetime.datetime(2026, 11, 27, 0, number, tzinfo=datetime.UTC)
    mark = Mark(pipeline_id, number, Ranges(()))
    return Snapshot(number, parent, at, {**summary_of(mark), "added-records": f"{number * 10}"})


def test_history_has_the_batches_of_the_current_state() -> None:
    """A snapshot that was rolled back, and one of another pipeline, do not belong to it."""
    chain = [snapshot(1, None), snapshot(2, 1), snapshot(3, 2), snapshot(4, 2, "other")]
    history = history_of([*chain, snapshot(5, 4)], 5, "p")
    assert [(entry.mark.batch_id, entry.rows) for entry in history.entries] == [
        (1, 10),
        (2, 20),
        (5, 50),
    ]
    assert history.since is None
    assert history_of([], None, "p") == History(())


def test_history_begins_after_expired_snapshots() -> None:
    later = [snapshot(3, 2), snapshot(4, 3)]
    assert history_of(later, 4, "p").since == later[0].at
    # Snapshots of an earlier day are known, but nobody asked for their batches.
    early = attrs.evolve(snapshot(2, None), summary={})
    whole = history_of([early, *later], 4, "p")
    assert [entry.mark.batch_id for entry in whole.entries] == [3, 4]
    assert whole.since is None
