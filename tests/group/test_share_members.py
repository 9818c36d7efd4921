"""Members of share groups (KIP-932): epochs, assignments, fencing, and what is initialized when.

They show invariants 71, 74 and 76 for these groups.
"""

import pytest

from kwire.errors import (
    FencedMemberEpoch,
    GroupIdNotFound,
    GroupMaxSizeReached,
    NonEmptyGroup,
    UnknownMemberId,
)
from kwire.group import requests as group_requests
from kwire.group.share import requests
from kwire.group.share.settings import ShareSettings
from tests.support.group.share import Shared, beat, finish, group, share
from tests.support.group.sim import Sim
from tests.support.group.topics import topic_id


@pytest.fixture
def sim() -> Sim:
    sim = Sim()
    sim.topics.put("t", 2)
    return sim


def test_member_is_assigned_partitions_once_their_state_is_initialized(sim: Sim) -> None:
    response, work = beat(sim, "a")
    assert response == Shared(2, {})
    assert work is not None
    assert (work.epoch, work.numbers) == (2, {topic_id("t"): frozenset({0, 1})})
    assert beat(sim, "a", 2) == (Shared(2, None), None)
    finish(sim, work)
    assert beat(sim, "a", 2) == (Shared(3, {"t": [0, 1]}), None)
    assert beat(sim, "a", 3) == (Shared(3, None), None)


def test_initialization_that_got_lost_is_repeated_after_the_retry_interval(sim: Sim) -> None:
    assert beat(sim, "a")[1] is not None
    sim.advance(29)
    assert beat(sim, "a", 2)[1] is None
    sim.advance(1)
    assert beat(sim, "a", 2)[1] is not None


def test_initialization_is_repeated_by_the_next_coordinator(sim: Sim) -> None:
    assert beat(sim, "a")[1] is not None
    sim.restart()
    assert beat(sim, "a", 2)[1] is not None


def test_initialization_that_failed_is_repeated_with_the_next_heartbeat(sim: Sim) -> None:
    _, work = beat(sim, "a")
    assert work is not None
    sim.send(
        "persister",
        lambda shard, *when: requests.give_up_initialization(shard, "g", work.numbers, *when),
    )
    assert beat(sim, "a", 2)[1] is not None


def test_members_share_a_partition_if_there_are_more_members(sim: Sim) -> None:
    share(sim, "a")
    assert share(sim, "a", 2) == (3, {"t": [0, 1]})
    for number, member in enumerate("bcd"):
        assert share(sim, member).epoch == 4 + number
    assigned = {member: share(sim, member, 0).assigned for member in "abcd"}
    counts = [list(each.values()) for each in assigned.values() if each is not None]
    assert sorted(counts) == [[[0]], [[0]], [[1]], [[1]]]


def test_member_gives_up_partitions_with_the_next_heartbeat(sim: Sim) -> None:
    share(sim, "a")
    share(sim, "a", 2)
    (number,) = (share(sim, "b").assigned or {})["t"]
    assert share(sim, "a", 3) == (4, {"t": [1 - number]})


def test_new_partitions_of_a_topic_are_initialized_and_assigned(sim: Sim) -> None:
    share(sim, "a")
    share(sim, "a", 2)
    sim.topics.put("t", 3)
    response, work = beat(sim, "a", 3)
    assert response == Shared(4, None)
    assert work is not None
    assert work.numbers == {topic_id("t"): frozenset({2})}
    finish(sim, work)
    assert share(sim, "a", 4) == (5, {"t": [0, 1, 2]})


def test_deleted_topic_leaves_the_group_and_is_initialized_again_if_recreated(sim: Sim) -> None:
    share(sim, "a")
    share(sim, "a", 2)
    sim.topics.delete("t")
    for step in sim.groups.remove_deleted_topics({topic_id("t"): "t"}):
        sim.perform(step(sim.moment))
    partitions = group(sim).partitions
    assert partitions is not None
    assert partitions.initialized == {}
    assert share(sim, "a", 3) == (4, {})
    sim.topics.ids["t"] = b"recreated".ljust(16)
    sim.topics.put("t", 1)
    _, work = beat(sim, "a", 4)
    assert work is not None
    assert work.numbers == {b"recreated".ljust(16): frozenset({0})}
    finish(sim, work)
    assert share(sim, "a", 5) == (6, {"t": [0]})


def test_topic_deleted_before_the_load_leaves_the_group(sim: Sim) -> None:
    """A topic of the same name has a new id; the epoch would grow with each heartbeat otherwise."""
    share(sim, "a")
    assert share(sim, "a", 2) == (3, {"t": [0, 1]})
    sim.topics.delete("t")
    sim.restart()
    partitions = group(sim).partitions
    assert partitions is not None
    assert partitions.initialized == {}
    sim.topics.ids["t"] = b"recreated".ljust(16)
    sim.topics.put("t", 1)
    assert share(sim, "a", 3) == (4, {})
    assert share(sim, "a", 4) == (5, {"t": [0]})
    assert share(sim, "a", 5) == (5, None)


def test_target_is_computed_at_most_once_in_the_assignment_interval(sim: Sim) -> None:
    sim.share_settings = ShareSettings(assignment_interval_ms=1_000)
    share(sim, "a")
    assert share(sim, "a", 2) == (2, None)
    assert group(sim).epoch == 3
    sim.advance(1)
    assert share(sim, "a", 2) == (3, {"t": [0, 1]})


def test_silent_member_is_fenced_and_its_partitions_are_assigned_to_others(sim: Sim) -> None:
    share(sim, "a")
    share(sim, "b")
    sim.advance(44)
    share(sim, "b", 3)
    sim.advance(1)
    assert list(group(sim).members) == ["b"]
    assert share(sim, "b", 0).assigned == {"t": [0, 1]}
    with pytest.raises(UnknownMemberId, match="Member a is not a member of group g"):
        share(sim, "a", 2)


def test_members_have_a_session_after_a_load(sim: Sim) -> None:
    share(sim, "a")
    sim.restart()
    sim.advance(44)
    assert list(group(sim).members) == ["a"]
    sim.advance(1)
    assert not group(sim).members


def test_replayed_group_equals_the_live_one(sim: Sim) -> None:
    sim.topics.put("u", 3)
    for member, topics in (("a", ["t", "u"]), ("b", ["u"]), ("c", ["t"])):
        share(sim, member, topics=topics)
        share(sim, "a", topics=["t", "u"])
    live = group(sim)
    replayed = sim.replay().machine.share_group("g")
    assert replayed is not None
    for name in ("members", "target", "partitions", "by_name", "epoch", "assignment_epoch"):
        assert getattr(replayed, name) == getattr(live, name), name


def test_leaving_member_bumps_the_group_epoch(sim: Sim) -> None:
    share(sim, "a")
    share(sim, "b")
    assert beat(sim, "a", -1) == (Shared(-1, None), None)
    assert group(sim).epoch == 4
    assert list(group(sim).members) == ["b"]


def test_epochs_other_than_the_present_and_the_previous_are_fenced(sim: Sim) -> None:
    share(sim, "a")
    share(sim, "a", 2)
    assert share(sim, "a", 2).epoch == 3
    sim.topics.put("t", 3)
    share(sim, "a", 3)
    with pytest.raises(FencedMemberEpoch, match=r"smaller member epoch \(2\).*member epoch \(3\)"):
        share(sim, "a", 2)
    with pytest.raises(FencedMemberEpoch, match=r"greater member epoch \(9\)"):
        share(sim, "a", 9)


def test_full_group_takes_no_further_member(sim: Sim) -> None:
    sim.share_settings = ShareSettings(max_size=1, assignment_interval_ms=0)
    share(sim, "a")
    with pytest.raises(GroupMaxSizeReached, match="maximum capacity of 1 members"):
        share(sim, "b")
    assert share(sim, "a", 0).epoch == 3


def test_group_of_another_kind_cannot_be_joined(sim: Sim) -> None:
    sim.consume("m", group="consumers")
    with pytest.raises(GroupIdNotFound, match="Group consumers is not a share group"):
        beat(sim, "a", group="consumers")
    share(sim, "a")
    assert sim.reply(sim.join("c")).error_code == 23
    with pytest.raises(GroupIdNotFound, match="Group g is not a consumer group"):
        sim.consume("m")
    with pytest.raises(GroupIdNotFound):
        sim.reply(sim.commit("c", {("t", 0): 5}))
    with pytest.raises(GroupIdNotFound, match="Group g is not a classic group"):
        group_requests.describe(sim.groups, "g")


def test_member_of_an_unknown_group_has_to_join(sim: Sim) -> None:
    with pytest.raises(GroupIdNotFound, match="Share group g not found"):
        share(sim, "a", 1)
    with pytest.raises(GroupIdNotFound, match="Group g not found"):
        share(sim, "a", -1)


def test_share_groups_are_listed_by_type_and_state(sim: Sim) -> None:
    share(sim, "a")
    sim.consume("m", group="consumers")

    def list_groups(states: list[str], kinds: list[str]) -> list[tuple[str, str, str, str]]:
        groups = group_requests.list_groups(sim.groups, states, kinds)
        return [group_requests.listing_of(each) for each in groups]

    assert list_groups([], ["Share"]) == [("g", "share", "Stable", "share")]
    assert list_groups(["empty"], ["share"]) == []
    assert len(list_groups([], [])) == 2
    share(sim, "a", -1)
    assert list_groups(["empty"], ["share"]) == [("g", "share", "Empty", "share")]


def test_group_with_members_cannot_be_deleted(sim: Sim) -> None:
    share(sim, "a")

    def delete() -> object:
        return sim.reply(
            sim.send("c", lambda shard, *when: group_requests.delete_group(shard, "g", *when))
        )

    with pytest.raises(NonEmptyGroup):
        delete()
    share(sim, "a", -1)
    assert delete() is True
    assert sim.groups.share_group("g") is None
    assert sim.replay().machine.share_group("g") is None


def test_large_target_is_computed_in_steps(sim: Sim) -> None:
    """The member follows the last target until the new one is installed."""
    sim.topics.put("t", 2_000)
    share(sim, "a")
    assert share(sim, "a", 2) == (2, None)
    assert group(sim).assignment_epoch == 3
    assert share(sim, "a", 2) == (3, {"t": list(range(2_000))})
    replayed = sim.replay().machine.share_group("g")
    assert replayed is not None
    assert replayed.target == group(sim).target


def test_group_with_committed_offsets_does_not_become_a_share_group(sim: Sim) -> None:
    sim.reply(sim.commit("c", {("t", 0): 5}))
    with pytest.raises(GroupIdNotFound, match="Group g is not a share group"):
        share(sim, "a")
