"""Parts of a run that need neither Spark nor brokers: what it asks, commits, notes and refuses."""

from collections.abc import Mapping
from contextlib import nullcontext
from typing import cast
from unittest.mock import MagicMock

import attrs
import pytest
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from kwire_pipeline.commands import run as run_command
from kwire_pipeline.commands import status as status_command
from kwire_pipeline.config.model import Pipeline, Source, Table
from kwire_pipeline.config.values import Mode, Start
from kwire_pipeline.engine import offline, start_offsets
from kwire_pipeline.engine.cluster import Cluster, Topic
from kwire_pipeline.engine.identity import FILE, Begin, Facts, Identity, Intent
from kwire_pipeline.engine.losses import NOTHING
from kwire_pipeline.engine.offline import State
from kwire_pipeline.engine.offsets import Offsets, Range
from kwire_pipeline.engine.query import Control, Run, facts_of
from kwire_pipeline.engine.start_offsets import Beginning
from kwire_pipeline.engine.storage import Folder
from kwire_pipeline.errors import Failure, Held, Overtaken, Permanent, Refusal
from kwire_pipeline.many.notes import PROBLEMS
from kwire_pipeline.tables.destinations import Destinations
from kwire_pipeline.tables.table import Size
from kwire_pipeline.tables.topic import unsent
from tests.support.pipeline.files import Files

PIPELINE = Pipeline(
    name="orders",
    source=Source(bootstrap="127.0.0.1:9092", pattern="orders.*", fail_on_data_loss=False),
    table=Table(name="shop.orders"),
    checkpoint="checkpoint",
    commit_group="lake",
)
TOPICS = {"orders": Topic("orders", "id", (0,))}
IDENTITY = Identity(
    name="orders",
    pipeline_id="1234567890",
    cluster_id="cluster",
    topics={"orders": "id"},
    deleted_topics={"orders.old": "id of old"},
    table="shop.orders",
    table_id="table",
    dead_letters=None,
    schema="",
    start={"orders": {0: 0}, "orders.old": {0: 0}},
)


class Brokers:
    """Brokers that reject commits for topics that they do not have."""

    def __init__(self, policies: Mapping[str, str]) -> None:
        self.committed: list[Offsets] = []
        self.policies = policies

    def commit(self, group: str, offsets: Offsets) -> None:
        if set(offsets) - set(TOPICS):
            raise Refusal("a topic of the pipeline does not exist")
        self.committed.append(offsets)

    def cluster_id(self) -> str:
        return "cluster"

    def beginnings(self, topics: object) -> Offsets:
        return {"orders": {0: 0}}

    def ends(self, topics: object) -> Offsets:
        return {"orders": {0: 7}}

    def topic_settings(self, names: object, key: str) -> Mapping[str, str]:
        return self.policies

    def topics_with_compaction(self, names: object) -> list[str]:
        return [name for name, policy in self.policies.items() if "compact" in policy]


def test_group_gets_no_offsets_of_a_topic_that_was_deleted_between_two_runs() -> None:
    brokers = Brokers({})
    run = Run.__new__(Run)
    run._pipeline, run._identity, run._cluster = PIPELINE, IDENTITY, cast(Cluster, brokers)
    run._checkpoint = cast(Folder, Files())
    run._control = Control()
    run._commit_start()
    run._entries = {4: {"orders": {0: 9}, "orders.old": {0: 5}}}
    run._commit_batch(4)
    assert brokers.committed == [{"orders": {0: 0}}, {"orders": {0: 9}}]


@pytest.mark.parametrize("intent", Intent)
def test_run_that_continues_does_not_read_the_marks_of_other_pipelines(intent: Intent) -> None:
    table = MagicMock()
    table.owners.return_value = {"orders": IDENTITY.pipeline_id, "others": "2"}
    table.rolled_back.return_value = table.last_batch.return_value = None
    folder = MagicMock()
    folder.read.return_value, folder.at("").names.return_value = None, []
    facts_of(
        PIPELINE,
        IDENTITY,
        folder,
        Destinations(table=table, dead_letters=None),
        cast(Cluster, Brokers({})),
        TOPICS,
        intent,
    )
    assert table.marks_of.called == (intent is not Intent.CONTINUE)


@pytest.mark.parametrize(
    ("policies", "mode", "is_refused"),
    [
        ({"orders": "delete"}, Mode.APPEND, False),
        ({"orders": "compact,delete"}, Mode.APPEND, True),
        ({}, Mode.APPEND, True),  # The user may not see it, or the brokers did not answer.
        ({}, Mode.UPSERT, False),
    ],
)
def test_new_start_deletes_no_rows_of_a_topic_that_may_be_compacted(
    policies: Mapping[str, str], mode: Mode, is_refused: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(start_offsets, "ranges_of_rows", lambda *_: [Range("orders", 0, 0, 9)])
    table = MagicMock()
    table.columns.return_value.names = ["kafka_topic", "kafka_partition", "kafka_offset"]
    chosen = attrs.evolve(PIPELINE, table=attrs.evolve(PIPELINE.table, mode=mode))
    beginning = Beginning(
        pipeline=chosen,
        cluster=cast(Cluster, Brokers(policies)),
        topics=TOPICS,
        destinations=Destinations(table=table, dead_letters=None),
        stored=None,
        facts=Facts(cluster_id="cluster", topics={"orders": "id"}, table_id="table", owners={}),
        given_up=NOTHING,
    )
    if is_refused:
        with pytest.raises(
            Permanent, match=r"the rows of .* would be deleted and not written again"
        ):
            beginning.start(Begin.FROM_START)
    else:
        assert beginning.start(Begin.FROM_START) == {"orders": {0: 0}}


@pytest.mark.parametrize("begin", [Begin.NEW, Begin.FROM_START])
@pytest.mark.parametrize(
    ("chosen", "problem"),
    [
        ({0: 7}, None),
        ({0: 8}, "partition 0 of orders ends at offset 7, and 8 is beyond it"),
        ({0: 7, 1: 0}, "topic orders has no partition 1"),
    ],
)
def test_first_offset_that_no_record_can_have_is_refused_before_it_is_stored(
    begin: Begin, chosen: dict[int, int], problem: str | None
) -> None:
    """Spark would refuse it in each later run, although the file was corrected."""
    source = Source(bootstrap="b:1", topics=("orders",), start=Start(offsets={"orders": chosen}))
    table = MagicMock()
    table.exists.return_value = False
    beginning = Beginning(
        pipeline=attrs.evolve(PIPELINE, source=source),
        cluster=cast(Cluster, Brokers({"orders": "delete"})),
        topics=TOPICS,
        destinations=Destinations(table=table, dead_letters=None),
        stored=None,
        facts=Facts(cluster_id="cluster", topics={"orders": "id"}, table_id="table", owners={}),
        given_up=NOTHING,
    )
    if problem is None:
        assert beginning.start(begin) == {"orders": {0: 7}}
    else:
        with pytest.raises(Refusal, match=f"source.start: {problem}"):
            beginning.start(begin)


class Checkpoint(Files):
    def exists(self, name: str = "") -> bool:
        return name in self.texts


@pytest.mark.parametrize(
    ("error", "is_noted"),
    [(Failure("no broker"), True), (Held("process 7"), False), (Overtaken("another run"), False)],
)
def test_status_shows_no_problem_of_a_run_that_another_one_replaces(
    error: Exception, is_noted: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = Checkpoint()
    folder.write(FILE, IDENTITY.dump())
    monkeypatch.setattr(run_command, "Folder", lambda *_: folder)
    spark = cast(SparkSession, None)
    with pytest.raises(type(error)), run_command.noting(spark, PIPELINE, Control()):
        raise error
    assert (PROBLEMS in folder.texts) == is_noted


def test_status_of_a_pattern_goes_on_without_a_deleted_topic(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The identity has it until the next batch, which may be long after the deletion."""
    table, cluster = MagicMock(), MagicMock()
    table.size.return_value = Size(rows=1, files=1, bytes=1)
    cluster.existing.return_value = TOPICS
    cluster.topics.side_effect = Refusal("a topic of the pipeline does not exist")
    cluster.ends.side_effect = lambda topics: {each.name: {0: 9} for each in topics}
    state = State(
        identity=attrs.evolve(IDENTITY, topics={"orders": "id", "gone": "id of gone"}),
        position={"orders": {0: 4}, "gone": {0: 7}},
        batch_id=3,
        is_half_done=False,
        destinations=Destinations(table=table, dead_letters=None),
    )
    monkeypatch.setattr(status_command, "set_session", MagicMock())
    monkeypatch.setattr(status_command, "state_of", lambda *_: state)
    monkeypatch.setattr(Cluster, "of", lambda *_: nullcontext(cluster))
    status = status_command.read_status(MagicMock(), PIPELINE)
    assert (status.lag, status.ends) == (5, {"orders": {0: 9}})


@pytest.mark.parametrize(
    ("half_done", "topics", "words"),
    [
        (True, (), "has a batch that is half done"),
        (False, ("orders",), "has rows that a run with --from-start did not get to delete"),
        (False, (), None),
    ],
)
def test_commands_that_write_wait_for_what_a_run_has_left_undone(
    half_done: bool, topics: tuple[str, ...], words: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The next run would delete what they write as well."""
    state = State(
        identity=attrs.evolve(IDENTITY, pending_deletion=topics),
        position={},
        batch_id=3,
        is_half_done=half_done,
        destinations=Destinations(table=MagicMock(), dead_letters=None),
    )
    monkeypatch.setattr(offline, "state_of", lambda *_: state)
    monkeypatch.setattr(offline, "hold", lambda *_, **__: nullcontext("lease"))
    monkeypatch.setattr(offline, "Folder", MagicMock())
    block = offline.holding(MagicMock(), PIPELINE, lambda _: None)
    if words is None:
        with block as parts:
            assert parts[1] is state
    else:
        with pytest.raises(Refusal, match=words), block:
            pass


def test_missing_permission_to_write_dead_letters_is_not_retried() -> None:
    denied = (
        "Job aborted: org.apache.kafka.common.errors.TopicAuthorizationException: Not authorized"
    )
    problem = unsent("topic dead", PySparkException(message=denied))
    assert isinstance(problem, Refusal)
    assert str(problem).startswith("topic dead: dead letters cannot be written: the brokers deny")
    late = unsent("topic dead", PySparkException(message="TimeoutException: 1 record expired"))
    assert isinstance(late, Failure)
    assert str(late).endswith("cannot be written: Spark failed: TimeoutException: 1 record expired")
