"""Large topologies, which are matched with their topics before the decision on a heartbeat."""

import pytest

from kwire.codec.messages.streams_group_heartbeat import StreamsGroupHeartbeatRequest, TopicInfo
from kwire.drive import run_steps
from kwire.group.decision_builder import Client
from kwire.group.streams import requests
from kwire.group.streams.configuration import StatusCode
from kwire.group.streams.heartbeat import MATCHED_AT_ONCE, Matched, Unmatched
from kwire.group.streams.shard import Beaten
from tests.support.group.sim import Sim
from tests.support.group.streams import Streamed, Subtopology, Topology, read, request, stream

CHANGELOGS = [f"changelog-{number}" for number in range(MATCHED_AT_ONCE)]


def large() -> Topology:
    """Return subtopologies that all read one topic, each with a changelog."""
    return Topology(
        epoch=0,
        subtopologies=[
            Subtopology(
                subtopology_id=name,
                source_topics=["t"],
                state_changelog_topics=[TopicInfo(name=name, partitions=0, replication_factor=0)],
            )
            for name in CHANGELOGS
        ],
    )


def world() -> Sim:
    sim = Sim()
    sim.topics.put("t", 1)
    return sim


def decide(
    sim: Sim, sent: StreamsGroupHeartbeatRequest, matched: Matched | None = None
) -> Streamed:
    """Decide on a heartbeat as the coordinator of a node does."""
    ticket = sim.send(
        sent.member_id,
        lambda shard, *when: requests.heartbeat(
            shard, sent, Client(client_id="c"), *when, matched=matched, may_wait=matched is None
        ),
    )
    beaten: Beaten = sim.reply(ticket)
    return read(beaten.response)


def match(sim: Sim, sent: StreamsGroupHeartbeatRequest) -> Matched:
    with pytest.raises(Unmatched) as unmatched:
        decide(sim, sent)
    return run_steps(unmatched.value.matching(sim.topics))


def test_decision_with_a_match_is_the_one_without() -> None:
    sim, other = world(), world()
    for epoch in (0, 2):
        sent = request("m", epoch, topology=None if epoch else large())
        answer = decide(sim, sent, match(sim, sent))
        assert answer == stream(other, "m", epoch, topology=sent.topology)
        assert bool(answer.active) == (epoch == 2)
        for each in (sim, other):
            for name in CHANGELOGS:
                each.topics.put(name, 1)
    assert sim.log.data == other.log.data


def test_match_with_older_topics_is_not_used() -> None:
    sim = world()
    sent = request("m", topology=large())
    matched = match(sim, sent)
    for name in CHANGELOGS:
        sim.topics.put(name, 1)
    answer = decide(sim, sent, matched)
    assert answer.statuses == []
    assert answer.active == {name: [0] for name in CHANGELOGS}


def test_topics_that_have_not_changed_need_no_match() -> None:
    sim = world()
    sent = request("m", topology=large())
    answer = decide(sim, sent, match(sim, sent))
    assert answer.statuses == [StatusCode.MISSING_INTERNAL_TOPICS]
    assert decide(sim, request("m", answer.epoch)).epoch == answer.epoch


def test_group_with_equal_topics_keeps_its_configuration() -> None:
    """Any change of a topic of the cluster has the topics of each group looked up again."""
    sim = world()
    sent = request("m", topology=large())
    former = match(sim, sent)
    answer = decide(sim, sent, former)
    sim.topics.put("unrelated", 1)
    assert match(sim, request("m", answer.epoch)).configuration is former.configuration
