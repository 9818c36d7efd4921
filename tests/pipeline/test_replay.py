"""Dead letters become rows only if a run would accept them as rows."""

from collections.abc import Collection
from contextlib import closing
from typing import Any

import attrs
import pytest
from pyspark.sql import SparkSession

from kwire_pipeline.commands.replay import Later, check_rows
from kwire_pipeline.config.values import Action, Format
from kwire_pipeline.engine.cluster import Cluster, Topic
from kwire_pipeline.engine.offsets import Offsets
from kwire_pipeline.engine.schema import parse_ddl
from kwire_pipeline.errors import Refusal
from kwire_pipeline.records.frames import Shape, classify
from tests.support.pipeline.frames import topic
from tests.support.pipeline.many import place
from tests.support.pipeline.orders import ORDERS


def test_letters_that_an_expectation_with_fail_rejects_are_not_moved(spark: SparkSession) -> None:
    """A letter that stays a letter is not judged; without such an expectation, none is."""
    values = [b'{"id": 1}', b'{"id": -1}', b'{"id": -9}', b"{"]
    for action, others in ((Action.FAIL, "id > -5"), (Action.WARN, "true")):
        shape = Shape(
            format=Format.JSON,
            schema=parse_ddl("id BIGINT", "value.schema"),
            expectations={"positive": ("id > 0", action), "near": (others, Action.DEAD_LETTER)},
        )
        batch = classify(topic(spark, [*values]), shape)
        if action is Action.FAIL:
            with pytest.raises(Refusal, match="1 rows do not meet the expectation positive"):
                check_rows(batch, shape)
        else:
            check_rows(batch, shape)


@attrs.frozen
class Brokers:
    """The brokers of one topic, which has the id of its latest creation."""

    topic_id: str

    def topics(self, names: Collection[str]) -> dict[str, Topic]:
        return {name: Topic(name, self.topic_id, (0,)) for name in names}

    def cluster_id(self) -> str:
        return "c"

    def beginnings(self, topics: Collection[Topic]) -> Offsets:
        return {topic.name: {0: 0} for topic in topics}

    def topic_settings(self, names: Collection[str], key: str) -> dict[str, str]:
        return {}

    def close(self) -> None:
        pass


@pytest.mark.parametrize(
    ("topic_id", "reason"),
    [("other", "was deleted and recreated"), ("id of t", "the right DescribeConfigs")],
)
def test_later_changes_are_those_of_the_same_topic_with_all_its_records(
    topic_id: str, reason: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Cluster, "of", lambda *_: closing(Brokers(topic_id)))
    unused: Any = None
    state: Any = place("t", 9)
    with pytest.raises(Refusal, match=reason):
        Later(unused, ORDERS, state, unused)({"t": {0: 3}})
