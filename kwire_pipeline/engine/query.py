"""The run of a pipeline: identity, lease, then one streaming query until its end.

Rules of this file: nothing is written before `identity.decide` permits the run; the identity file
is written before the table gets the pipeline's name, so a run that ends in between can be
continued.
"""

import datetime
import logging
import time
import uuid
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext, suppress
from typing import Final

import attrs
from py4j.protocol import Py4JError, Py4JNetworkError
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.query import StreamingQuery

from kwire_pipeline.config.model import Pipeline
from kwire_pipeline.engine import following, identity, losses, offsets, source, upkeep
from kwire_pipeline.engine.adoption import Adoption, finish_newest
from kwire_pipeline.engine.batch import Result, Tolerance, Writer
from kwire_pipeline.engine.cluster import Cluster, Topic, may_lack_topics, topics_of
from kwire_pipeline.engine.definition import definition_of
from kwire_pipeline.engine.faults import NO_FAULTS, Faults
from kwire_pipeline.engine.following import Adapted, Follower
from kwire_pipeline.engine.identity import Begin, Facts, Identity, Intent
from kwire_pipeline.engine.lease import Files, Lease, beating, releasing
from kwire_pipeline.engine.offline import (
    check_definition,
    checkpoint_name,
    half_done,
    last_entry,
    read_entry,
)
from kwire_pipeline.engine.offsets import Offsets, Ranges
from kwire_pipeline.engine.preparation import check_tables, prepare_tables
from kwire_pipeline.engine.reporting.figures import Batch, Tally
from kwire_pipeline.engine.schemas import schemas_of
from kwire_pipeline.engine.session import set_parallelism, set_session
from kwire_pipeline.engine.shape_and_tables import destinations_of, shape_of, transform_hash
from kwire_pipeline.engine.start_offsets import Beginning
from kwire_pipeline.engine.storage import Folder
from kwire_pipeline.engine.upkeep import Claims, Turn
from kwire_pipeline.engine.written import Written
from kwire_pipeline.errors import Failure, Overtaken, Refusal
from kwire_pipeline.explain import problem_of
from kwire_pipeline.pace import Pace, is_off
from kwire_pipeline.patience import POLL_S, Outage, patiently
from kwire_pipeline.records.frames import Shape
from kwire_pipeline.tables.destinations import Destinations
from kwire_pipeline.tables.table import Letters, Mark, other_writers

PATIENCE_S: Final = 300
"""The longest wait for brokers between two batches of a run at an interval."""


class Stopped(Exception):
    """The end of a run between two batches, on request."""


@attrs.frozen(kw_only=True)
class Control:
    """A run's connection to the outside: reports go out, a request to stop comes in."""

    report: Callable[[Batch], None] = lambda batch: None
    warn: Callable[[str], None] = lambda text: None
    alert: Callable[[str], None] = lambda text: None
    """Called with the reason why a continuing run needs attention."""
    on_restart: Callable[[], None] = lambda: None
    is_stopping: Callable[[], bool] = lambda: False
    faults: Faults = NO_FAULTS
    claims: Claims = attrs.field(factory=Claims)
    """The tables that the process maintains; runs that may share a table share their claims."""


def run_pipeline(
    spark: SparkSession,
    pipeline: Pipeline,
    intent: Intent,
    control: Control,
    given_up: Ranges = losses.NOTHING,
    shared: Cluster | None = None,
) -> Tally:
    """Run until everything available is written, or a stop is requested; return the tally.

    An adoption may skip the ``given_up`` offsets, and a new start may delete their rows. ``shared``
    is the brokers' client if several runs share one.
    """
    set_session(spark)
    folder = Folder(spark, pipeline.checkpoint)
    lease = Lease.take(folder)
    with (
        releasing(lease, control.warn),
        nullcontext(shared) if shared else Cluster.of(spark, pipeline) as cluster,
    ):
        with beating(lease):  # It can take minutes, so each step that writes checks the lease.
            opened = open_run(spark, pipeline, folder, cluster, intent, given_up, lease.check)
        return Run(spark, pipeline, opened, lease, cluster, control).run()


@attrs.frozen(kw_only=True)
class Opened:
    """A pipeline that may begin, because its identity agrees with the brokers and tables."""

    folder: Folder
    identity: Identity
    shape: Shape
    destinations: Destinations

    @property
    def spark_checkpoint(self) -> Folder:
        return self.folder.at(checkpoint_name(self.identity.pipeline_id))


def facts_of(
    pipeline: Pipeline,
    stored: Identity | None,
    folder: Folder,
    destinations: Destinations,
    cluster: Cluster,
    topics: Mapping[str, Topic],
    intent: Intent,
) -> Facts:
    """Return the state of the cluster and the tables at the start of a run.

    Other writers are looked for only if the run would change or skip their rows as well: that reads
    every mark of a table, of which a table of dead letters that 200 pipelines share has many.
    """
    name, table, letters = pipeline.name, destinations.table, destinations.dead_letters
    exists = table.exists()
    checkpoint_batch = table_batch = None
    lost = lost_batches(name, stored, folder, destinations)
    if stored is not None:
        checkpoint_batch = last_entry(folder.at(checkpoint_name(stored.pipeline_id)), "offsets")
        batches = [
            written.last_batch(stored.pipeline_id)
            for written in (table, letters)
            if written is not None and written.exists()
        ]
        table_batch = max((batch for batch in batches if batch is not None), default=None)
    return Facts(
        cluster_id=cluster.cluster_id(),
        topics={topic.name: topic.topic_id for topic in topics.values()},
        table_id=table.table_id() if exists else None,
        owners=table.owners() if exists else {},
        has_letters=stored is None
        and letters is not None
        and letters.exists()
        and letters.has_letters(name, topics),
        written_topics=written_topics(name, destinations.tables) if stored is None else {},
        other_writers={}
        if intent is Intent.CONTINUE
        else other_writers(destinations.tables, name, topics),
        may_lack_topics=may_lack_topics(pipeline),
        checkpoint_batch=checkpoint_batch,
        table_batch=table_batch,
        lost_rows=lost[0],
        lost_letters=lost[1],
    )


def lost_batches(
    name: str, stored: Identity | None, folder: Folder, destinations: Destinations
) -> tuple[int | None, int | None]:
    """Return a batch that the table has lost, and one that the dead letters lost, or None."""
    written = Written.read(folder)
    by_rows = stored is not None and not stored.has_replaced_topic

    def missing_batch(table: Letters | None) -> int | None:
        if table is None or not table.exists():
            return None
        pipeline_id = table.owners().get(name) if stored is None else stored.pipeline_id
        if pipeline_id is None:
            return None
        return written.missing_batch(table, pipeline_id, by_rows=by_rows)

    return missing_batch(destinations.table), missing_batch(destinations.dead_letters)


def read_identity(folder: Files) -> Identity | None:
    """Return the identity beside a checkpoint; None if there is none."""
    text = folder.read(identity.FILE)
    return None if text is None else Identity.parse(text)


def written_topics(name: str, tables: Sequence[Letters]) -> dict[str, str]:
    """Return the ids of the topics of the pipeline's newest rows and dead letters."""
    ids: dict[str, str] = {}
    for table in tables:
        for mark in table.marks(name) if table.exists() else []:
            ids.update(mark.topic_ids)
    return ids


def open_run(
    spark: SparkSession,
    pipeline: Pipeline,
    folder: Folder,
    cluster: Cluster,
    intent: Intent,
    given_up: Ranges,
    check_lease: Callable[[], None],
) -> Opened:
    """Compare the pipeline with brokers and tables, then write its identity if it is new."""
    stored = read_identity(folder)
    destinations = destinations_of(spark, pipeline)
    pipeline = following.at_start(pipeline, stored, folder, destinations, intent)
    shape = shape_of(pipeline, pipeline.value.schema)
    topics = topics_of(pipeline, cluster)
    facts = facts_of(pipeline, stored, folder, destinations, cluster, topics, intent)
    begin = identity.decide(
        pipeline.name, pipeline.checkpoint, pipeline.table.name, stored, facts, intent
    )
    if begin is Begin.CONTINUE and stored is not None:
        check_definition(spark, pipeline, stored, folder)
    check_tables(pipeline, destinations, is_new_start=begin is Begin.FROM_START)
    beginning = Beginning(
        pipeline=pipeline,
        cluster=cluster,
        topics=topics,
        destinations=destinations,
        stored=stored,
        facts=facts,
        given_up=given_up,
    )
    start = beginning.start(begin)
    check_lease()
    prepare_tables(spark, pipeline, shape, destinations)
    if begin is not Begin.FROM_START:
        for table in destinations.tables:
            table.finish(pipeline.name)
    if begin is Begin.CONTINUE and stored is not None:
        current = attrs.evolve(
            identity.with_topics(stored, facts.topics),
            start=start,
            schema=pipeline.value.schema or "",
            table_id=destinations.table.table_id(),
            dead_letters=pipeline.dead_letters.table,
            letter_topic=pipeline.dead_letters.topic,
            definition=definition_of(pipeline),
            transform_hash=transform_hash(pipeline.transform),
        )
    else:
        if begin is Begin.ADOPT:
            finish_letters(spark, folder, shape, beginning, check_lease)
        has_replaced_topic = begin is Begin.ADOPT and identity.has_replacement(stored, facts)
        current = Identity(
            name=pipeline.name,
            pipeline_id=identity.new_pipeline_id(
                uuid.uuid4().hex, has_replaced_topic=has_replaced_topic
            ),
            cluster_id=facts.cluster_id,
            topics=facts.topics,
            deleted_topics=identity.deleted_topics(stored, facts.topics),
            table=pipeline.table.name,
            table_id=destinations.table.table_id(),
            dead_letters=pipeline.dead_letters.table,
            letter_topic=pipeline.dead_letters.topic,
            schema=pipeline.value.schema or "",
            definition=definition_of(pipeline),
            transform_hash=transform_hash(pipeline.transform),
            start=start,
            verify_from=identity.verify_offsets(stored, facts, start)
            if begin is Begin.ADOPT
            else None,
            has_replaced_topic=has_replaced_topic,
            former_id=facts.owners.get(pipeline.name),
            pending_deletion=tuple(sorted(topics)) if begin is Begin.FROM_START else (),
        )
    check_lease()
    current = carry_out(folder, current, destinations.tables)
    return Opened(folder=folder, identity=current, shape=shape, destinations=destinations)


def finish_letters(
    spark: SparkSession,
    folder: Folder,
    shape: Shape,
    beginning: Beginning,
    check_lease: Callable[[], None],
) -> None:
    """Write the dead letters that the newest batch of an adopted table lacks."""
    stored = beginning.stored
    finish_newest(
        Adoption(
            spark=spark,
            pipeline=beginning.pipeline,
            folder=folder,
            shape=shape,
            destinations=beginning.destinations,
            cluster=beginning.cluster,
            topics=beginning.topics,
            former_topics={} if stored is None else stored.known_topics,
            given_up=beginning.given_up,
            check_lease=check_lease,
        )
    )


def carry_out(folder: Files, current: Identity, tables: Sequence[Letters]) -> Identity:
    """Write the identity, make its pending changes to the tables, and return it without them.

    The file records the changes that a run leaves undone, and the next run makes them. So a
    checkpoint never continues after rows that the table does not have.
    """
    folder.write(identity.FILE, current.dump())
    for table in tables:
        if current.pending_deletion:
            table.discard_marks(current.name)
            table.delete(current.pending_deletion)
    for table in tables:
        if table.owners().get(current.name) != current.pipeline_id:
            table.add_owner(current.name, current.pipeline_id)
    done = attrs.evolve(current, former_id=None, pending_deletion=())
    if done != current:
        folder.write(identity.FILE, done.dump())
    return done


class Run:
    """The query of one run, and everything that its batches need."""

    def __init__(
        self,
        spark: SparkSession,
        pipeline: Pipeline,
        opened: Opened,
        lease: Lease,
        cluster: Cluster,
        control: Control,
    ) -> None:
        self._spark = spark
        self._pipeline = pipeline
        self._opened = opened
        self._lease = lease
        self._cluster = cluster
        self._control = control
        self._tally = Tally()
        self._error: Exception | None = None
        self._identity = opened.identity
        self._checkpoint = opened.spark_checkpoint
        self._half_done: int | None = None
        self._outage = Outage(pipeline.patience.total_seconds())
        self._entries: dict[int, Offsets] = {}
        self._topics: Mapping[str, Topic] = {}
        self._written = Written.read(opened.folder)
        limits = pipeline.limits
        self._pace = Pace() if limits.max_bytes_per_trigger is None else Pace.read(opened.folder)
        self._limit = 0
        self._last_batch: int | None = None
        self._follower = Follower(pipeline, half_done(self._checkpoint), lease.check, control.warn)
        self._upkeep: Turn | None = None
        self._writer = Writer(
            shape=opened.shape,
            destinations=opened.destinations,
            tolerance=Tolerance(
                max_bad_share=pipeline.max_bad_share, min_bad_records=pipeline.min_bad_records
            ),
            by_rows=not opened.identity.has_replaced_topic,
            mark=self.mark,
            lag=self._lag,
            check_lease=lease.check,
            faults=control.faults,
            schemas=schemas_of(pipeline, opened.folder, opened.identity.pipeline_id),
        )

    def run(self) -> Tally:
        """Run the query to its end; raise the error that made a batch fail.

        A run at an interval restarts the query after errors that a rerun may cure.
        """
        self._commit_start()
        while not self._control.is_stopping():
            try:
                return self._run_query()
            except Adapted:
                self._error = None
            except (Failure, Py4JError, PySparkException) as error:
                if not self._waits_after(error):
                    raise
        return self._end_on_request()

    def _run_query(self) -> Tally:
        query = self._start()
        is_endless = self._pipeline.trigger.interval is not None
        try:
            while not query.awaitTermination(POLL_S):
                self._beat()
                # Spark records the first trigger that ends without an error, even if it finds no
                # records.
                if self._outage.is_under_way and query.lastProgress is not None:
                    self._end_outage()
                # A query up to the topics' end never pauses: its next batch refuses to begin.
                is_stopping = is_endless and self._control.is_stopping()
                if is_stopping and not query.status["isTriggerActive"]:
                    query.stop()
                    return self._end_on_request()
        except PySparkException as error:
            if isinstance(self._error, Stopped):
                return self._end_on_request()
            if self._error is not None:
                raise self._error from None
            raise problem_of(error) from error
        finally:
            if query.isActive:
                query.stop()
            if isinstance(self._error, Stopped | Adapted):
                log_errors(self._spark, is_on=True)
        return self._tally

    def _beat(self) -> None:
        """Increment the lease's beat; if the store rejects it, the next batch checks the lease."""
        with suppress(Py4JError):
            self._lease.beat()

    def _waits_after(self, error: Exception) -> bool:
        """Wait after an error that a rerun may cure; return whether to restart the query.

        Spark would log the same stack trace at each try, so only the first is logged.
        """
        problem = error if isinstance(error, Failure) else problem_of(error)
        is_final = isinstance(error, Py4JNetworkError) or not isinstance(problem, Failure)
        if self._pipeline.trigger.available_now or is_final or isinstance(problem, Overtaken):
            return False
        wait_s = self._outage.on_failure(time.monotonic())
        if wait_s is None:
            return False
        if self._outage.is_first_failure:
            self._control.warn(f"{problem}; the run will retry")
            self._control.alert(f"{problem}; the run will retry")
        log_errors(self._spark, is_on=False)
        self._control.on_restart()
        end_s = time.monotonic() + wait_s
        while time.monotonic() < end_s and not self._control.is_stopping():
            time.sleep(min(POLL_S, wait_s))
            self._beat()
        self._error = None
        return True

    def _end_on_request(self) -> Tally:
        """Return the tally of a run that ends on request."""
        self._tally.is_stopped = True
        self._tally.is_cut_short = self._pipeline.trigger.available_now
        return self._tally

    def _start(self) -> StreamingQuery:
        if self._follower.newest is not None:
            shape, self._identity = self._follower.change(self._spark, self._opened, self._identity)
            self._writer = attrs.evolve(self._writer, shape=shape)
        self._half_done = resume(self._checkpoint, self._opened.destinations, self._pipeline.name)
        self._limit = self._pace.max_offsets(self._pipeline.limits)
        limits = attrs.evolve(self._pipeline.limits, max_offsets_per_trigger=self._limit)
        pipeline = attrs.evolve(self._pipeline, limits=limits)
        options = source.options(pipeline, self._identity.topics, self._identity.start)
        stream = self._spark.readStream.format("kafka").options(**options).load()
        writer = (
            stream.writeStream.queryName(self._pipeline.name)
            .option("checkpointLocation", self._checkpoint.url)
            .foreachBatch(self._on_batch)
        )
        interval = self._pipeline.trigger.interval
        if interval is None:
            return writer.trigger(availableNow=True).start()
        return writer.trigger(
            processingTime=f"{int(interval.total_seconds() * 1000)} milliseconds"
        ).start()

    def _on_batch(self, frame: DataFrame, batch_id: int) -> None:
        """Write one batch; store an error, because Spark passes on only its text."""
        if batch_id == self._last_batch:
            return  # The query before this one wrote it, and ended to get another limit.
        try:
            self._stop_if_asked()
            self._lease.check()
            self._check_topics()
            self._follower.check(batch_id, self._identity.schema)
            for session in (self._spark, frame.sparkSession):
                set_parallelism(session)
            result = self._writer.write(
                frame, batch_id, may_be_repeated=batch_id == self._half_done
            )
            self._note(result)
            self._commit_batch(batch_id)
            self._on_result(result)
            self._last_batch = batch_id
            self._maintain()
            self._adapt(result.figures)
        except Exception as error:
            self._error = error
            if isinstance(error, Stopped | Adapted):
                log_errors(self._spark, is_on=False)
            raise

    def _note(self, result: Result) -> None:
        """Record the batch as written, so that the next run notices if the table loses it."""
        written = self._written.after(result, self._opened.destinations)
        if written != self._written:
            written.write(self._opened.folder)
            self._written = written

    def _adapt(self, batch: Batch) -> None:
        """Record the size of records; raise Adapted if the query's limit is far off."""
        limits = self._pipeline.limits
        if limits.max_bytes_per_trigger is None or (pace := self._pace.after(batch)) == self._pace:
            return
        self._pace = pace
        pace.write(self._opened.folder)
        if is_off(self._limit, pace.max_offsets(limits)):
            raise Adapted

    def _on_result(self, result: Result) -> None:
        """Report a written batch; a closed output does not make the batch fail."""
        self._tally.add(result.figures, result.reasons)
        self._end_outage()
        with suppress(OSError, ValueError):
            self._control.report(result.figures)

    def _end_outage(self) -> None:
        """Report that an outage is over, if there was one."""
        if (elapsed_s := self._outage.on_success(time.monotonic())) is not None:
            log_errors(self._spark, is_on=True)
            self._control.warn(f"the run continues after {elapsed_s:.0f} seconds")

    def _maintain(self) -> None:
        """Maintain the tables if that is due; a failure is reported, and the run continues."""
        every = self._pipeline.maintenance.every
        if every is None:
            return
        try:
            self._maintain_if_due(every)
        except (Failure, Refusal, Py4JError, PySparkException) as error:
            words = error if isinstance(error, Failure | Refusal) else problem_of(error)
            self._control.warn(f"{upkeep.problem_with(self._upkeep)}: {words}")

    def _maintain_if_due(self, every: datetime.timedelta) -> None:
        """Maintain the tables if that is due, and record it; raise the error of either step.

        A failure is recorded first, and that record remains if maintenance ends the process.
        """
        folder, control = self._opened.folder, self._control
        now = datetime.datetime.now(datetime.UTC)
        if self._upkeep is None:
            # If the file cannot be read, maintenance is due later.
            self._upkeep = Turn(at=now, is_done=False)
            self._upkeep = Turn.read(folder, now)
        if not self._upkeep.is_over(every, now):
            return
        limits = upkeep.upkeep_of(self._pipeline.maintenance, now)
        self._upkeep = Turn(at=now, is_done=False)
        self._upkeep.write(folder)
        lines = upkeep.maintain(
            self._opened.destinations, limits, self._lease.check, control.claims, control.faults
        )
        for line in lines:
            control.warn(line)
        self._upkeep = Turn(at=datetime.datetime.now(datetime.UTC))
        self._upkeep.write(folder)

    def _commit_start(self) -> None:
        """Commit the offsets at which this run begins, so that the lag is right at once."""
        if self._pipeline.commit_group is not None:
            done = last_entry(self._checkpoint, "commits")
            self._commit(self._identity.start if done is None else self._entry(done))

    def _commit_batch(self, batch_id: int) -> None:
        """Commit a batch's end offsets for tools that show lag; the run does not need them."""
        try:
            self._commit(self._entry(batch_id))
        except (Failure, Refusal, Py4JError) as error:
            self._control.warn(f"the offsets after batch {batch_id} are not committed: {error}")

    def _commit(self, position: Offsets) -> None:
        """Commit the offsets of topics that were not deleted; brokers reject those of others."""
        group, topics = self._pipeline.commit_group, self._identity.topics
        if group is not None:
            present = {name: parts for name, parts in position.items() if name in topics}
            self._cluster.commit(group, present)

    def _stop_if_asked(self) -> None:
        """Raise Stopped if the run is to end before its next batch."""
        if self._control.is_stopping():
            raise Stopped

    def _topics_now(self) -> dict[str, Topic]:
        self._stop_if_asked()
        return topics_of(self._pipeline, self._cluster)

    def _check_topics(self) -> None:
        """Raise Refusal if a topic was recreated; store the topics that match the pattern now."""
        # A run at an interval must retry here, because brokers may restart during it.
        patience_s = 0 if self._pipeline.trigger.available_now else PATIENCE_S
        self._topics = patiently(self._topics_now, patience_s)
        current = {name: topic.topic_id for name, topic in self._topics.items()}
        own, may_lack = self._identity, may_lack_topics(self._pipeline)
        identity.check_cluster(own, own.cluster_id, current, may_lack=may_lack)
        if current.keys() != self._identity.topics.keys():
            self._identity = identity.with_topics(self._identity, current)
            self._opened.folder.write(identity.FILE, self._identity.dump())

    def mark(self, batch_id: int) -> Mark:
        """Return the mark of a batch, with its offsets from Spark's log."""
        start = self._entry(batch_id - 1) if batch_id else self._identity.start
        ranges = Ranges.between(start, self._entry(batch_id))
        topics = {part.topic for part in ranges.ranges}
        ids = {name: id_ for name, id_ in self._identity.topics.items() if name in topics}
        return Mark(self._identity.pipeline_id, batch_id, ranges, ids, pipeline=self._identity.name)

    def _entry(self, batch_id: int) -> Offsets:
        """Return a batch's end offsets, cached because Spark never changes them."""
        if batch_id not in self._entries:
            former = {
                number: self._entries[number] for number in self._entries.keys() & {batch_id - 1}
            }
            self._entries = {**former, batch_id: read_entry(self._checkpoint, batch_id)}
        return self._entries[batch_id]

    def _lag(self, mark: Mark) -> int:
        """Return the offsets left to read after a batch, in the topics that existed before it."""
        return offsets.lag(self._entry(mark.batch_id), self._cluster.ends(self._topics.values()))


def resume(checkpoint: Folder, destinations: Destinations, pipeline: str) -> int | None:
    """Return the batch that a query began but did not finish, if any; its commits are visible.

    The query may have failed between a commit and the move of its last file.
    """
    batch_id = half_done(checkpoint)
    if batch_id is not None:
        for table in destinations.tables:
            table.finish(pipeline)
    return batch_id


def log_errors(spark: SparkSession, *, is_on: bool) -> None:
    """Turn the error logs of Spark and py4j on or off.

    Only an exception can skip a batch, and both loggers would log its stack trace.
    """
    spark.sparkContext.setLogLevel("ERROR" if is_on else "OFF")
    logging.getLogger("py4j.clientserver").disabled = not is_on
