"""`kwire-pipeline maintain`: compact small files, expire snapshots, remove orphan files.

It takes the checkpoint's lease, so `maintain` is refused while a run writes, and a run is refused
while `maintain` works. Otherwise it would remove a run's uncommitted files as orphans, and could
not compact rows that the run changes. It is also refused while a batch is half done. It tags the
newest snapshots of the table's pipelines, and of other recent writers, so that they do not expire:
a writer reads the number of its last batch from its snapshot.
"""

import datetime
from functools import partial

import attrs
from pyspark.sql import SparkSession

from kwire_pipeline.commands.show import show, warner
from kwire_pipeline.commands.tables import on_tables
from kwire_pipeline.config.model import Pipeline
from kwire_pipeline.config.template import Loaded
from kwire_pipeline.engine import upkeep
from kwire_pipeline.engine.faults import NO_FAULTS, Faults
from kwire_pipeline.engine.offline import holding
from kwire_pipeline.engine.session import set_session
from kwire_pipeline.engine.storage import Folder
from kwire_pipeline.engine.upkeep import Claims, Turn


def maintain(loaded: Loaded, *, table: str | None = None) -> int:
    """Maintain the tables and their dead letters, and print what was done."""
    return on_tables(loaded, table, partial(maintain_table, claims=Claims()))


def maintain_table(spark: SparkSession, pipeline: Pipeline, *, claims: Claims) -> int:
    """Maintain both tables of one pipeline, unless they have already been maintained."""
    now = datetime.datetime.now(datetime.UTC)
    show(pipeline, maintain_tables(spark, pipeline, now, claims=claims))
    return 0


def maintain_tables(
    spark: SparkSession,
    pipeline: Pipeline,
    now: datetime.datetime,
    faults: Faults = NO_FAULTS,
    claims: Claims | None = None,
) -> list[str]:
    """Maintain the tables; raise Refusal while a run writes or a batch is half done."""
    set_session(spark)
    with holding(spark, pipeline, warner(pipeline)) as (lease, state):
        # One turn of this command covers each table once, however long the others take.
        limits = attrs.evolve(upkeep.upkeep_of(pipeline.maintenance, now), since=upkeep.NEVER)
        lines = upkeep.maintain(state.destinations, limits, lease.check, claims or Claims(), faults)
        Turn(at=now).write(Folder(spark, pipeline.checkpoint))
    return lines
