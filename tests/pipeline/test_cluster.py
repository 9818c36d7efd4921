"""Look-ups for many topics: one request for all, and an error of one topic is not one of others."""

from collections.abc import Iterable
from typing import Any
from unittest.mock import MagicMock

import attrs
import pytest

from kwire_pipeline.broker import look_up
from kwire_pipeline.config.model import Pipeline, Source, Table
from kwire_pipeline.config.values import Isolation
from kwire_pipeline.engine.cluster import Cluster, Denied, Topic, topics_left, topics_of
from kwire_pipeline.engine.offsets import Offsets
from kwire_pipeline.errors import Failure, Refusal


@attrs.define
class Names:
    """The names of the topics, as Java's set of them."""

    names: list[str]

    def contains(self, name: str) -> bool:
        return name in self.names


class Brokers(Cluster):
    """Brokers with three topics, of which one can be broken."""

    def __init__(self, broken: Exception | None = None) -> None:
        self.broken = broken
        self.requests: list[list[str]] = []

    def _call(self, request: Any) -> Any:
        return Names(["a", "b", "c"])

    def topics(self, names: Iterable[str]) -> dict[str, Topic]:
        described = {name: Topic(name, f"id of {name}", (0,)) for name in names}
        self._describe(list(described))
        return described

    def _specs(self) -> Any:
        return MagicMock()

    def _parts(self, topics: Iterable[Topic]) -> dict[tuple[str, int], Any]:
        return {(topic.name, 0): topic.name for topic in topics}

    def _list_offsets(self, parts: Iterable[Any], spec: Any) -> Any:
        names = list(parts)
        self.requests.append(names)
        return names

    def _answers(self, request: Any, parts: Any) -> Offsets:
        return {name: {0: self._answer(request, name)} for name in request}

    def _answer(self, request: Any, part: Any) -> int:
        if self.broken is not None and part == "b":
            raise self.broken
        return 7

    def _describe(self, names: list[str]) -> None:
        self.requests.append(names)
        if self.broken is not None and "b" in names:
            raise self.broken


def test_all_topics_are_described_with_one_request() -> None:
    brokers = Brokers()
    topics = brokers.existing(["a", "b", "c", "absent"])
    assert list(topics) == ["a", "b", "c"]
    assert brokers.known_ends(topics.values()) == {name: {0: 7} for name in "abc"}
    assert len(brokers.requests) == 2


def test_topic_that_is_deleted_meanwhile_is_absent() -> None:
    brokers = Brokers(Refusal("a topic of the pipeline does not exist"))
    assert list(brokers.existing(["a", "b", "c"])) == ["a", "c"]


@pytest.mark.parametrize("error", [Failure("no leader"), Refusal("deleted")])
def test_topic_whose_leader_does_not_answer_has_no_end(error: Exception) -> None:
    topics = [Topic(name, f"id of {name}", (0,)) for name in "abc"]
    brokers = Brokers(error)
    assert brokers.known_ends(topics) == {"a": {0: 7}, "c": {0: 7}}
    assert brokers.requests == [["a", "b", "c"]]


@pytest.mark.parametrize(
    ("source", "error", "kind"),
    [
        (Source(bootstrap="b:1", pattern="orders.*"), Refusal("it does not exist"), Failure),
        (Source(bootstrap="b:1", pattern="orders.*"), Denied("no right"), Denied),
        (Source(bootstrap="b:1", topics=("orders",)), Refusal("it does not exist"), Refusal),
    ],
)
def test_topic_that_comes_or_goes_between_two_requests_is_looked_up_again(
    source: Source, error: Exception, kind: type[Exception]
) -> None:
    """A broker that has not heard of a new topic yet says that it does not exist."""
    cluster = MagicMock()
    cluster.matching.return_value = ["orders.new"]
    cluster.topics.side_effect = error
    table = Table(name="shop.orders")
    pipeline = Pipeline(name="orders", source=source, table=table, checkpoint="checkpoint")
    with pytest.raises(kind):
        topics_of(pipeline, cluster)


@pytest.mark.parametrize("isolation", Isolation)
def test_topic_ends_where_a_reader_with_the_isolation_of_the_file_ends(
    isolation: Isolation,
) -> None:
    """Otherwise a quiet topic with an open transaction would look as if it had lost records."""
    spark = MagicMock()
    java = spark.sparkContext._jvm.org.apache.kafka
    source = Source(bootstrap="b:1", topics=("orders",), isolation=isolation)
    table = Table(name="shop.orders")
    pipeline = Pipeline(name="orders", source=source, table=table, checkpoint="checkpoint")
    with Cluster.of(spark, pipeline) as cluster:
        cluster._answers = MagicMock()  # type: ignore[method-assign]
        cluster.ends([Topic("orders", "id", (0,))])
    level = getattr(java.common.IsolationLevel, isolation.value.upper())
    java.clients.admin.ListOffsetsOptions.assert_called_once_with(level)


def test_deleted_topic_is_left_out_of_a_report_if_the_pipeline_may_lack_it() -> None:
    """`status` would be refused until the next batch, which may be long after the deletion."""
    table = Table(name="shop.orders")
    source = Source(bootstrap="b:1", pattern=".*", fail_on_data_loss=False)
    lossy = Pipeline(name="orders", source=source, table=table, checkpoint="checkpoint")
    strict = attrs.evolve(lossy, source=attrs.evolve(source, fail_on_data_loss=True))
    assert list(topics_left(lossy, Brokers(), ["a", "gone"])) == ["a"]
    assert list(topics_left(strict, Brokers(), ["a", "gone"])) == ["a", "gone"]


def test_pattern_matches_no_internal_topic(monkeypatch: pytest.MonkeyPatch) -> None:
    """Spark does not read them, so `check` must not say that a run would."""
    answers = [
        {"name": name, "partitions": [0], "error_code": 0, "is_internal": name.startswith("__")}
        for name in ("__consumer_offsets", "orders")
    ]
    client = MagicMock()
    client.describe_topics.return_value = answers
    client.describe_cluster.return_value = {"cluster_id": "cluster"}
    monkeypatch.setattr("kafka.KafkaAdminClient", lambda **_: client)
    monkeypatch.setattr("kwire_pipeline.broker.connect", lambda *_: "b:1")
    assert look_up(Source(bootstrap="b:1", pattern=".*")).topics == {"orders": 1}
    named = Source(bootstrap="b:1", topics=("__consumer_offsets",))
    assert look_up(named).topics == {"__consumer_offsets": 1}
