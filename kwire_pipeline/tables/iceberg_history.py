"""The batches in the snapshots of an Iceberg table, as far as these have not expired."""

import datetime
from collections.abc import Iterable, Mapping

import attrs
from py4j.java_gateway import JavaObject
from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from kwire_pipeline.tables.table import Entry, History, mark_of


@attrs.frozen
class Snapshot:
    """One snapshot of a table."""

    snapshot_id: int
    parent_id: int | None
    at: datetime.datetime
    summary: Mapping[str, str]
    """Empty if nobody asked for it."""


def read_history(
    table: JavaObject, metadata: DataFrame, pipeline_id: str, since: datetime.datetime
) -> History:
    """Return the batches of a pipeline after a time; ``metadata`` lists the table's snapshots."""
    newest = table.currentSnapshot()
    newest_id = None if newest is None else int(newest.snapshotId())
    return history_of(snapshots_of(metadata, since), newest_id, pipeline_id)


def snapshots_of(metadata: DataFrame, since: datetime.datetime) -> list[Snapshot]:
    """Return all snapshots in a table's metadata; those before a time have no summary."""
    at = F.unix_millis("committed_at").alias("at")
    summary = F.when(at >= round(since.timestamp() * 1000), F.col("summary")).alias("summary")
    return [
        Snapshot(
            row["snapshot_id"],
            row["parent_id"],
            datetime.datetime.fromtimestamp(row["at"] / 1000, datetime.UTC),
            row["summary"] or {},
        )
        for row in metadata.select("snapshot_id", "parent_id", at, summary).collect()
    ]


def history_of(snapshots: Iterable[Snapshot], newest_id: int | None, pipeline_id: str) -> History:
    """Return the batches of a pipeline that make up the state of the newest snapshot."""
    by_id = {snapshot.snapshot_id: snapshot for snapshot in snapshots}
    chain: list[Snapshot] = []
    next_id = newest_id
    while next_id is not None and (snapshot := by_id.get(next_id)) is not None:
        chain.append(snapshot)
        next_id = snapshot.parent_id
    entries = (
        Entry(mark=mark, at=snapshot.at, rows=int(snapshot.summary.get("added-records", 0)))
        for snapshot in reversed(chain)
        if (mark := mark_of(snapshot.summary)) is not None and mark.pipeline_id == pipeline_id
    )
    is_cut = bool(chain) and next_id is not None
    return History(tuple(entries), chain[-1].at if is_cut else None)
