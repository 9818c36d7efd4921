"""Nodes that know no leader, and only old addresses of the voters."""

from random import Random

from kwire.codec.messages.fetch import FetchResponse
from kwire.raftmeta.raft.events import Answered, Send, Started
from kwire.raftmeta.raft.log_state import LogState
from kwire.raftmeta.raft.quorum_state import ElectionState
from kwire.raftmeta.raft.raft import Raft, Recovered
from kwire.raftmeta.raft.voters import CONFIGURED, Node, VoterHistory
from simulation.raft.quorums import config_of
from tests.support.raftmeta.one_node import dynamic


def test_node_without_leader_contacts_bootstrap_servers_too() -> None:
    """KIP-853: a node without a leader asks the bootstrap servers; all voters may have moved."""
    history = VoterHistory([(CONFIGURED, dynamic(1, 2, 3))], [(CONFIGURED, 1)])
    moved, same = Node(-2, "moved", 9093), Node(-3, "node-2", 9093)
    config = config_of(9, can_vote=False, bootstrap=(moved, same))
    raft = Raft(config, Recovered(ElectionState(3, 1), LogState(), history), Random(1))
    nodes = set()
    effects = list(raft.step(Started(), 0.0, 0))
    while raft.state.now < 60:
        while effects:
            effect = effects.pop()
            if isinstance(effect, Send):
                nodes.add(effect.node)
                effects += raft.step(Answered(effect.call_id, None), raft.state.now, 0)
        effects += raft.step(None, raft.deadline, 0)
    assert nodes == {moved, *dynamic(1, 2, 3).nodes()}


def test_leader_that_moved_is_found_through_the_endpoints_in_responses() -> None:
    """KIP-853: the voters in the log may have an older address of the leader than other nodes."""
    history = VoterHistory([(CONFIGURED, dynamic(1, 2, 3))], [(CONFIGURED, 1)])
    config = config_of(9, can_vote=False)
    raft = Raft(config, Recovered(ElectionState(3, 1), LogState(), history), Random(1))
    nodes = set()
    effects = list(raft.step(Started(), 0.0, 0))
    while raft.state.now < 60:
        while effects:
            effect = effects.pop()
            if isinstance(effect, Send):
                nodes.add(effect.node)
                answer = None if effect.node.id == 1 else not_leader(1, 3, Node(1, "moved", 9093))
                effects += raft.step(Answered(effect.call_id, answer), raft.state.now, 0)
        effects += raft.step(None, raft.deadline, 0)
    assert Node(1, "moved", 9093) in nodes


def not_leader(leader_id: int, epoch: int, leader: Node) -> FetchResponse:
    """Return a follower's answer to Fetch, which names the leader and its address."""
    kind = FetchResponse.FetchableTopicResponse
    data = kind.PartitionData(partition_index=0, error_code=6, high_watermark=-1, records=None)
    data.current_leader = kind.PartitionData.LeaderIdAndEpoch(
        leader_id=leader_id, leader_epoch=epoch
    )
    endpoint = FetchResponse.NodeEndpoint(node_id=leader.id, host=leader.host, port=leader.port)
    topic = kind(topic="__cluster_metadata", partitions=[data])
    return FetchResponse(responses=[topic], node_endpoints=[endpoint])
