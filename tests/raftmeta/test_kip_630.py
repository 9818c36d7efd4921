"""KIP-630, snapshots of the metadata log: how they are fetched.

The docstring of a test says the sentence in our words; `docs/quorum-rules.md` lists them all.
"""

from kwire.codec.messages.fetch import FetchRequest
from kwire.codec.messages.fetch_snapshot import FetchSnapshotRequest
from kwire.raftmeta.events import Answered, Send, Started
from kwire.raftmeta.log import LogState, SnapshotId
from kwire.raftmeta.quorum_state import ElectionState
from kwire.raftmeta.raft import Raft, Recovered
from kwire.raftmeta.roles import Follower, SnapshotFetch
from kwire.raftmeta.voters import VoterHistory
from kwire.testing.raft import config_of, voters_of
from kwire.testing.raft_script import Fixed


def test_an_observer_whose_leader_is_gone_asks_others_in_the_middle_of_a_snapshot() -> None:
    """A follower that gets no answer looks for the leader among all voters, whatever it was
    fetching; an observer has no election that would free it."""
    history = VoterHistory([(-1, voters_of(1, 2, 3))])
    raft = Raft(config_of(9), Recovered(ElectionState(1, 1), LogState(), history), Fixed(0.5))
    raft.step(Started(), 0.0, 0)
    fetch = next(iter(raft.state.calls.open))
    raft.state.calls.finish(fetch)
    assert isinstance(raft.state.role, Follower)
    raft.state.role.snapshot = SnapshotFetch(SnapshotId(8, 1), 4)
    asked: list[Send] = [e for e in raft.step(None, 0.1, 0) if isinstance(e, Send)]
    assert [type(e.request) for e in asked] == [FetchSnapshotRequest]
    seen = set()
    for _ in range(20):
        effects = raft.step(Answered(asked[-1].call_id, None), raft.state.now, 0)
        asked = [e for e in effects if isinstance(e, Send)]
        while not asked:
            asked = [e for e in raft.step(None, raft.deadline, 0) if isinstance(e, Send)]
        seen |= {e.node.id for e in asked if isinstance(e.request, FetchRequest)}
    assert seen & {2, 3}
