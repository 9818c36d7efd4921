"""Consumers that subscribe by a regular expression, which the coordinator resolves.

They show invariant 74.
"""

import sys

import pytest

from kwire.errors import InvalidRegularExpression
from kwire.group.consumer.model import ConsumerGroup, MemberState
from tests.support.group.sim import Consumed, Sim


@pytest.fixture
def sim() -> Sim:
    sim = Sim()
    for name in ("tea", "tin", "cup"):
        sim.topics.put(name, 2)
    return sim


def group(sim: Sim) -> ConsumerGroup:
    group = sim.groups.consumer_group("g")
    assert group is not None
    return group


def join(sim: Sim, member_id: str, regex: str) -> Consumed:
    return sim.consume(member_id, topics=None, subscribed_topic_regex=regex)


def test_member_gets_the_topics_that_match_once_they_are_resolved(sim: Sim) -> None:
    assert join(sim, "a", "t.*") == (1, {})
    assert group(sim).regexes["t.*"].topics == {"tea", "tin"}
    assert sim.consume("a", 1, owned={}) == (2, {"tea": [0, 1], "tin": [0, 1]})
    assert sim.consume("a", 2) == (2, None)


def test_member_without_topics_is_written_again_with_its_expression(sim: Sim) -> None:
    """Its previous epoch is its epoch then, as in Kafka."""
    sim.consume("a", topics=[])
    assert group(sim).members["a"].previous_epoch == 0
    sim.consume("a", 1, owned={}, topics=[], subscribed_topic_regex="t.*", rebalance_timeout_ms=9)
    member = group(sim).members["a"]
    assert (member.epoch, member.previous_epoch) == (1, 1)


def test_member_without_topics_has_nothing_to_give_up_for_its_expression(sim: Sim) -> None:
    """A client does not name its partitions again when only its subscription has changed."""
    sim.consume("a", topics=[])
    assert sim.consume("a", 1, topics=[], subscribed_topic_regex="t.*") == (1, None)
    assert group(sim).members["a"].state == MemberState.STABLE
    assert sim.consume("a", 1) == (2, {"tea": [0, 1], "tin": [0, 1]})


def test_member_whose_new_expression_matches_nothing_loses_its_partitions(sim: Sim) -> None:
    """No topic of the group has changed, but the other subscriber has to get them."""
    sim.consume("a", topics=["tea"])
    join(sim, "b", "te.*")
    join(sim, "b", "te.*")
    sim.consume("a", 2, owned={"tea": [0, 1]})
    assert sim.consume("a", 2, owned={"tea": [0]}) == (3, None)
    assert sim.consume("b", 3, owned={}) == (3, {"tea": [1]})
    sim.advance(11)
    assert sim.consume("b", 3, subscribed_topic_regex="z.*") == (3, {})
    assert sim.consume("b", 3, owned={}) == (4, None)
    assert sim.consume("a", 3) == (4, {"tea": [0, 1]})
    sim.advance(11)
    assert sim.consume("b", 4, subscribed_topic_regex="y.*") == (4, None)
    assert "y.*" in group(sim).regexes
    assert group(sim).epoch == 4


def test_whole_name_has_to_match(sim: Sim) -> None:
    join(sim, "a", "t")
    assert group(sim).regexes["t"].topics == set()


def test_second_member_of_an_expression_is_assigned_at_once(sim: Sim) -> None:
    join(sim, "a", "t.*")
    join(sim, "a", "t.*")
    assert join(sim, "b", "t.*") == (3, {})
    assert group(sim).target["b"]


@pytest.mark.parametrize("regex", ["(", "a{1001}", "(?=a)", r"(a)\1"])
def test_expressions_that_re2_rejects_are_refused(sim: Sim, regex: str) -> None:
    with pytest.raises(InvalidRegularExpression, match="is not a valid regular expression"):
        join(sim, "a", regex)
    assert sim.groups.consumer_group("g") is None


def test_error_names_the_package_that_is_missing(sim: Sim, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "re2", None)
    with pytest.raises(InvalidRegularExpression, match="google-re2"):
        join(sim, "a", "t.*")


def test_topics_that_the_client_may_not_see_do_not_match(sim: Sim) -> None:
    ticket = sim.beat(
        "a",
        subscribed_topic_regex="t.*",
        owned={},
        rebalance_timeout_ms=1,
        may_describe=lambda name: name != "tea",
    )
    assert sim.reply(ticket).member_epoch == 1
    assert group(sim).regexes["t.*"].topics == {"tin"}


def test_new_topics_are_matched_ten_seconds_after_the_last_time(sim: Sim) -> None:
    join(sim, "a", "t.*")
    join(sim, "a", "t.*")
    sim.topics.put("top", 1)
    sim.consume("a", 2)
    assert "top" not in group(sim).regexes["t.*"].topics
    sim.advance(11)
    sim.consume("a", 2)
    assert "top" in group(sim).regexes["t.*"].topics
    assert sim.consume("a", 2) == (3, {"tea": [0, 1], "tin": [0, 1], "top": [0]})
    sim.advance(11)
    sim.consume("a", 3)
    assert group(sim).epoch == 3


def test_expression_that_only_the_former_coordinator_could_compile_keeps_its_topics(
    sim: Sim, monkeypatch: pytest.MonkeyPatch
) -> None:
    join(sim, "a", "t.*")
    assert sim.consume("a", 1, owned={}) == (2, {"tea": [0, 1], "tin": [0, 1]})
    sim.restart()
    monkeypatch.setitem(sys.modules, "re2", None)
    sim.topics.put("toy", 1)
    sim.advance(11)
    assert sim.consume("a", 2) == (2, None)
    assert group(sim).regexes["t.*"].topics == {"tea", "tin"}
    assert group(sim).regexes["t.*"].version == sim.topics.offset
    assert sim.consume("a", 2) == (2, None)


def test_expression_without_members_is_removed(sim: Sim) -> None:
    join(sim, "a", "t.*")
    join(sim, "a", "t.*")
    join(sim, "b", "t.*")
    sim.consume("b", -1)
    assert "t.*" in group(sim).regexes
    owned = {"tea": [0, 1], "tin": [0, 1]}
    sim.consume("a", 2, topics=["cup"], subscribed_topic_regex="", owned=owned)
    assert not group(sim).regexes
    assert group(sim).topics == {"cup"}
    replayed = sim.replay().machine.consumer_group("g")
    assert replayed is not None
    assert (replayed.regexes, replayed.by_regex) == ({}, {})


def test_member_may_subscribe_to_names_and_an_expression(sim: Sim) -> None:
    sim.consume("a", topics=["cup"], subscribed_topic_regex="te.*")
    assert sim.consume("a", topics=["cup"], subscribed_topic_regex="te.*") == (
        3,
        {"cup": [0, 1], "tea": [0, 1]},
    )


def test_replayed_group_has_the_resolved_topics(sim: Sim) -> None:
    join(sim, "a", "t.*")
    join(sim, "a", "t.*")
    replayed = sim.replay().machine.consumer_group("g")
    assert replayed is not None
    assert replayed.regexes == group(sim).regexes
    assert replayed.topics == {"tea", "tin"}
    sim.restart()
    assert sim.consume("a", 2) == (2, None)
