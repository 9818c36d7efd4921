"""Look-ups for many topics: one request for all, and an error of one topic is not one of others."""

from collections.abc import Iterable
from typing import Any

import attrs
import pytest

from kwire_pipeline.engine.cluster import Cluster, Topic
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
        self._answer(list(described))
        return described

    def ends(self, topics: Iterable[Topic]) -> Offsets:
        ends = {topic.name: {0: 7} for topic in topics}
        self._answer(list(ends))
        return ends

    def _answer(self, names: list[str]) -> None:
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
    assert Brokers(error).known_ends(topics) == {"a": {0: 7}, "c": {0: 7}}
