"""Nodes that know no leader, and only old addresses of the voters."""

from random import Random

from kwire.raftmeta.raft.events import Answered, Send, Started
from kwire.raftmeta.raft.log_state import LogState
from kwire.raftmeta.raft.quorum_state import ElectionState
from kwire.raftmeta.raft.raft import Raft, Recovered
from kwire.raftmeta.raft.voters import CONFIGURED, Node, VoterHistory
from kwire.simulation.raft_quorums import config_of
from tests.support.raftmeta.one_node import dynamic


def test_where_the_configured_servers_are_is_asked_as_well() -> None:
    """KIP-853: a node without a leader asks the bootstrap servers; all voters may have moved."""
    history = VoterHistory([(CONFIGURED, dynamic(1, 2, 3))], [(CONFIGURED, 1)])
    moved, same = Node(-2, "moved", 9093), Node(-3, "node-2", 9093)
    config = config_of(9, can_vote=False, bootstrap=(moved, same))
    raft = Raft(config, Recovered(ElectionState(3, 1), LogState(), history), Random(1))
    asked = set()
    effects = list(raft.step(Started(), 0.0, 0))
    while raft.state.now < 60:
        while effects:
            effect = effects.pop()
            if isinstance(effect, Send):
                asked.add(effect.node)
                effects += raft.step(Answered(effect.call_id, None), raft.state.now, 0)
        effects += raft.step(None, raft.deadline, 0)
    assert asked == {moved, *dynamic(1, 2, 3).nodes()}
