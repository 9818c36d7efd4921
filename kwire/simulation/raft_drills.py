"""Drills: situations that a simulated quorum is put into on purpose, with the required outcomes.

Each begins in calm, with one leader that all nodes know, and leaves the quorum calm. It returns
whether it could be run with this quorum.
"""

from collections.abc import Callable
from typing import TYPE_CHECKING, Final

from kwire.raftmeta.raft.roles import Leader
from kwire.raftmeta.raft.voters import VoterSet
from kwire.simulation.clockwork import Violation
from kwire.simulation.raft_files import Files
from kwire.simulation.raft_node import SimNode

if TYPE_CHECKING:
    from kwire.simulation.raft_sim import RaftSim

ELECTION_SECONDS: Final = 15.0
"""The time after the end of faults in which the quorum must elect a leader."""


def one_leader(sim: "RaftSim") -> tuple[SimNode, VoterSet]:
    """Return the leader and its voter set."""
    leader = sim.leaders()[0]
    assert leader.raft is not None
    return leader, leader.raft.state.voters


def able(sim: "RaftSim", voters: VoterSet) -> list[SimNode]:
    """Return the voters that still have the disk they became voters with."""
    return [n for n in sim.nodes.values() if voters.has(n.config.key)]


def lost_sight(sim: "RaftSim") -> bool:
    """Check KIP-996: a voter cut off from its leader alone does not disturb it, then or later."""
    leader, voters = one_leader(sim)
    assert leader.raft is not None
    others = [n for n in able(sim, voters) if n is not leader]
    if len(voters) < 3 or len(others) < voters.majority:  # The rest and the leader: a majority.
        return False
    epoch = leader.raft.state.epoch
    node = sim.random.choice(others)
    sim.network.cut |= {(leader.id, node.id), (node.id, leader.id)}
    sim.network.rejects = sim.random.random() < 0.5
    sim.wait(10)
    sim.network.cut.clear()
    sim.wait(3)
    now = [(n.id, n.raft.state.epoch) for n in sim.leaders() if n.raft is not None]
    if now != [(leader.id, epoch)]:
        raise Violation(f"n{node.id} disturbed n{leader.id} in {epoch}: now {now}")
    return True


def isolated_leader(sim: "RaftSim") -> bool:
    """Check KIP-595: a leader without a majority resigns, and the others elect a new one."""
    leader, voters = one_leader(sim)
    others = [n for n in able(sim, voters) if n is not leader]
    if len(others) < voters.majority:
        return False
    sim.isolate(leader)
    _demand_resignation(sim, leader)
    if not [n for n in sim.leaders() if n is not leader]:
        raise Violation(f"no leader without n{leader.id}")
    sim.network.cut.clear()
    sim.calm()
    return True


def suspended_leader(sim: "RaftSim") -> bool:
    """Suspend the leader's process until another leads; it must follow that one at once.

    It learns of the later epoch by a request for its vote, or only by the next leader's own.
    """
    leader, voters = one_leader(sim)
    others = [n for n in able(sim, voters) if n is not leader]
    if len(others) < voters.majority:
        return False
    is_cut_off = sim.random.random() < 0.5
    if is_cut_off:
        sim.isolate(leader)
    leader.pause()
    sim.wait(ELECTION_SECONDS)
    if not sim.leaders():
        raise Violation(f"no leader while n{leader.id} is suspended")
    sim.network.cut.clear()
    sim.wait(3)
    leader.resume()
    sim.wait(1)
    if len(sim.leaders()) > 1:
        raise Violation(f"n{leader.id} leads beside another")
    sim.calm()
    return True


def strangers(sim: "RaftSim") -> bool:
    """Check KIP-853: fetches of a voter's id on an empty disk do not keep a leader active."""
    leader, voters = one_leader(sim)
    others = [n for n in able(sim, voters) if n is not leader and sim.operators.finds_others(n)]
    if not sim.is_dynamic or not sim.operators.is_idle or len(voters) < 4 or len(others) < 3:
        return False
    stranger, *rest = sim.random.sample(others, len(others))
    if stranger.config.auto_join:  # It would remove its old directory id and become a voter soon.
        return False
    needed = voters.majority - 2  # With the leader and the stranger they would be a majority.
    for node in sim.nodes.values():
        if node not in (leader, stranger, *rest[:needed]):
            sim.isolate(node)
    sim.operators.replace_disk(stranger)
    _demand_resignation(sim, leader)
    sim.network.cut.clear()
    sim.calm()
    return True


def _demand_resignation(sim: "RaftSim", leader: SimNode) -> None:
    assert leader.raft is not None
    epoch = leader.raft.state.epoch
    sim.wait(ELECTION_SECONDS)
    if isinstance(leader.raft.state.role, Leader) and leader.raft.state.epoch == epoch:
        raise Violation(f"n{leader.id} leads on without a majority")


def lost_disk(sim: "RaftSim") -> bool:
    """Check KIP-853: a voter with another disk does not count, even if a majority needs it."""
    leader, voters = one_leader(sim)
    others = [n for n in able(sim, voters) if n is not leader]
    if not sim.is_dynamic or not sim.operators.is_idle or len(voters) != 3 or len(others) < 2:
        return False
    behind, keeper = others
    if not sim.operators.finds_others(keeper):
        return False
    sim.isolate(behind)
    for _ in range(3):
        sim.propose()
    sim.wait(1)
    leader.crash()
    sim.operators.replace_disk(keeper)
    sim.network.cut.clear()
    sim.wait(10)
    sim.calm()
    return True


def removed_leader(sim: "RaftSim") -> bool:
    """Check KIP-853: a leader that removes itself needs a majority of the others to commit that."""
    leader, voters = one_leader(sim)
    others = [n for n in able(sim, voters) if n is not leader]
    if not sim.is_dynamic or not sim.operators.is_idle or len(others) < len(voters) - 1:
        return False
    if not others or not voters.has(leader.config.key):
        return False
    near = sim.random.sample(others, len(others) // 2)  # One too few for a majority of the others.
    for node in sim.nodes.values():
        if node is not leader and node not in near:
            sim.isolate(node)
    sim.operators.ask_to_remove(leader, leader.config.key)
    sim.wait(5)
    sim.network.cut.clear()
    sim.calm()
    return True


def double_crash(sim: "RaftSim") -> bool:
    """Kill processes before they sync, start them again, and then cut their power.

    The fetches they sent after the restart counted for a majority with the leader, which loses
    power as well; the records that they acknowledged must be on their disks.
    """
    leader, voters = one_leader(sim)
    others = [n for n in able(sim, voters) if n is not leader]
    if len(voters) < 3 or len(others) < len(voters) - 1 or not voters.has(leader.config.key):
        return False
    near = sim.random.sample(others, voters.majority - 1)
    for node in sim.nodes.values():
        if node is not leader and node not in near:
            sim.isolate(node)
    for node in near:
        node.sync_max = 5.0
    for _ in range(2):
        sim.propose()
    sim.wait(0.1)
    for node in near:
        node.crash(power=False)
        node.start()
        node.sync_max = 0.005
    sim.wait(1)
    for node in (leader, *near):
        node.crash()
    for node in near:
        node.start()
    sim.network.cut.clear()
    sim.wait(10)
    sim.calm()
    return True


def power_lost_after_snapshot(sim: "RaftSim") -> bool:
    """Check KIP-630: a node still has an installed snapshot after a loss of power."""
    leader, voters = one_leader(sim)
    assert leader.raft is not None
    others = [n for n in sim.nodes.values() if n is not leader]
    if len(able(sim, voters)) < len(voters) or len(voters) == 2 or not others:
        return False
    node = sim.random.choice(others)
    start = node.raft.state.log.start_offset if node.raft is not None else 0
    sim.isolate(node)
    for _ in range(2):
        sim.propose()
        sim.wait(1)
        sim.take_snapshot(leader)
    sim.network.cut.clear()
    for _ in range(200):
        if node.raft is None or node.raft.state.log.start_offset > start:
            break
        sim.wait(0.05)
    node.crash()
    sim.calm()
    return True


def rotten_leader(sim: "RaftSim") -> bool:
    """Invariant 44: a leader whose disk rots does not keep those who need its log from it."""
    leader, voters = one_leader(sim)
    others = [n for n in able(sim, voters) if n is not leader]
    if not sim.is_dynamic or not sim.operators.is_idle or len(voters) < 3:
        return False
    if len(others) < len(voters) - 1 or not voters.has(leader.config.key):
        return False
    away = sim.random.choice(others)
    assert away.raft is not None
    end_offset = away.raft.state.log.end_offset
    sim.isolate(away)
    is_snapshot_needed = isinstance(leader.storage, Files) or sim.random.random() < 0.5
    for _ in range(3):
        sim.propose()
        sim.wait(1)
        if is_snapshot_needed:
            sim.take_snapshot(leader)
    is_rotten = sim.operators.rot(
        leader, end_offset, snapshot_share=1.0 if is_snapshot_needed else 0.0
    )
    sim.network.cut.clear()
    sim.calm()
    return is_rotten


def rotten_follower(sim: "RaftSim") -> bool:
    """Check invariant 43: no node delivers a batch that rotted on its disk before the commit."""
    leader, voters = one_leader(sim)
    others = [n for n in able(sim, voters) if n is not leader and n.raft is not None]
    if not sim.is_dynamic or not sim.operators.is_idle or len(voters) < 3 or not others:
        return False
    node = sim.random.choice(others)
    end_offset = sim.propose()
    for _ in range(200):
        if end_offset is None or node.storage.durable.end_offset >= end_offset:
            break
        sim.wait(0.001)
    is_rotten = sim.operators.rot(node, node.delivered, snapshot_share=0.0)
    sim.calm()
    return is_rotten


def dead_minority(sim: "RaftSim") -> bool:
    """Check invariant 110: with a dead minority, the majority goes on after its own faults.

    The majority alone elects and commits once its faults stop; the dead nodes stay down.
    """
    leader, voters = one_leader(sim)
    voting = able(sim, voters)
    count = (len(voters) - 1) // 2  # Independent of the product's own arithmetic.
    if not sim.operators.is_idle or len(voting) < len(voters) or not count:
        return False
    dead = {leader.id} if sim.random.random() < 0.5 else set[int]()
    others = [n.id for n in voting if n.id not in dead]
    dead.update(sim.random.sample(others, count - len(dead)))
    for node_id in dead:
        sim.note(sim.nodes[node_id], "stays dead")
        sim.nodes[node_id].crash()
    sim.chaos(3 + 5 * sim.random.random(), dead)
    sim.calm(dead)
    sim.calm()
    return True


DRILLS: Final[tuple[Callable[["RaftSim"], bool], ...]] = (
    lost_sight,
    isolated_leader,
    suspended_leader,
    strangers,
    lost_disk,
    removed_leader,
    double_crash,
    power_lost_after_snapshot,
    rotten_leader,
    rotten_follower,
    dead_minority,
)

SELDOM: Final = (
    strangers,
    removed_leader,
    power_lost_after_snapshot,
    double_crash,
    rotten_leader,
    rotten_follower,
)
"""Drills that few quorums qualify for; one of them is often tried before the others."""

FIRST: Final = (rotten_leader, rotten_follower)
"""Drills for voters that all have their first disk; most runs begin with one of them."""
