"""Promises of a group to its members, each asserted on one shard."""

import pytest

from kwire.codec.messages.offset_commit import OffsetCommitResponse
from kwire.codec.messages.offset_delete import OffsetDeleteRequest
from kwire.errors import (
    FencedInstanceId,
    GroupSubscribedToTopic,
    IllegalGeneration,
    KafkaError,
    NonEmptyGroup,
    RebalanceInProgress,
    UnknownMemberId,
)
from kwire.group import requests
from kwire.group.model import State
from kwire.group.settings import GroupSettings
from tests.support.group.sim import Sim


def generation_of(sim: Sim, group: str = "g") -> int:
    return sim.groups.groups[group].generation


def refused(sim: Sim, ticket: int) -> type[KafkaError] | None:
    """Return the error that refuses a request; None if it is answered without an error."""
    try:
        reply = sim.reply(ticket)
    except KafkaError as error:
        return type(error)
    assert reply is not None, "it waits"
    if isinstance(reply, OffsetCommitResponse):
        assert not any(spot.error_code for topic in reply.topics for spot in topic.partitions)
    else:
        assert reply.error_code == 0
    return None


def rejoin(sim: Sim, ids: dict[str, str]) -> int:
    """Everyone joins again; the new generation."""
    tickets = [sim.join(name, member_id) for name, member_id in ids.items()]
    sim.settle()
    generations = {sim.reply(ticket).generation_id for ticket in tickets}
    (generation,) = generations
    assert isinstance(generation, int)
    return generation


def test_who_is_assigned_nothing_owns_nothing_of_the_generation_before() -> None:
    """Invariant 66: what a member owned passes to another one, never to both."""
    sim = Sim()
    ids = sim.steady("a", "b")
    assert sim.reply(sim.sync("a", ids["a"], generation_of(sim))).assignment == b"a"
    generation = rejoin(sim, ids)
    leader = next(name for name, member in ids.items() if member == sim.groups.groups["g"].leader)
    (other,) = set(ids) - {leader}
    waiting = sim.sync(other, ids[other], generation)
    everything = sim.sync(leader, ids[leader], generation, {ids[leader]: b"everything"})
    assert sim.reply(everything).assignment == b"everything"
    assert sim.reply(waiting).assignment == b""
    sim.restart()
    owned = [member.assignment for member in sim.groups.groups["g"].members_by_arrival()]
    assert sorted(owned) == [b"", b"everything"]


def test_assignments_of_an_old_generation_are_refused() -> None:
    """Invariant 66: the leader of generation 1 cannot give partitions away in generation 2."""
    sim = Sim()
    ids = sim.steady("a", "b")
    old = generation_of(sim)
    generation = rejoin(sim, ids)
    leader = next(name for name, member in ids.items() if member == sim.groups.groups["g"].leader)
    late = sim.sync(leader, ids[leader], old, {ids[leader]: b"everything"})
    assert refused(sim, late) is IllegalGeneration
    assert sim.groups.groups["g"].state is State.COMPLETING
    assert generation_of(sim) == generation


def test_abandoned_joins_leave_no_ghosts() -> None:
    """Invariant 67: ids that no client came back with, and joins that were given up."""
    sim = Sim()
    ids = sim.steady("a")
    for _ in range(50):
        reply = sim.reply(sim.join("gone"))
        assert reply.error_code == 79, "MEMBER_ID_REQUIRED"
    assert len(sim.groups.groups["g"].pending_join) == 50
    assert set(sim.groups.groups["g"].members) == {ids["a"]}
    for _ in range(4):
        sim.advance(3)
        assert refused(sim, sim.heartbeat("a", ids["a"], generation_of(sim))) is None
    assert not sim.groups.groups["g"].pending_join
    assert set(sim.groups.groups["g"].members) == {ids["a"]}
    assert sim.groups.groups["g"].state is State.STABLE


def test_ids_handed_out_are_bounded() -> None:
    """Invariant 67: clients that never come back with their ids cost a bounded amount of memory."""
    settings = GroupSettings(group_initial_rebalance_delay_ms=0, max_pending_members=3)
    sim = Sim(settings)
    codes = [sim.reply(sim.join(f"c{number}")).error_code for number in range(5)]
    assert codes == [79, 79, 79, 81, 81], "MEMBER_ID_REQUIRED, then GROUP_MAX_SIZE_REACHED"
    sim.advance(10.1)
    assert sim.reply(sim.join("later")).error_code == 79


def test_a_join_that_is_repeated_makes_one_member() -> None:
    """Invariant 67: answers are lost, the client asks again with its id."""
    sim = Sim()
    ids = sim.steady("a")
    fresh = sim.reply(sim.join("b")).member_id
    tickets = [sim.join("b", fresh) for _ in range(5)]
    assert set(sim.groups.groups["g"].members) == {ids["a"], fresh}
    last = sim.join("a", ids["a"])
    assert sim.reply(last).generation_id == generation_of(sim)
    for ticket in tickets[:-1]:
        assert sim.reply(ticket).error_code == RebalanceInProgress.code
    assert sim.reply(tickets[-1]).generation_id == generation_of(sim)


def static_pair(sim: Sim) -> tuple[str, str]:
    """A stable group of static members a and b; their member ids."""
    ids: list[str] = []
    for name in "ab":
        ticket = sim.join(name, instance=f"i-{name}")
        sim.settle()
        if ids:
            sim.join("a", ids[0], instance="i-a")
        ids.append(sim.reply(ticket).member_id)
    generation = generation_of(sim)
    sim.sync("b", ids[1], generation, instance="i-b")
    sim.sync("a", ids[0], generation, {ids[0]: b"A", ids[1]: b"B"}, instance="i-a")
    assert sim.groups.groups["g"].state is State.STABLE
    return ids[0], ids[1]


def test_a_static_member_that_returns_keeps_its_place_and_fences_its_double() -> None:
    """Invariant 68: no rebalance, the same assignment, and the older process is out."""
    sim = Sim()
    old, other = static_pair(sim)
    generation = generation_of(sim)
    reply = sim.reply(sim.join("a2", instance="i-a"))
    assert (reply.error_code, reply.generation_id) == (0, generation)
    assert reply.member_id != old
    synced = sim.reply(sim.sync("a2", reply.member_id, generation, instance="i-a"))
    assert synced.assignment == b"A"
    assert refused(sim, sim.heartbeat("b", other, generation, instance="i-b")) is None
    for ticket in (
        sim.heartbeat("a", old, generation, instance="i-a"),
        sim.sync("a", old, generation, instance="i-a"),
        sim.commit("a", {("t", 0): 1}, old, generation, instance="i-a"),
    ):
        assert refused(sim, ticket) is FencedInstanceId
    assert sim.fetched() == {}


def test_a_static_member_goes_only_by_timeout_or_administrator() -> None:
    """Invariant 68: it is away for less than its session, longer, and removed by name."""
    sim = Sim()
    static_pair(sim)
    sim.advance(9.9)
    assert set(sim.groups.groups["g"].instances) == {"i-a", "i-b"}
    sim.leave("admin", ("", "i-b"))
    assert set(sim.groups.groups["g"].instances) == {"i-a"}
    sim.advance(0.2)
    assert set(sim.groups.groups["g"].instances) == set()


@pytest.mark.parametrize("instance", [None, "i-a"])
def test_commits_of_old_generations_and_strangers_do_not_land(instance: str | None) -> None:
    """Invariant 69: neither of a member that was thrown out, nor of one that is behind."""
    sim = Sim()
    ids = sim.steady("a", "b")
    old = generation_of(sim)
    assert refused(sim, sim.commit("a", {("t", 0): 5}, ids["a"], old)) is None
    generation = rejoin(sim, ids)
    for number, member in enumerate(ids.values()):
        shares = dict.fromkeys(ids.values(), b"") if number == 0 else None
        sim.sync("x", member, generation, shares)
    assert sim.groups.groups["g"].state is State.STABLE
    late = sim.commit("a", {("t", 0): 1}, ids["a"], old, instance=instance)
    assert refused(sim, late) in (IllegalGeneration, UnknownMemberId)
    stranger = sim.commit("x", {("t", 0): 2}, "stranger", generation)
    assert refused(sim, stranger) is UnknownMemberId
    anonymous = sim.commit("x", {("t", 0): 3})
    assert refused(sim, anonymous) is UnknownMemberId
    sim.leave("a", (ids["a"], None))
    gone = sim.commit("a", {("t", 0): 4}, ids["a"], generation)
    assert refused(sim, gone) is UnknownMemberId
    assert sim.fetched() == {"t-0": 5}


def test_a_silent_member_is_out_after_its_session() -> None:
    """Invariant 71: not before, and those that remain rebalance."""
    sim = Sim()
    ids = sim.steady("a", "b")
    for _ in range(3):
        sim.advance(3)
        assert refused(sim, sim.heartbeat("a", ids["a"], generation_of(sim))) is None
    assert set(sim.groups.groups["g"].members) == set(ids.values())
    sim.advance(1.1)
    assert set(sim.groups.groups["g"].members) == {ids["a"]}
    beat = sim.reply(sim.heartbeat("a", ids["a"], generation_of(sim)))
    assert beat.error_code == RebalanceInProgress.code


def test_a_rebalance_waits_no_longer_than_its_timeout() -> None:
    """Invariant 71: a member that keeps its session alive but does not join again is left out."""
    sim = Sim()
    ids = sim.steady("a", "b")
    again = sim.join("a", ids["a"])
    for _ in range(20):
        assert sim.reply(again) is None
        sim.heartbeat("b", ids["b"], generation_of(sim))
        sim.advance(2.99)
    sim.advance(0.3)
    assert sim.reply(again).error_code == 0
    assert set(sim.groups.groups["g"].members) == {ids["a"]}


def test_a_rebalance_goes_on_when_the_member_it_waits_for_has_failed() -> None:
    """Invariant 70: after its session, not only after the rebalance timeout."""
    sim = Sim()
    ids = sim.steady("a", "b")
    again = sim.join("a", ids["a"])
    sim.advance(9.9)
    assert sim.reply(again) is None
    sim.advance(0.2)
    assert sim.reply(again).error_code == 0
    assert set(sim.groups.groups["g"].members) == {ids["a"]}


def test_who_does_not_fetch_its_assignment_in_time_is_out() -> None:
    """Invariant 71: the time to synchronise is the rebalance timeout, heartbeats or not."""
    sim = Sim()
    ids = sim.steady("a", "b")
    generation = rejoin(sim, ids)
    leader = sim.groups.groups["g"].leader
    (other,) = set(ids.values()) - {leader}
    waiting = sim.sync("other", other, generation)
    for _ in range(20):
        assert sim.reply(waiting) is None
        sim.heartbeat("leader", leader or "", generation)
        sim.advance(2.99)
    sim.advance(0.3)
    assert sim.reply(waiting).error_code == RebalanceInProgress.code
    assert set(sim.groups.groups["g"].members) == {other}


def test_no_group_grows_over_its_largest_size() -> None:
    """Invariant 71: also by ids that were handed out before it was full."""
    sim = Sim(GroupSettings(group_initial_rebalance_delay_ms=0, group_max_size=2))
    fresh = sim.reply(sim.join("c")).member_id
    ids = sim.steady("a", "b")
    for ticket in (sim.join("c", fresh), sim.join("d")):
        assert sim.reply(ticket).error_code == 81, "GROUP_MAX_SIZE_REACHED"
    assert sim.groups.groups["g"].state is State.STABLE
    assert set(sim.groups.groups["g"].members) == set(ids.values())


def test_offsets_expire_only_where_nobody_uses_them() -> None:
    """Invariant 73: a subscribed topic's stay, a left topic's go, an empty group's go later."""
    minutes = 60
    sim = Sim(GroupSettings(group_initial_rebalance_delay_ms=0, offsets_retention_minutes=minutes))
    ids = sim.steady("a")
    sim.commit("a", {("t", 0): 5, ("left", 0): 6}, ids["a"], generation_of(sim))
    sim.commit("simple", {("t", 0): 7}, group="other")

    def live(seconds: int) -> None:
        for _ in range(seconds // 5):
            sim.advance(5)
            assert refused(sim, sim.heartbeat("a", ids["a"], generation_of(sim))) is None

    live(minutes * 60 - 10)
    assert sim.fetched() == {"t-0": 5, "left-0": 6}
    assert sim.fetched("other") == {"t-0": 7}
    live(700)
    assert sim.fetched() == {"t-0": 5}
    assert sim.fetched("other") == {}
    live(86_400)
    assert sim.fetched() == {"t-0": 5}
    sim.leave("a", (ids["a"], None))
    sim.advance(minutes * 60 - 10)
    assert sim.fetched() == {"t-0": 5}
    sim.advance(700)
    assert sim.fetched() == {}
    sim.restart()
    assert not sim.groups.groups, "a restart brings nothing back"


def test_groups_and_offsets_in_use_cannot_be_deleted() -> None:
    """Invariant 76: neither the group, nor what it reads, nor may others commit for it."""
    sim = Sim()
    ids = sim.steady("a")
    sim.commit("a", {("t", 0): 5, ("u", 0): 6}, ids["a"], generation_of(sim))
    topic = OffsetDeleteRequest.OffsetDeleteRequestTopic
    spot = topic.OffsetDeleteRequestPartition(partition_index=0)
    request = OffsetDeleteRequest(
        group_id="g", topics=[topic(name=name, partitions=[spot]) for name in "tu"]
    )

    def delete_group() -> int:
        ticket = sim.ask("admin", lambda shard, *when: requests.delete_group(shard, "g", *when))
        try:
            assert sim.reply(ticket) is True
        except KafkaError as error:
            return error.code
        return 0

    reply = sim.reply(
        sim.ask("admin", lambda shard, *when: requests.delete_offsets(shard, request, *when))
    )
    codes = {t.name: t.partitions[0].error_code for t in reply.topics}
    assert codes == {"t": GroupSubscribedToTopic.code, "u": 0}
    assert delete_group() == NonEmptyGroup.code
    assert refused(sim, sim.commit("admin", {("t", 0): 0})) is UnknownMemberId
    assert sim.fetched() == {"t-0": 5}
    sim.leave("a", (ids["a"], None))
    assert refused(sim, sim.commit("admin", {("t", 0): 0})) is None
    assert sim.fetched() == {"t-0": 0}
    assert delete_group() == 0
    assert sim.fetched() == {}
    assert not sim.groups.groups
