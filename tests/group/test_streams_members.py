"""Members of streams groups (KIP-1071): epochs, tasks, fencing, statuses, offsets, deletion.

They show invariants 71, 74 and 76 for these groups.
"""

import pytest

from kwire.codec.messages.offset_delete import OffsetDeleteRequest
from kwire.codec.messages.streams_group_heartbeat import TopicInfo
from kwire.errors import (
    FencedMemberEpoch,
    GroupIdNotFound,
    GroupMaxSizeReached,
    GroupSubscribedToTopic,
    InconsistentGroupProtocol,
    InvalidRequest,
    NonEmptyGroup,
    StaleMemberEpoch,
    StreamsInvalidTopology,
    UnknownMemberId,
)
from kwire.group import requests as group_requests
from kwire.group.streams.configuration import StatusCode
from kwire.group.streams.model import StreamsGroupState
from kwire.group.streams.settings import StreamsSettings
from tests.support.group.sim import Sim
from tests.support.group.streams import (
    STATEFUL,
    STATELESS,
    Streamed,
    Subtopology,
    Topology,
    beat,
    group,
    stream,
)

QUICK = {"assignment_interval_ms": 0, "initial_rebalance_delay_ms": 0}


@pytest.fixture
def sim() -> Sim:
    sim = Sim()
    sim.topics.put("t", 4)
    return sim


def two_members(sim: Sim) -> None:
    """Have two members that share the four tasks, both in epoch 3."""
    stream(sim, "a")
    stream(sim, "b")
    stream(sim, "a", 2, active={"0": [0, 1, 2, 3]}, standby={})
    assert stream(sim, "a", 2, active={"0": [0, 1]}, standby={}).epoch == 3
    assert stream(sim, "b", 3).active == {"0": [2, 3]}


def test_first_member_gets_all_tasks(sim: Sim) -> None:
    assert stream(sim, "a") == Streamed(2, {"0": [0, 1, 2, 3]}, {}, [])
    assert stream(sim, "a", 2) == Streamed(2, None, None, [])
    assert group(sim).state is StreamsGroupState.STABLE


def test_task_moves_only_once_its_owner_has_given_it_up(sim: Sim) -> None:
    stream(sim, "a")
    assert stream(sim, "b") == Streamed(3, {}, {}, [])
    shrinking = stream(sim, "a", 2, active={"0": [0, 1, 2, 3]}, standby={})
    assert shrinking == Streamed(2, {"0": [0, 1]}, {}, [])
    assert stream(sim, "b", 3).active is None
    assert group(sim).state is StreamsGroupState.RECONCILING
    assert stream(sim, "a", 2, active={"0": [0, 1]}, standby={}).epoch == 3
    assert stream(sim, "b", 3) == Streamed(3, {"0": [2, 3]}, {}, [])
    assert group(sim).state is StreamsGroupState.STABLE


def test_tasks_of_a_member_that_left_go_to_the_others(sim: Sim) -> None:
    two_members(sim)
    stream(sim, "a", -1)
    assert stream(sim, "b", 3, active={"0": [2, 3]}, standby={}).active == {"0": [0, 1, 2, 3]}


def test_standby_tasks_are_on_another_process(sim: Sim) -> None:
    sim.topics.put("changelog", 4)
    sim.streams_settings = StreamsSettings(**QUICK, standby_count=1)
    stream(sim, "a", topology=STATEFUL, process="p")
    stream(sim, "b", topology=STATEFUL, process="q")
    stream(sim, "a", 2, active={"0": [0, 1]}, standby={})
    assert stream(sim, "b", 3).active is not None
    assert stream(sim, "a", 3).standby == {"0": [2, 3]}  # It had these tasks itself before.
    both = group(sim).members
    first, second = both["a"].assigned, both["b"].assigned
    assert set(first.active["0"]) | set(second.active["0"]) == {0, 1, 2, 3}
    assert not set(first.active["0"]) & set(second.active["0"])
    assert first.standby["0"] <= set(second.active["0"])
    assert second.standby["0"] <= set(first.active["0"])


def test_epoch_that_is_not_the_present_one_is_fenced(sim: Sim) -> None:
    two_members(sim)
    with pytest.raises(FencedMemberEpoch, match="greater"):
        beat(sim, "a", 4)
    with pytest.raises(FencedMemberEpoch, match="smaller"):
        beat(sim, "a", 1)
    with pytest.raises(FencedMemberEpoch, match="smaller"):
        beat(sim, "a", 2)  # It does not say what it has.
    with pytest.raises(FencedMemberEpoch, match="smaller"):
        beat(sim, "a", 2, active={"0": [0, 1, 2]}, standby={})
    assert stream(sim, "a", 2, active={"0": [0, 1]}, standby={}).epoch == 3
    with pytest.raises(UnknownMemberId):
        beat(sim, "stranger", 3)


def test_member_is_fenced_after_its_session(sim: Sim) -> None:
    two_members(sim)
    sim.advance(40)
    stream(sim, "a", 3)
    sim.advance(6)
    assert list(group(sim).members) == ["a"]
    with pytest.raises(UnknownMemberId):
        beat(sim, "b", 3)


def test_member_that_keeps_its_tasks_is_fenced_after_its_rebalance_timeout(sim: Sim) -> None:
    stream(sim, "a", rebalance_timeout_ms=10_000)
    stream(sim, "b")
    stream(sim, "a", 2, active={"0": [0, 1, 2, 3]}, standby={})
    sim.advance(9)
    stream(sim, "a", 2, active={"0": [0, 1, 2, 3]}, standby={})
    sim.advance(2)
    assert list(group(sim).members) == ["b"]


def test_deadlines_continue_after_a_load(sim: Sim) -> None:
    stream(sim, "a", rebalance_timeout_ms=10_000)
    stream(sim, "b")
    stream(sim, "a", 2, active={"0": [0, 1, 2, 3]}, standby={})
    sim.restart()
    sim.advance(11)
    assert list(group(sim).members) == ["b"]
    sim.advance(40)
    assert not group(sim).members


def test_first_assignment_waits_for_further_members(sim: Sim) -> None:
    sim.streams_settings = StreamsSettings(
        assignment_interval_ms=0, initial_rebalance_delay_ms=3000
    )
    delayed = [StatusCode.ASSIGNMENT_DELAYED]
    assert stream(sim, "a") == Streamed(1, {}, {}, delayed)
    sim.advance(2)
    assert stream(sim, "b") == Streamed(1, {}, {}, delayed)
    sim.advance(1)
    assert stream(sim, "a", 1) == Streamed(3, {"0": [0, 2]}, {}, [])
    assert stream(sim, "b", 1) == Streamed(3, {"0": [1, 3]}, {}, [])


def test_target_is_computed_at_most_once_in_the_assignment_interval(sim: Sim) -> None:
    sim.streams_settings = StreamsSettings(initial_rebalance_delay_ms=0)
    stream(sim, "a")
    assert stream(sim, "b").statuses == [StatusCode.ASSIGNMENT_DELAYED]
    assert group(sim).state is StreamsGroupState.ASSIGNING
    sim.advance(1)
    assert stream(sim, "b", 2).epoch == 3


def test_missing_source_topics_are_reported_until_they_exist(sim: Sim) -> None:
    sim.topics.delete("t")
    assert stream(sim, "a") == Streamed(2, {}, {}, [StatusCode.MISSING_SOURCE_TOPICS])
    assert group(sim).state is StreamsGroupState.NOT_READY
    sim.topics.put("t", 1)
    assert stream(sim, "a", 2) == Streamed(3, {"0": [0]}, {}, [])


def test_internal_topics_are_asked_for_until_they_exist(sim: Sim) -> None:
    beaten = beat(sim, "a", topology=STATEFUL)
    assert [topic[:3] for topic in beaten.missing] == [("changelog", 4, -1)]
    assert stream(sim, "a", 2).statuses == [StatusCode.MISSING_INTERNAL_TOPICS]
    sim.topics.put("changelog", 4)
    again = beat(sim, "a", 2)
    assert not again.missing
    assert again.response.active_tasks


def test_topic_that_grows_gets_further_tasks(sim: Sim) -> None:
    stream(sim, "a")
    sim.topics.put("t", 5)
    assert stream(sim, "a", 2).active == {"0": [0, 1, 2, 3, 4]}


def test_changed_count_of_standbys_causes_a_new_assignment(sim: Sim) -> None:
    stream(sim, "a")
    sim.streams_settings = StreamsSettings(**QUICK, standby_count=1)
    assert stream(sim, "a", 2).epoch == 3


def test_shutdown_is_asked_of_all_members_until_the_group_is_empty(sim: Sim) -> None:
    two_members(sim)
    stream(sim, "a", -1, shutdown_application=True)
    assert stream(sim, "b", 3).statuses == [StatusCode.SHUTDOWN_APPLICATION]
    stream(sim, "b", -1)
    assert stream(sim, "b").statuses == []


def test_topology_cannot_be_changed(sim: Sim) -> None:
    stream(sim, "a", topology=Topology(epoch=1, subtopologies=STATELESS.subtopologies))
    other = Topology(epoch=1, subtopologies=[Subtopology(subtopology_id="0", source_topics=["u"])])
    with pytest.raises(InvalidRequest, match="not supported"):
        beat(sim, "b", topology=other)
    assert stream(sim, "b").statuses == [StatusCode.STALE_TOPOLOGY]


def test_tasks_that_do_not_exist_are_refused(sim: Sim) -> None:
    stream(sim, "a")
    with pytest.raises(InvalidRequest, match="does not exist"):
        beat(sim, "a", 2, active={"1": [0]}, standby={})
    with pytest.raises(InvalidRequest, match="Number of tasks"):
        beat(sim, "a", 2, active={"0": [4]}, standby={})


def test_full_group_takes_no_member(sim: Sim) -> None:
    sim.streams_settings = StreamsSettings(**QUICK, max_size=1)
    stream(sim, "a")
    with pytest.raises(GroupMaxSizeReached):
        beat(sim, "b")


def test_invalid_topology_is_refused(sim: Sim) -> None:
    groups = [Subtopology.CopartitionGroup(source_topics=[1])]
    broken = Subtopology(subtopology_id="0", source_topics=["t"], copartition_groups=groups)
    with pytest.raises(StreamsInvalidTopology):
        beat(sim, "a", topology=Topology(epoch=0, subtopologies=[broken]))
    negative = TopicInfo(name="r", partitions=-1, replication_factor=1)
    broken = Subtopology(subtopology_id="0", repartition_source_topics=[negative])
    with pytest.raises(StreamsInvalidTopology):
        beat(sim, "a", topology=Topology(epoch=0, subtopologies=[broken]))
    with pytest.raises(StreamsInvalidTopology, match="non-negative"):
        beat(sim, "a", topology=Topology(epoch=-1, subtopologies=STATELESS.subtopologies))


def test_long_chain_of_repartition_topics_gets_the_count_of_its_source(sim: Sim) -> None:
    """Each subtopology reads what the next one writes."""
    chain = [
        Subtopology(
            subtopology_id=str(number),
            repartition_source_topics=[
                TopicInfo(name=f"r{number + 1}", partitions=0, replication_factor=1)
            ],
            repartition_sink_topics=[f"r{number}"] if number else [],
        )
        for number in range(400)
    ]
    first = Subtopology(
        subtopology_id="first", source_topics=["t"], repartition_sink_topics=["r400"]
    )
    beaten = beat(sim, "a", topology=Topology(epoch=0, subtopologies=[*chain, first]))
    expected = {(f"r{number + 1}", 4, 1) for number in range(400)}
    assert {topic[:3] for topic in beaten.missing} == expected


def test_member_with_an_endpoint_is_made_known_to_the_others(sim: Sim) -> None:
    stream(sim, "a", endpoint=("host", 1))
    stream(sim, "b")
    shrinking = beat(sim, "a", 2, active={"0": [0, 1, 2, 3]}, standby={}).response
    assert shrinking.endpoint_information_epoch == 1
    current = beat(sim, "b", 3, endpoint_information_epoch=1)
    assert current.endpoints is None
    behind = beat(sim, "b", 3, endpoint_information_epoch=0)
    assert behind.endpoints is not None
    assert [member.endpoint for member in behind.endpoints.members] == [("host", 1)]


def test_log_gives_the_same_group_back(sim: Sim) -> None:
    two_members(sim)
    before = group(sim)
    sim.restart()
    after = group(sim)
    assert after.members == before.members
    assert after.target == before.target
    assert (after.epoch, after.assignment_epoch) == (before.epoch, before.assignment_epoch)
    assert after.state is StreamsGroupState.STABLE
    assert stream(sim, "a", 3) == Streamed(3, None, None, [])


# Offsets


def test_only_members_commit_and_only_in_their_epoch(sim: Sim) -> None:
    two_members(sim)
    sim.reply(sim.commit("a", {("t", 0): 5}, "a", 3))
    assert sim.fetch_offsets() == {"t-0": 5}
    sim.reply(sim.commit("a", {("t", 0): 6}, "a", 2))  # Assigned in epoch 2, and still its own.
    with pytest.raises(StaleMemberEpoch):
        sim.reply(sim.commit("a", {("t", 3): 6}, "a", 2))
    with pytest.raises(StaleMemberEpoch):
        sim.reply(sim.commit("b", {("t", 3): 6}, "b", 2))  # Assigned in epoch 3.
    with pytest.raises(StaleMemberEpoch):
        sim.reply(sim.commit("a", {("t", 0): 6}, "a", 4))
    with pytest.raises(UnknownMemberId):
        sim.reply(sim.commit("c", {("t", 0): 6}))


def test_member_fetches_offsets_in_its_epoch(sim: Sim) -> None:
    stream(sim, "a")

    def fetch(member_id: str | None, epoch: int) -> None:
        group_requests.read_offsets(
            sim.groups, "g", None, require_stable=False, member_id=member_id, member_epoch=epoch
        )

    fetch("a", 2)
    fetch(None, -1)
    with pytest.raises(StaleMemberEpoch):
        fetch("a", 1)
    with pytest.raises(UnknownMemberId):
        fetch("b", 2)


def test_offsets_of_topics_in_use_are_not_deleted(sim: Sim) -> None:
    stream(sim, "a")
    sim.reply(sim.commit("a", {("t", 0): 5}, "a", 2))
    topic = OffsetDeleteRequest.OffsetDeleteRequestTopic
    partitions = [topic.OffsetDeleteRequestPartition(partition_index=0)]
    request = OffsetDeleteRequest(group_id="g", topics=[topic(name="t", partitions=partitions)])

    def delete() -> int:
        ticket = sim.send(
            "admin", lambda shard, *when: group_requests.delete_offsets(shard, request, *when)
        )
        code: int = sim.reply(ticket).topics[0].partitions[0].error_code
        return code

    assert delete() == GroupSubscribedToTopic.code
    stream(sim, "a", -1)
    assert delete() == 0
    assert sim.fetch_offsets() == {}


def test_empty_group_without_offsets_expires(sim: Sim) -> None:
    stream(sim, "a")
    sim.reply(sim.commit("a", {("t", 0): 5}, "a", 2))
    stream(sim, "a", -1)
    sim.advance(sim.settings.offsets_retention_ms / 1000 + 601)
    assert sim.groups.streams_group("g") is None
    assert sim.replay().machine.streams_group("g") is None


# Other kinds of groups


def delete(sim: Sim) -> None:
    ticket = sim.send("admin", lambda shard, *when: group_requests.delete_group(shard, "g", *when))
    assert sim.reply(ticket) is True


def test_group_with_members_cannot_be_deleted(sim: Sim) -> None:
    stream(sim, "a")
    with pytest.raises(NonEmptyGroup):
        delete(sim)
    stream(sim, "a", -1)
    delete(sim)
    assert not sim.replay().machine.has_group("g")


def test_deletion_in_several_decisions_keeps_the_timers_of_a_group(sim: Sim) -> None:
    """A member that joins between its decisions gets its tasks after the delay."""
    sim.streams_settings = StreamsSettings(
        assignment_interval_ms=0, initial_rebalance_delay_ms=3000
    )
    stream(sim, "a")
    sim.reply(sim.commit("a", {("u", number): 1 for number in range(300)}, "a", 1))
    stream(sim, "a", -1)
    ticket = sim.send("admin", lambda *when: group_requests.delete_group(when[0], "g", *when[1:]))
    assert sim.reply(ticket) is False
    assert stream(sim, "b").statuses == [StatusCode.ASSIGNMENT_DELAYED]
    sim.advance(3)
    assert stream(sim, "b", 1).active == {"0": [0, 1, 2, 3]}


def test_empty_groups_change_their_kind_with_the_next_member(sim: Sim) -> None:
    stream(sim, "a")
    joined = sim.reply(sim.join("c"))
    assert joined.error_code == InconsistentGroupProtocol.code
    stream(sim, "a", -1)
    sim.reply(sim.commit("tool", {("t", 0): 5}))
    sim.form_group("c")
    assert sim.groups.streams_group("g") is None
    with pytest.raises(GroupIdNotFound, match="not a streams group"):
        beat(sim, "a")
    assert sim.fetch_offsets() == {"t-0": 5}


def test_group_of_offsets_only_becomes_a_streams_group(sim: Sim) -> None:
    sim.reply(sim.commit("tool", {("t", 0): 5}))
    stream(sim, "a")
    assert sim.fetch_offsets() == {"t-0": 5}
    listed = group_requests.list_groups(sim.groups, [], ["streams"])
    assert [group_requests.listing_of(each) for each in listed] == [
        ("g", "streams", "Stable", "streams")
    ]
    assert not sim.groups.groups


def test_leave_of_an_unknown_group_is_refused(sim: Sim) -> None:
    with pytest.raises(GroupIdNotFound):
        beat(sim, "a", -1)
    with pytest.raises(GroupIdNotFound, match="Streams group g not found"):
        beat(sim, "a", 3)
