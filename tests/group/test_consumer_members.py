"""Members of consumer groups (KIP-848): epochs, reconciliation, fencing, static members.

They show invariant 74, and for these groups 66, 68, 69, 71, 72, 73 and 76.
"""

from collections.abc import Iterator
from typing import Any

import pytest

from kwire.codec.messages.consumer_group_heartbeat import ConsumerGroupHeartbeatRequest
from kwire.codec.messages.offset_commit import OffsetCommitRequest
from kwire.configs.broker import BrokerConfig
from kwire.coordinator.decision import Moment, Step
from kwire.errors import (
    FencedInstanceId,
    FencedMemberEpoch,
    GroupIdNotFound,
    GroupMaxSizeReached,
    KafkaError,
    NonEmptyGroup,
    StaleMemberEpoch,
    UnknownMemberId,
    UnreleasedInstanceId,
)
from kwire.group import requests
from kwire.group.consumer import requests as consumer_requests
from kwire.group.consumer.model import (
    ClassicMember,
    ConsumerGroup,
    ConsumerMember,
    MemberState,
)
from kwire.group.consumer.settings import ConsumerSettings
from kwire.group.decision_builder import Client
from kwire.group.kind_settings import KindSettings
from kwire.replica.transaction_ports import TransactionMarker
from tests.support.group.sim import Sim
from tests.support.group.topics import topic_id


@pytest.fixture
def sim() -> Sim:
    sim = Sim()
    sim.topics.put("t", 4)
    return sim


def group(sim: Sim) -> ConsumerGroup:
    group = sim.groups.consumer_group("g")
    assert group is not None
    return group


def owners(sim: Sim) -> dict[str, list[int]]:
    """Return the partitions of ``t`` that each member owns, also those it has to give up."""
    return {
        member.member_id: sorted(
            [*member.assigned.get(topic_id("t"), ()), *member.revoking.get(topic_id("t"), ())]
        )
        for member in group(sim).members.values()
    }


def join_two(sim: Sim) -> None:
    """Have members a and b join, each with half of the partitions."""
    assert sim.consume("a") == (2, {"t": [0, 1, 2, 3]})
    assert sim.consume("b") == (3, {})
    assert sim.consume("a", 2, owned={"t": [0, 1, 2, 3]}) == (2, {"t": [0, 1]})
    assert sim.consume("a", 2, owned={"t": [0, 1]}) == (3, None)
    assert sim.consume("b", 3, owned={}) == (3, {"t": [2, 3]})


def test_second_member_gets_partitions_only_after_the_first_has_revoked_them(sim: Sim) -> None:
    assert sim.consume("a") == (2, {"t": [0, 1, 2, 3]})
    assert group(sim).state.value == "Stable"
    assert sim.consume("b") == (3, {})
    assert group(sim).members["b"].state == MemberState.UNRELEASED
    assert group(sim).state.value == "Reconciling"
    assert sim.consume("b", 3, owned={}) == (3, None)
    assert sim.consume("a", 2, owned={"t": [0, 1, 2, 3]}) == (2, {"t": [0, 1]})
    assert group(sim).members["a"].state == MemberState.UNREVOKED
    assert sim.consume("b", 3, owned={}) == (3, None)
    assert owners(sim) == {"a": [0, 1, 2, 3], "b": []}
    assert sim.consume("a", 2, owned={"t": [0, 1]}) == (3, None)
    assert sim.consume("b", 3, owned={}) == (3, {"t": [2, 3]})
    assert owners(sim) == {"a": [0, 1], "b": [2, 3]}
    assert group(sim).state.value == "Stable"


def test_heartbeat_without_owned_partitions_does_not_confirm_a_revocation(sim: Sim) -> None:
    sim.consume("a")
    sim.consume("b")
    assert sim.consume("a", 2) == (2, {"t": [0, 1]})
    assert sim.consume("a", 2) == (2, None)
    assert owners(sim)["a"] == [0, 1, 2, 3]


def test_member_that_leaves_gives_its_partitions_to_the_others(sim: Sim) -> None:
    join_two(sim)
    assert sim.consume("b", -1).epoch == -1
    assert sim.consume("a", 3, owned={"t": [0, 1]}) == (4, {"t": [0, 1, 2, 3]})
    sim.consume("a", -1)
    assert group(sim).state.value == "Empty"
    assert group(sim).epoch == 5


def test_silent_member_is_fenced_after_its_session_timeout(sim: Sim) -> None:
    join_two(sim)
    sim.advance(44)
    sim.consume("a", 3, owned={"t": [0, 1]})
    sim.advance(2)
    with pytest.raises(UnknownMemberId):
        sim.consume("b", 3, owned={"t": [2, 3]})
    assert sim.consume("a", 3, owned={"t": [0, 1]}) == (4, {"t": [0, 1, 2, 3]})


def test_member_that_does_not_revoke_in_time_is_fenced(sim: Sim) -> None:
    sim.consume("a", rebalance_timeout_ms=10_000)
    sim.consume("b")
    sim.consume("a", 2, owned={"t": [0, 1, 2, 3]})
    sim.advance(9)
    sim.consume("a", 2, owned={"t": [0, 1, 2, 3]})
    sim.advance(2)
    with pytest.raises(UnknownMemberId):
        sim.consume("a", 2, owned={"t": [0, 1]})
    assert sim.consume("b", 3, owned={}) == (4, {"t": [0, 1, 2, 3]})


def test_member_that_has_revoked_is_not_fenced_later(sim: Sim) -> None:
    sim.consume("a", rebalance_timeout_ms=10_000)
    sim.consume("b")
    sim.consume("a", 2, owned={"t": [0, 1, 2, 3]})
    sim.consume("a", 2, owned={"t": [0, 1]})
    sim.advance(20)
    assert sim.consume("a", 3, owned={"t": [0, 1]}) == (3, None)


def test_epochs_other_than_the_present_and_the_previous_are_fenced(sim: Sim) -> None:
    join_two(sim)
    with pytest.raises(FencedMemberEpoch, match="greater member epoch"):
        sim.consume("a", 4, owned={"t": [0, 1]})
    assert sim.consume("a", 2, owned={"t": [0]}) == (3, None)
    with pytest.raises(FencedMemberEpoch, match="smaller member epoch"):
        sim.consume("a", 2, owned={"t": [0, 3]})
    with pytest.raises(FencedMemberEpoch):
        sim.consume("a", 2)


def test_fenced_member_rejoins_with_epoch_0_and_keeps_its_assignment(sim: Sim) -> None:
    join_two(sim)
    assert sim.consume("a") == (3, {"t": [0, 1]})


def test_unknown_members_and_groups_are_rejected(sim: Sim) -> None:
    with pytest.raises(GroupIdNotFound, match="Consumer group g not found"):
        sim.consume("a", 2, owned={})
    with pytest.raises(GroupIdNotFound):
        sim.consume("a", -1)
    sim.consume("a")
    with pytest.raises(UnknownMemberId):
        sim.consume("b", 2, owned={})


def test_full_group_rejects_another_member(sim: Sim) -> None:
    sim.consumer_settings = ConsumerSettings(max_size=1)
    sim.consume("a")
    with pytest.raises(GroupMaxSizeReached):
        sim.consume("b")
    assert sim.consume("a", 2, owned={"t": [0, 1, 2, 3]}).epoch == 2


def test_static_member_returns_with_another_id_and_keeps_its_partitions(sim: Sim) -> None:
    sim.consume("a", instance_id="i")
    sim.consume("b", instance_id="j")
    sim.consume("a", 2, owned={"t": [0, 1]}, instance_id="i")
    assert sim.consume("b", 3, owned={}, instance_id="j") == (3, {"t": [2, 3]})
    with pytest.raises(UnreleasedInstanceId):
        sim.consume("c", instance_id="j")
    assert sim.consume("b", -2, instance_id="j").epoch == -2
    assert sim.consume("a", 3, owned={"t": [0, 1]}, instance_id="i") == (3, None)
    assert sim.consume("c", instance_id="j") == (3, {"t": [2, 3]})
    with pytest.raises(FencedInstanceId):
        sim.consume("b", 3, owned={}, instance_id="j")
    assert group(sim).epoch == 3


def test_static_member_that_does_not_return_is_fenced(sim: Sim) -> None:
    sim.consume("a", instance_id="i")
    sim.consume("a", -2, instance_id="i")
    sim.advance(46)
    assert group(sim).state.value == "Empty"


def test_partitions_of_a_static_member_that_is_away_go_to_nobody(sim: Sim) -> None:
    sim.consume("a", instance_id="i")
    sim.consume("a", -2, instance_id="i")
    assert sim.consume("b") == (3, {})
    assert sim.consume("b", 3, owned={}) == (3, None)
    sim.advance(44)
    sim.consume("b", 3, owned={})
    sim.advance(2)
    assert sim.consume("b", 3, owned={}) == (4, {"t": [0, 1, 2, 3]})


def test_epoch_before_the_previous_one_is_fenced(sim: Sim) -> None:
    join_two(sim)
    sim.consume("b", -1)
    assert sim.consume("a", 3, owned={"t": [0, 1]}).epoch == 4
    assert sim.consume("a", 3, owned={"t": [0, 1]}).epoch == 4
    with pytest.raises(FencedMemberEpoch):
        sim.consume("a", 2, owned={"t": [0, 1]})


def test_more_partitions_and_new_topics_are_assigned(sim: Sim) -> None:
    assert sim.consume("a", topics=["t", "u"]) == (2, {"t": [0, 1, 2, 3]})
    sim.topics.put("u", 1)
    assert sim.consume("a", 2).epoch == 3
    assert sim.consume("a", 3, owned={}) == (3, None)
    sim.topics.put("t", 5)
    assert sim.consume("a", 3) == (4, {"t": [0, 1, 2, 3, 4], "u": [0]})
    sim.topics.delete("u")
    assert sim.consume("a", 4) == (4, {"t": [0, 1, 2, 3, 4]})
    assert sim.consume("a", 4, owned={"t": [0, 1, 2, 3, 4]}) == (5, None)


def test_change_of_other_topics_does_not_bump_the_epoch(sim: Sim) -> None:
    sim.consume("a")
    sim.topics.put("other", 1)
    assert sim.consume("a", 2) == (2, None)
    assert group(sim).epoch == 2


def test_member_that_changes_its_subscription_gives_up_the_former_topic(sim: Sim) -> None:
    sim.topics.put("u", 1)
    sim.consume("a")
    owned = {"t": [0, 1, 2, 3]}
    assert sim.consume("a", 2, topics=["u"], owned=owned, rebalance_timeout_ms=1) == (2, {})
    assert sim.consume("a", 2, owned={}) == (3, {"u": [0]})


def test_assignments_are_computed_at_most_once_in_the_interval(sim: Sim) -> None:
    sim.consumer_settings = ConsumerSettings(assignment_interval_ms=1_000)
    sim.consume("a")
    assert sim.consume("b") == (2, {})
    assert group(sim).state.value == "Assigning"
    assert sim.consume("a", 2, owned={"t": [0, 1, 2, 3]}).epoch == 2
    sim.advance(1.1)
    assert sim.consume("a", 2, owned={"t": [0, 1, 2, 3]}) == (2, {"t": [0, 1]})


def commit_request(
    member_id: str, epoch: int, partition: int = 0, topic: str = "t"
) -> OffsetCommitRequest:
    shape = OffsetCommitRequest.OffsetCommitRequestTopic
    return OffsetCommitRequest(
        group_id="g",
        member_id=member_id,
        generation_id_or_member_epoch=epoch,
        topics=[
            shape(
                name=topic,
                topic_id=topic_id(topic),
                partitions=[
                    shape.OffsetCommitRequestPartition(
                        partition_index=partition, committed_offset=7, committed_metadata=""
                    )
                ],
            )
        ],
    )


def test_commit_from_an_older_epoch_counts_only_for_partitions_kept_since(sim: Sim) -> None:
    """A commit that is on its way while the epoch grows is not lost (KIP-1251)."""
    join_two(sim)

    def commit(member_id: str, epoch: int, partition: int = 0) -> None:
        sim.reply(
            sim.send(
                member_id,
                lambda shard, *when: requests.commit(
                    shard, commit_request(member_id, epoch, partition), *when
                ),
            )
        )

    commit("a", 3)
    commit("a", 2)
    with pytest.raises(StaleMemberEpoch):
        commit("a", 4)
    with pytest.raises(StaleMemberEpoch):
        commit("a", 2, partition=3)
    with pytest.raises(StaleMemberEpoch):
        commit("b", 2, partition=3)
    with pytest.raises(UnknownMemberId):
        commit("c", 3)
    with pytest.raises(UnknownMemberId):
        commit("", -1)
    sim.consume("a", -1)
    sim.consume("b", -1)
    commit("", -1)


def fetch_error(sim: Sim, member_id: str | None, epoch: int) -> type[KafkaError] | None:
    try:
        requests.read_offsets(
            sim.groups, "g", None, require_stable=False, member_id=member_id, member_epoch=epoch
        )
    except KafkaError as error:
        return type(error)
    return None


def test_member_fetches_offsets_only_in_its_epoch(sim: Sim) -> None:
    sim.consume("a")
    assert fetch_error(sim, None, -1) is None
    assert fetch_error(sim, "a", 2) is None
    assert fetch_error(sim, "a", 3) is StaleMemberEpoch
    assert fetch_error(sim, "b", 2) is UnknownMemberId


def state_of(group: ConsumerGroup) -> tuple[object, ...]:
    return (
        group.epoch,
        group.assignment_epoch,
        group.assignment_ms,
        group.metadata_hash,
        group.members,
        group.target,
        group.owner_epochs,
        group.by_name,
        group.stable_counts,
        group.state,
    )


@pytest.mark.parametrize(
    "change",
    [
        {"topics": frozenset({"u"})},
        {"regex": "t.*"},
        {"assignor": "range"},
        {"classic": ClassicMember(1000, (("uniform", b""),))},
        {"epoch": 3, "state": MemberState.UNREVOKED},
    ],
)
def test_group_counts_what_its_members_want_now(change: dict[str, Any]) -> None:
    """A member that was changed counts as if it had joined as it is now."""
    member = ConsumerMember("a", epoch=2, topics=frozenset({"t"}), regex="u", assignor="uniform")
    changed, joined = ConsumerGroup("g"), ConsumerGroup("g")
    changed.apply_member(member)
    changed.apply_member(member._replace(**change))
    joined.apply_member(member._replace(**change))
    assert counters(changed) == counters(joined)
    changed.apply_removal("a")
    assert counters(changed) == counters(ConsumerGroup("g"))


def test_assignors_that_equally_many_members_prefer_rank_as_in_kafka(sim: Sim) -> None:
    """The next coordinator reads the members in another order than the one in which they joined."""
    sim.consume("a", server_assignor="range")
    sim.consume("b", server_assignor="uniform")
    described, _ = consumer_requests.describe(sim.groups, "g")
    assert described.assignor_name == "uniform"


def test_an_assignor_that_one_member_introduces_wins_a_tie_at_once(sim: Sim) -> None:
    """Kafka uses range if one member prefers uniform and another one brings range along."""
    sim.consume("b", server_assignor="uniform")
    sim.consume("a", server_assignor="range")
    assert group(sim).target["a"] == {topic_id("t"): {0, 1}}


def counters(group: ConsumerGroup) -> dict[str, object]:
    names = (
        "by_name",
        "regex_members",
        "assignors",
        "classic_count",
        "classic_protocols",
        "stable_counts",
    )
    return {name: getattr(group, name) for name in names}


def test_heartbeat_that_causes_no_long_work_wakes_no_task_for_it(sim: Sim) -> None:
    """The task that takes steps would otherwise run for each member of each rebalance."""
    join_two(sim)
    request = ConsumerGroupHeartbeatRequest(group_id="g", member_id="a", member_epoch=3)
    request.subscribed_topic_names = ["t", "u"]
    decision = consumer_requests.heartbeat(sim.groups, request, Client(), sim.moment, 99)
    assert decision.records
    assert not decision.steps


def test_settings_of_a_group_follow_those_of_the_broker() -> None:
    config = BrokerConfig({})
    overrides = {"h": {"consumer.heartbeat.interval.ms": "7000"}}
    kinds = KindSettings(lambda: config, lambda group_id: overrides.get(group_id, {}))

    def intervals() -> list[int]:
        return [kinds.consumer(group_id).heartbeat_interval_ms for group_id in "ghg"]

    assert intervals() == [5000, 7000, 5000]
    config = BrokerConfig({"group.consumer.heartbeat.interval.ms": "6000"})
    assert intervals() == [6000, 7000, 6000]
    overrides["g"] = {"consumer.heartbeat.interval.ms": "8000"}
    assert intervals() == [8000, 7000, 8000]


def test_replayed_group_equals_the_live_group(sim: Sim) -> None:
    join_two(sim)
    sim.consume("c", instance_id="i")
    sim.consume("a", 3, owned={"t": [0, 1]})
    sim.consume("c", -2, instance_id="i")
    replayed = sim.replay().machine.consumer_group("g")
    assert replayed is not None
    assert state_of(replayed) == state_of(group(sim))


def test_member_that_rejoined_frees_nothing_of_its_successor_in_a_load(sim: Sim) -> None:
    """The replay applies what "a" owned at first, but not its removal, as "a" has rejoined."""
    assert sim.consume("a") == (2, {"t": [0, 1, 2, 3]})
    # A replay applies what it has read before it goes on with a batch such as this one.
    partition = sim.shard.partition
    marker = TransactionMarker(
        producer_id=1, producer_epoch=0, commit=True, coordinator_epoch=0, partitions=[partition]
    )
    sim.log.append_marker(partition, marker)
    sim.consume("a", -1)
    assert sim.consume("b") == (4, {"t": [0, 1, 2, 3]})
    assert sim.consume("a") == (5, {})
    assert sim.consume("a", 5, owned={}) == (5, None)
    sim.restart()
    assert sim.consume("a", 5, owned={}) == (5, None)
    assert owners(sim) == {"a": [], "b": [0, 1, 2, 3]}


def test_loaded_members_have_sessions_and_rebalance_timeouts(sim: Sim) -> None:
    sim.consume("a", rebalance_timeout_ms=10_000)
    sim.consume("b")
    sim.consume("a", 2, owned={"t": [0, 1, 2, 3]})
    sim.restart()
    sim.advance(11)
    assert list(group(sim).members) == ["b"]
    sim.advance(45)
    assert group(sim).state.value == "Empty"


def test_empty_group_is_deleted_with_its_offsets(sim: Sim) -> None:
    sim.consume("a")
    with pytest.raises(NonEmptyGroup):
        requests.delete_group(sim.groups, "g", Moment(0, 0), 0)
    sim.consume("a", -1)
    sim.commit("c", {("t", 0): 5})
    sim.send("x", lambda shard, *when: requests.delete_group(shard, "g", *when))
    assert sim.groups.consumer_group("g") is None
    assert "g" not in sim.groups.groups
    assert sim.replay().machine.consumer_group("g") is None


def test_empty_classic_group_becomes_a_consumer_group_and_keeps_its_offsets(sim: Sim) -> None:
    sim.commit("c", {("t", 0): 5})
    assert sim.consume("a") == (2, {"t": [0, 1, 2, 3]})
    assert "g" not in sim.groups.groups
    assert sim.fetch_offsets() == {"t-0": 5}
    assert "g" not in sim.replay().machine.groups


def test_offsets_expire_only_for_topics_that_the_group_does_not_read(sim: Sim) -> None:
    sim.topics.put("u", 1)
    sim.consume("a")
    for topic in ("t", "u"):
        sim.send(
            "a",
            lambda shard, *when, topic=topic: requests.commit(
                shard, commit_request("a", 2, topic=topic), *when
            ),
        )
    for _ in range(8 * 24 * 120):
        sim.consume("a", 2)
        sim.advance(30)
    assert sim.fetch_offsets() == {"t-0": 7}
    sim.consume("a", -1)
    sim.advance(8 * 24 * 3600)
    assert sim.groups.consumer_group("g") is None


def test_large_group_is_assigned_after_its_members_have_joined(sim: Sim) -> None:
    """A target of many partitions is computed in steps; until then, the last target stands.

    The first join of a group has no such target, so it waits.
    """
    sim.topics.put("t", 3_000)
    tickets = [sim.beat(m, topics=["t"], owned={}, rebalance_timeout_ms=1) for m in ("a", "b")]
    first, second = (sim.reply(ticket) for ticket in tickets)
    assert first.member_epoch == 2
    assert len(first.assignment.topic_partitions[0].partitions) == 3_000
    assert second.member_epoch == 2
    assert group(sim).assignment_epoch == 3
    assert sim.consume("b", 2, owned={}) == (3, None)
    replayed = sim.replay().machine.consumer_group("g")
    assert replayed is not None
    assert {m: len(target[topic_id("t")]) for m, target in replayed.target.items()} == {
        "a": 1_500,
        "b": 1_500,
    }


def begin_large_target(sim: Sim, monkeypatch: pytest.MonkeyPatch) -> Iterator[Step]:
    """Have a member c join a large group; return the steps after the first ones of its target."""
    monkeypatch.setattr("kwire.group.kind_tables._STEPS_AT_ONCE", 1)
    request = ConsumerGroupHeartbeatRequest(
        group_id="g",
        member_id="c",
        member_epoch=0,
        subscribed_topic_names=["t"],
        topic_partitions=[],
        rebalance_timeout_ms=1,
    )
    decision = consumer_requests.heartbeat(sim.groups, request, Client(), sim.moment, 99)
    sim.shard.perform(decision, sim.log, sim.moment.wall_ms)
    steps = iter(decision.steps)
    for _ in range(3):
        sim.perform(next(steps)(sim.moment))
    return steps


def test_static_member_that_joins_a_large_group_gets_its_first_target(sim: Sim) -> None:
    sim.topics.put("t", 3_000)
    reply = sim.reply(
        sim.beat("a", topics=["t"], owned={}, rebalance_timeout_ms=1, instance_id="i")
    )
    assert (reply.error_code, reply.member_epoch) == (0, 2)
    assert len(reply.assignment.topic_partitions[0].partitions) == 3_000
    assert group(sim).instances == {"i": "a"}
    with pytest.raises(UnreleasedInstanceId):
        sim.consume("b", instance_id="i")


def test_static_member_that_returns_while_a_large_target_is_computed_gets_its_share(
    sim: Sim, monkeypatch: pytest.MonkeyPatch
) -> None:
    sim.topics.put("t", 3_000)
    sim.consume("a")
    sim.consume("b", instance_id="i")
    steps = begin_large_target(sim, monkeypatch)
    sim.consume("b", -2, instance_id="i")
    sim.consume("d", instance_id="i")
    for step in steps:
        sim.perform(step(sim.moment))
    assert group(sim).target.keys() == {"a", "c", "d"}
    sim.consume("c", group(sim).members["c"].epoch, owned={})
    targets = [target[topic_id("t")] for target in group(sim).target.values()]
    assert [len(each) for each in targets] == [1_000] * 3
    assert frozenset().union(*targets) == frozenset(range(3_000))


def test_large_target_leaves_out_members_that_left_while_it_was_computed(
    sim: Sim, monkeypatch: pytest.MonkeyPatch
) -> None:
    sim.topics.put("t", 3_000)
    for member_id in ("a", "b"):
        sim.consume(member_id)
    steps = begin_large_target(sim, monkeypatch)
    sim.consume("b", -1)
    for step in steps:
        sim.perform(step(sim.moment))
    assert group(sim).target.keys() == {"a", "c"}
    assert (group(sim).epoch, group(sim).assignment_epoch) == (5, 4)
    replayed = sim.replay().machine.consumer_group("g")
    assert replayed is not None
    assert state_of(replayed) == state_of(group(sim))
