"""`kwire-pipeline status`: offsets, lag, the last batch, dead letters and the table's size."""

import json
from collections.abc import Mapping

import attrs
from pyspark.sql import SparkSession

from kwire_pipeline.commands.show import show
from kwire_pipeline.config.model import Pipeline
from kwire_pipeline.engine import offsets, source
from kwire_pipeline.engine.batch import by_reason
from kwire_pipeline.engine.cluster import Cluster
from kwire_pipeline.engine.offline import state_of
from kwire_pipeline.engine.offsets import Offsets
from kwire_pipeline.engine.query import set_session
from kwire_pipeline.engine.session import open_session
from kwire_pipeline.tables.table import Size, of_topics


@attrs.frozen(kw_only=True)
class Status:
    """The state of a pipeline and of its tables."""

    name: str
    position: Offsets
    ends: Offsets
    lag: int
    batch_id: int | None
    """The last completed batch; None before the first one."""
    is_half_done: bool
    """True if a run has begun another batch."""
    rows: int
    files: int
    bytes: int
    dead_letters: Mapping[str, int]
    """The dead letters by reason."""

    def words(self) -> list[str]:
        """Return the lines for a human reader."""
        half_done = "; a later one is half done" if self.is_half_done else ""
        lines = [
            f"pipeline {self.name}: last batch {self.batch_id}{half_done}; lag {self.lag:,}",
            f"table: {self.rows:,} rows in {self.files:,} files of {self.bytes:,} bytes",
        ]
        for topic, partitions in sorted(self.ends.items()):
            for partition, end in sorted(partitions.items()):
                position = self.position.get(topic, {}).get(partition, 0)
                lines.append(f"  {topic}-{partition}: offset {position:,} of {end:,}")
        lines.append(f"dead letters: {sum(self.dead_letters.values()):,}")
        lines += [f"  {count:,}: {reason}" for reason, count in sorted(self.dead_letters.items())]
        return lines


def status(pipeline: Pipeline, *, as_json: bool = False) -> int:
    """Print the status of a pipeline; nothing is written."""
    spark = open_session(pipeline)
    try:
        result = read_status(spark, pipeline)
    finally:
        spark.stop()
    show(pipeline, [json.dumps(attrs.asdict(result))] if as_json else result.words())
    return 0


def read_status(spark: SparkSession, pipeline: Pipeline) -> Status:
    """Read the status from checkpoint, brokers and tables."""
    set_session(spark)
    state = state_of(spark, pipeline)
    cluster = Cluster(spark, source.client(pipeline.source))
    try:
        ends = cluster.ends(cluster.topics(state.identity.topics).values())
    finally:
        cluster.close()
    letters = state.destinations.dead_letters
    own = None
    if letters is not None and letters.exists():
        own = of_topics(letters.read(), state.identity.topics)
    table = state.destinations.table
    size = table.size() if table.exists() else Size(rows=0, files=0, bytes=0)
    return Status(
        name=pipeline.name,
        position=state.position,
        ends=ends,
        lag=offsets.lag(state.position, ends),
        batch_id=state.batch_id,
        is_half_done=state.is_half_done,
        rows=size.rows,
        files=size.files,
        bytes=size.bytes,
        dead_letters={} if own is None else by_reason(own),
    )
