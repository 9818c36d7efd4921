"""Requests about a group of another kind get the same errors, word for word, from both brokers.

`group_kinds.txt` has the answers of Apache Kafka 4.3.1, one a line: the request, the kind of the
group, the error with its message.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from compat_tests.across.group_kinds import Groups, list_kinds
from compat_tests.confluent_kafka.clients import create

ANSWERS = Path(__file__).with_name("group_kinds.txt").read_text().splitlines()
FOUND = {
    "classic": ("Stable", "consumer", "classic"),
    "consumer": ("Stable", "consumer", "consumer"),
    "share": ("Stable", "share", "share"),
    "streams": ("Assigning", "streams", "streams"),
}


@pytest.fixture
def groups(broker, topic, unique) -> Iterator[Groups]:
    create(broker.address, topic, 1)
    groups = Groups(broker.address, topic, unique("kinds"))
    groups.begin()
    yield groups
    groups.close()


def test_groups_of_each_kind_are_listed_and_refuse_requests_of_others(groups):
    assert list_kinds(groups) == FOUND
    for kind, group in FOUND.items():
        assert list_kinds(groups, types_filter=[kind.capitalize()]) == {kind: group}
    assert list_kinds(groups, types_filter=["nonsense"]) == {}
    assert list_kinds(groups, states_filter=["assigning"]) == {"streams": FOUND["streams"]}
    assert list_kinds(groups, states_filter=["Empty"]) == {}
    answers = [" | ".join(row) for row in groups.answers()]
    assert answers == ANSWERS
