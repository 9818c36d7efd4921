"""The guarantees of a group to its members, each asserted on one shard."""

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
from kwire.group.classic import WAITING_JOINS_MAX
from kwire.group.model import ClassicGroupState
from kwire.group.settings import GroupSettings
from tests.support.group.sim import Sim


def generation_of(sim: Sim, group: str = "g") -> int:
    return sim.groups.groups[group].generation


def error_of(sim: Sim, ticket: int) -> type[KafkaError] | None:
    """Return the error that refuses a request; None if it is answered without an error."""
    try:
        reply = sim.reply(ticket)
    except KafkaError as error:
        return type(error)
    assert reply is not None, "the request is not answered"
    if isinstance(reply, OffsetCommitResponse):
        assert not any(p.error_code for topic in reply.topics for p in topic.partitions)
    else:
        assert reply.error_code == 0
    return None


def rejoin(sim: Sim, ids: dict[str, str]) -> int:
    """Let every member join again; return the new generation."""
    tickets = [sim.join(name, member_id) for name, member_id in ids.items()]
    sim.fire_due()
    generations = {sim.reply(ticket).generation_id for ticket in tickets}
    (generation,) = generations
    assert isinstance(generation, int)
    return generation


def test_member_that_is_assigned_nothing_loses_its_previous_assignment() -> None:
    """Invariant 66: a partition that passes to another member has one owner all the time."""
    sim = Sim()
    ids = sim.form_group("a", "b")
    assert sim.reply(sim.sync("a", ids["a"], generation_of(sim))).assignment == b"a"
    generation = rejoin(sim, ids)
    leader = next(name for name, member in ids.items() if member == sim.groups.groups["g"].leader)
    (other,) = set(ids) - {leader}
    follower_sync = sim.sync(other, ids[other], generation)
    leader_sync = sim.sync(leader, ids[leader], generation, {ids[leader]: b"everything"})
    assert sim.reply(leader_sync).assignment == b"everything"
    assert sim.reply(follower_sync).assignment == b""
    sim.restart()
    assignments = [m.assignment for m in sim.groups.groups["g"].members_by_arrival()]
    assert sorted(assignments) == [b"", b"everything"]


def test_assignments_of_an_old_generation_are_refused() -> None:
    """Invariant 66: the leader of generation 1 cannot assign partitions in generation 2."""
    sim = Sim()
    ids = sim.form_group("a", "b")
    old = generation_of(sim)
    generation = rejoin(sim, ids)
    leader = next(name for name, member in ids.items() if member == sim.groups.groups["g"].leader)
    late = sim.sync(leader, ids[leader], old, {ids[leader]: b"everything"})
    assert error_of(sim, late) is IllegalGeneration
    assert sim.groups.groups["g"].state is ClassicGroupState.COMPLETING
    assert generation_of(sim) == generation


def test_member_ids_that_no_client_uses_expire() -> None:
    """Invariant 67: clients that got an id and never joined with it leave no member."""
    sim = Sim()
    ids = sim.form_group("a")
    for _ in range(50):
        reply = sim.reply(sim.join("lost"))
        assert reply.error_code == 79, "MEMBER_ID_REQUIRED"
    assert len(sim.groups.groups["g"].pending_join) == 50
    assert set(sim.groups.groups["g"].members) == {ids["a"]}
    for _ in range(4):
        sim.advance(3)
        assert error_of(sim, sim.heartbeat("a", ids["a"], generation_of(sim))) is None
    assert not sim.groups.groups["g"].pending_join
    assert set(sim.groups.groups["g"].members) == {ids["a"]}
    assert sim.groups.groups["g"].state is ClassicGroupState.STABLE


def test_lost_member_does_not_end_the_wait_for_the_first_members() -> None:
    """Only time ends the initial delay, as in Kafka: a member may still be on its way."""
    sim = Sim(GroupSettings(group_initial_rebalance_delay_ms=380_000))
    waits = []
    for name in "ab":
        member_id = sim.reply(sim.join(name)).member_id
        waits.append(sim.join(name, member_id, rebalance_ms=380_000))
        sim.advance(100)
    sim.advance(150)
    assert sim.reply(waits[0]).error_code == UnknownMemberId.code, "its session took five minutes"
    assert sim.reply(waits[1]) is None
    member_id = sim.reply(sim.join("c")).member_id
    waits.append(sim.join("c", member_id))
    sim.advance(30)
    assert {sim.reply(wait).generation_id for wait in waits[1:]} == {1}


def test_unused_member_id_does_not_end_the_wait_for_the_first_members() -> None:
    """Invariant 67: clients that start one after the other get one generation, as in Kafka."""
    sim = Sim(GroupSettings(group_initial_rebalance_delay_ms=5_000))
    assert sim.reply(sim.join("lost", session_ms=6_000)).error_code == 79, "MEMBER_ID_REQUIRED"
    waits = []
    for name in "ab":
        member_id = sim.reply(sim.join(name)).member_id
        waits.append(sim.join(name, member_id))
        sim.advance(4)
    assert [sim.reply(wait) for wait in waits] == [None, None]
    sim.advance(2)
    assert [sim.reply(wait).generation_id for wait in waits] == [1, 1]


def test_number_of_unused_member_ids_is_limited() -> None:
    """Invariant 67: clients that never join with their ids cost a bounded amount of memory."""
    settings = GroupSettings(group_initial_rebalance_delay_ms=0, max_pending_members=3)
    sim = Sim(settings)
    codes = [sim.reply(sim.join(f"c{number}")).error_code for number in range(5)]
    assert codes == [79, 79, 79, 81, 81], "MEMBER_ID_REQUIRED, then GROUP_MAX_SIZE_REACHED"
    sim.advance(10.1)
    assert sim.reply(sim.join("later")).error_code == 79


def test_repeated_join_makes_one_member() -> None:
    """Invariant 67: answers are lost, and the client repeats its request with its id.

    After a broken connection an earlier request may arrive last, so the client waits for the answer
    to any of them. librdkafka reports a JoinGroup that fails to the application.
    """
    sim = Sim()
    ids = sim.form_group("a")
    new_id = sim.reply(sim.join("b")).member_id
    tickets = [sim.join("b", new_id) for _ in range(WAITING_JOINS_MAX + 2)]
    assert set(sim.groups.groups["g"].members) == {ids["a"], new_id}
    last = sim.join("a", ids["a"])
    assert sim.reply(last).generation_id == generation_of(sim)
    for ticket in tickets[:2]:
        assert sim.reply(ticket).error_code == RebalanceInProgress.code
    replies = [sim.reply(ticket) for ticket in tickets[2:]]
    assert all(reply.error_code == 0 for reply in replies)
    assert all(reply.generation_id == generation_of(sim) for reply in replies)
    assert len({id(reply) for reply in replies}) == len(replies), "a version may change its own"
    for _ in range(2):
        again = [sim.join("b", new_id) for _ in range(2)]
        sim.join("a", ids["a"])
        assert all(sim.reply(ticket).generation_id == generation_of(sim) for ticket in again)


def test_all_joins_of_a_member_that_is_removed_are_answered() -> None:
    sim = Sim()
    ids = sim.form_group("a")
    new_id = sim.reply(sim.join("b")).member_id
    tickets = [sim.join("b", new_id) for _ in range(3)]
    sim.leave("b", (new_id, None))
    for ticket in tickets:
        assert sim.reply(ticket).error_code == UnknownMemberId.code
    assert set(sim.groups.groups["g"].members) == {ids["a"]}


def form_static_group(sim: Sim) -> tuple[str, str]:
    """Make a stable group of static members a and b; return their member ids."""
    ids: list[str] = []
    for name in "ab":
        ticket = sim.join(name, instance=f"i-{name}")
        sim.fire_due()
        if ids:
            sim.join("a", ids[0], instance="i-a")
        ids.append(sim.reply(ticket).member_id)
    generation = generation_of(sim)
    sim.sync("b", ids[1], generation, instance="i-b")
    sim.sync("a", ids[0], generation, {ids[0]: b"A", ids[1]: b"B"}, instance="i-a")
    assert sim.groups.groups["g"].state is ClassicGroupState.STABLE
    return ids[0], ids[1]


def test_returning_static_member_keeps_assignment_and_fences_older_process() -> None:
    """Invariant 68: no rebalance, the same assignment, and errors for the older process."""
    sim = Sim()
    old, other = form_static_group(sim)
    generation = generation_of(sim)
    reply = sim.reply(sim.join("a2", instance="i-a"))
    assert (reply.error_code, reply.generation_id) == (0, generation)
    assert reply.member_id != old
    sync_reply = sim.reply(sim.sync("a2", reply.member_id, generation, instance="i-a"))
    assert sync_reply.assignment == b"A"
    assert error_of(sim, sim.heartbeat("b", other, generation, instance="i-b")) is None
    for ticket in (
        sim.heartbeat("a", old, generation, instance="i-a"),
        sim.sync("a", old, generation, instance="i-a"),
        sim.commit("a", {("t", 0): 1}, old, generation, instance="i-a"),
    ):
        assert error_of(sim, ticket) is FencedInstanceId
    assert sim.fetch_offsets() == {}


def test_static_member_that_restarts_in_its_first_rebalance_waits_for_its_end() -> None:
    """Invariant 68: its session timeout does not end its wait for members that are slow to rejoin.

    Apache Kafka's ``replaceStaticMember`` makes a member that is not new.
    """
    sim = Sim()
    ids = sim.form_group("a")
    generation = generation_of(sim)
    sim.join("b", instance="i-b")
    restarted = sim.join("b2", instance="i-b")
    for _ in range(6):
        sim.advance(3)
        heartbeat = sim.reply(sim.heartbeat("a", ids["a"], generation))
        assert heartbeat.error_code == RebalanceInProgress.code
    assert sim.reply(restarted) is None
    sim.join("a", ids["a"])
    reply = sim.reply(restarted)
    assert (reply.error_code, reply.generation_id) == (0, generation + 1)


def test_static_member_is_removed_only_by_timeout_or_administrator() -> None:
    """Invariant 68: it stays while it is away for less than its session timeout."""
    sim = Sim()
    form_static_group(sim)
    sim.advance(9.9)
    assert set(sim.groups.groups["g"].instances) == {"i-a", "i-b"}
    sim.leave("admin", ("", "i-b"))
    assert set(sim.groups.groups["g"].instances) == {"i-a"}
    sim.advance(0.2)
    assert set(sim.groups.groups["g"].instances) == set()


@pytest.mark.parametrize("instance", [None, "i-a"])
def test_commits_of_old_generations_and_strangers_are_refused(instance: str | None) -> None:
    """Invariant 69: neither a removed member nor one of an older generation may commit."""
    sim = Sim()
    ids = sim.form_group("a", "b")
    old = generation_of(sim)
    assert error_of(sim, sim.commit("a", {("t", 0): 5}, ids["a"], old)) is None
    generation = rejoin(sim, ids)
    for number, member in enumerate(ids.values()):
        assignments = dict.fromkeys(ids.values(), b"") if number == 0 else None
        sim.sync("x", member, generation, assignments)
    assert sim.groups.groups["g"].state is ClassicGroupState.STABLE
    late = sim.commit("a", {("t", 0): 1}, ids["a"], old, instance=instance)
    assert error_of(sim, late) in (IllegalGeneration, UnknownMemberId)
    stranger = sim.commit("x", {("t", 0): 2}, "stranger", generation)
    assert error_of(sim, stranger) is UnknownMemberId
    anonymous = sim.commit("x", {("t", 0): 3})
    assert error_of(sim, anonymous) is UnknownMemberId
    sim.leave("a", (ids["a"], None))
    after_leave = sim.commit("a", {("t", 0): 4}, ids["a"], generation)
    assert error_of(sim, after_leave) is UnknownMemberId
    assert sim.fetch_offsets() == {"t-0": 5}


def test_member_without_heartbeats_is_removed_after_its_session_timeout() -> None:
    """Invariant 71: not before it, and the remaining members rebalance."""
    sim = Sim()
    ids = sim.form_group("a", "b")
    for _ in range(3):
        sim.advance(3)
        assert error_of(sim, sim.heartbeat("a", ids["a"], generation_of(sim))) is None
    assert set(sim.groups.groups["g"].members) == set(ids.values())
    sim.advance(1.1)
    assert set(sim.groups.groups["g"].members) == {ids["a"]}
    heartbeat = sim.heartbeat("a", ids["a"], generation_of(sim))
    assert sim.reply(heartbeat).error_code == RebalanceInProgress.code


def test_rebalance_ends_at_its_timeout_without_members_that_did_not_rejoin() -> None:
    """Invariant 71: a member that sends heartbeats but does not join again is removed."""
    sim = Sim()
    ids = sim.form_group("a", "b")
    ticket = sim.join("a", ids["a"])
    for _ in range(20):
        assert sim.reply(ticket) is None
        sim.heartbeat("b", ids["b"], generation_of(sim))
        sim.advance(2.99)
    sim.advance(0.3)
    assert sim.reply(ticket).error_code == 0
    assert set(sim.groups.groups["g"].members) == {ids["a"]}


def test_rebalance_completes_when_the_session_of_the_missing_member_ends() -> None:
    """Invariant 70: before the rebalance timeout, which is longer than the session timeout."""
    sim = Sim()
    ids = sim.form_group("a", "b")
    ticket = sim.join("a", ids["a"])
    sim.advance(9.9)
    assert sim.reply(ticket) is None
    sim.advance(0.2)
    assert sim.reply(ticket).error_code == 0
    assert set(sim.groups.groups["g"].members) == {ids["a"]}


def test_member_that_sends_no_sync_in_time_is_removed() -> None:
    """Invariant 71: it has the rebalance timeout for it, also if it sends heartbeats."""
    sim = Sim()
    ids = sim.form_group("a", "b")
    generation = rejoin(sim, ids)
    leader = sim.groups.groups["g"].leader
    (other,) = set(ids.values()) - {leader}
    ticket = sim.sync("other", other, generation)
    for _ in range(20):
        assert sim.reply(ticket) is None
        sim.heartbeat("leader", leader or "", generation)
        sim.advance(2.99)
    sim.advance(0.3)
    assert sim.reply(ticket).error_code == RebalanceInProgress.code
    assert set(sim.groups.groups["g"].members) == {other}


def test_group_never_exceeds_its_maximum_size() -> None:
    """Invariant 71: not even with a member id that was handed out before the group was full."""
    sim = Sim(GroupSettings(group_initial_rebalance_delay_ms=0, group_max_size=2))
    new_id = sim.reply(sim.join("c")).member_id
    ids = sim.form_group("a", "b")
    for ticket in (sim.join("c", new_id), sim.join("d")):
        assert sim.reply(ticket).error_code == 81, "GROUP_MAX_SIZE_REACHED"
    assert sim.groups.groups["g"].state is ClassicGroupState.STABLE
    assert set(sim.groups.groups["g"].members) == set(ids.values())


def test_offsets_expire_only_where_they_are_not_in_use() -> None:
    """Invariant 73: in use are the topics that a member subscribes to."""
    minutes = 60
    sim = Sim(GroupSettings(group_initial_rebalance_delay_ms=0, offsets_retention_minutes=minutes))
    ids = sim.form_group("a")
    sim.commit("a", {("t", 0): 5, ("unread", 0): 6}, ids["a"], generation_of(sim))
    sim.commit("simple", {("t", 0): 7}, group="other")

    def keep_alive(seconds: int) -> None:
        for _ in range(seconds // 5):
            sim.advance(5)
            assert error_of(sim, sim.heartbeat("a", ids["a"], generation_of(sim))) is None

    keep_alive(minutes * 60 - 10)
    assert sim.fetch_offsets() == {"t-0": 5, "unread-0": 6}
    assert sim.fetch_offsets("other") == {"t-0": 7}
    keep_alive(700)
    assert sim.fetch_offsets() == {"t-0": 5}
    assert sim.fetch_offsets("other") == {}
    keep_alive(86_400)
    assert sim.fetch_offsets() == {"t-0": 5}
    sim.leave("a", (ids["a"], None))
    sim.advance(minutes * 60 - 10)
    assert sim.fetch_offsets() == {"t-0": 5}
    sim.advance(700)
    assert sim.fetch_offsets() == {}
    sim.restart()
    assert not sim.groups.groups, "a restart brings nothing back"


def test_groups_and_offsets_in_use_cannot_be_deleted() -> None:
    """Invariant 76: nor may a client that is no member commit for the group."""
    sim = Sim()
    ids = sim.form_group("a")
    sim.commit("a", {("t", 0): 5, ("u", 0): 6}, ids["a"], generation_of(sim))
    topic = OffsetDeleteRequest.OffsetDeleteRequestTopic
    partition = topic.OffsetDeleteRequestPartition(partition_index=0)
    request = OffsetDeleteRequest(
        group_id="g", topics=[topic(name=name, partitions=[partition]) for name in "tu"]
    )

    def delete_group() -> int:
        ticket = sim.send("admin", lambda shard, *when: requests.delete_group(shard, "g", *when))
        try:
            assert sim.reply(ticket) is True
        except KafkaError as error:
            return error.code
        return 0

    reply = sim.reply(
        sim.send("admin", lambda shard, *when: requests.delete_offsets(shard, request, *when))
    )
    codes = {t.name: t.partitions[0].error_code for t in reply.topics}
    assert codes == {"t": GroupSubscribedToTopic.code, "u": 0}
    assert delete_group() == NonEmptyGroup.code
    assert error_of(sim, sim.commit("admin", {("t", 0): 0})) is UnknownMemberId
    assert sim.fetch_offsets() == {"t-0": 5}
    sim.leave("a", (ids["a"], None))
    assert error_of(sim, sim.commit("admin", {("t", 0): 0})) is None
    assert sim.fetch_offsets() == {"t-0": 0}
    assert delete_group() == 0
    assert sim.fetch_offsets() == {}
    assert not sim.groups.groups
