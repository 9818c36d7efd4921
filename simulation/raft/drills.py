"""Drills: scripted situations for a simulated quorum, with the required outcomes.

Each drill starts in calm, with one leader that all nodes know, and leaves the quorum calm. It
returns whether this quorum allowed the drill.
"""

from collections.abc import Callable
from typing import Final

from kwire.raftmeta.raft.roles import Leader
from kwire.raftmeta.raft.voters import VoterSet
from simulation.raft.faults import ELECTION_SECONDS, FaultyQuorum
from simulation.raft.files import Files
from simulation.raft.node import SimNode
from simulation.scheduler import Violation


def one_leader(quorum: FaultyQuorum) -> tuple[SimNode, VoterSet]:
    """Return the leader and its voter set."""
    leader = quorum.leaders()[0]
    assert leader.raft is not None
    return leader, leader.raft.state.voters


def able(quorum: FaultyQuorum, voters: VoterSet) -> list[SimNode]:
    """Return the voters that still have the disk with which they became voters."""
    return [n for n in quorum.nodes.values() if voters.has(n.config.key)]


def lost_sight(quorum: FaultyQuorum) -> bool:
    """Check KIP-996: a voter that is cut off only from its leader never disturbs the leader."""
    leader, voters = one_leader(quorum)
    assert leader.raft is not None
    others = [n for n in able(quorum, voters) if n is not leader]
    if len(voters) < 3 or len(others) < voters.majority:  # The rest and the leader: a majority.
        return False
    epoch = leader.raft.state.epoch
    node = quorum.random.choice(others)
    quorum.network.cut |= {(leader.id, node.id), (node.id, leader.id)}
    quorum.network.rejects = quorum.random.random() < 0.5
    quorum.wait(10)
    quorum.network.cut.clear()
    quorum.wait(3)
    now = [(n.id, n.raft.state.epoch) for n in quorum.leaders() if n.raft is not None]
    if now != [(leader.id, epoch)]:
        raise Violation(f"n{node.id} disturbed n{leader.id} in {epoch}: now {now}")
    return True


def isolated_leader(quorum: FaultyQuorum) -> bool:
    """Check KIP-595: a leader without a majority resigns, and the others elect a new one."""
    leader, voters = one_leader(quorum)
    others = [n for n in able(quorum, voters) if n is not leader]
    if len(others) < voters.majority:
        return False
    quorum.isolate(leader)
    _demand_resignation(quorum, leader)
    if not [n for n in quorum.leaders() if n is not leader]:
        raise Violation(f"no leader without n{leader.id}")
    quorum.network.cut.clear()
    quorum.calm()
    return True


def suspended_leader(quorum: FaultyQuorum) -> bool:
    """Suspend the leader's process until another node leads, which it must follow at once.

    It learns of the later epoch from a vote request or only from a request of the new leader.
    """
    leader, voters = one_leader(quorum)
    others = [n for n in able(quorum, voters) if n is not leader]
    if len(others) < voters.majority:
        return False
    is_cut_off = quorum.random.random() < 0.5
    if is_cut_off:
        quorum.isolate(leader)
    leader.pause()
    quorum.wait(ELECTION_SECONDS)
    if not quorum.leaders():
        raise Violation(f"no leader while n{leader.id} is suspended")
    quorum.network.cut.clear()
    quorum.wait(3)
    leader.resume()
    quorum.wait(1)
    if len(quorum.leaders()) > 1:
        raise Violation(f"n{leader.id} leads beside another")
    quorum.calm()
    return True


def strangers(quorum: FaultyQuorum) -> bool:
    """Check KIP-853: fetches from a voter id with an empty disk do not keep a leader active."""
    leader, voters = one_leader(quorum)
    others = [
        n for n in able(quorum, voters) if n is not leader and quorum.operators.finds_others(n)
    ]
    if not quorum.is_dynamic or not quorum.operators.is_idle or len(voters) < 4 or len(others) < 3:
        return False
    stranger, *rest = quorum.random.sample(others, len(others))
    if stranger.config.auto_join:  # It would remove its old directory id and become a voter soon.
        return False
    needed = voters.majority - 2  # With the leader and the stranger they would be a majority.
    for node in quorum.nodes.values():
        if node not in (leader, stranger, *rest[:needed]):
            quorum.isolate(node)
    quorum.operators.replace_disk(stranger)
    _demand_resignation(quorum, leader)
    quorum.network.cut.clear()
    quorum.calm()
    return True


def _demand_resignation(quorum: FaultyQuorum, leader: SimNode) -> None:
    assert leader.raft is not None
    epoch = leader.raft.state.epoch
    quorum.wait(ELECTION_SECONDS)
    if isinstance(leader.raft.state.role, Leader) and leader.raft.state.epoch == epoch:
        raise Violation(f"n{leader.id} leads on without a majority")


def lost_disk(quorum: FaultyQuorum) -> bool:
    """Check KIP-853: a voter with a new disk does not count, even if a majority needs it."""
    leader, voters = one_leader(quorum)
    others = [n for n in able(quorum, voters) if n is not leader]
    if not quorum.is_dynamic or not quorum.operators.is_idle or len(voters) != 3 or len(others) < 2:
        return False
    behind, keeper = others
    if not quorum.operators.finds_others(keeper):
        return False
    quorum.isolate(behind)
    for _ in range(3):
        quorum.propose()
    quorum.wait(1)
    leader.crash()
    quorum.operators.replace_disk(keeper)
    quorum.network.cut.clear()
    quorum.wait(10)
    quorum.calm()
    return True


def removed_leader(quorum: FaultyQuorum) -> bool:
    """Check KIP-853: a leader commits its own removal with a majority of the other voters."""
    leader, voters = one_leader(quorum)
    others = [n for n in able(quorum, voters) if n is not leader]
    if not quorum.is_dynamic or not quorum.operators.is_idle or len(others) < len(voters) - 1:
        return False
    if not others or not voters.has(leader.config.key):
        return False
    # One too few for a majority of the others.
    near = quorum.random.sample(others, len(others) // 2)
    for node in quorum.nodes.values():
        if node is not leader and node not in near:
            quorum.isolate(node)
    quorum.operators.ask_to_remove(leader, leader.config.key)
    quorum.wait(5)
    quorum.network.cut.clear()
    quorum.calm()
    return True


def double_crash(quorum: FaultyQuorum) -> bool:
    """Kill processes before they sync, restart them, and then cut their power.

    After the restart, their fetches and the leader formed a majority. The leader loses power too,
    so the records that they acknowledged must be on their own disks.
    """
    leader, voters = one_leader(quorum)
    others = [n for n in able(quorum, voters) if n is not leader]
    if len(voters) < 3 or len(others) < len(voters) - 1 or not voters.has(leader.config.key):
        return False
    near = quorum.random.sample(others, voters.majority - 1)
    for node in quorum.nodes.values():
        if node is not leader and node not in near:
            quorum.isolate(node)
    for node in near:
        node.sync_max = 5.0
    for _ in range(2):
        quorum.propose()
    quorum.wait(0.1)
    for node in near:
        node.crash(power=False)
        node.start()
        node.sync_max = 0.005
    quorum.wait(1)
    for node in (leader, *near):
        node.crash()
    for node in near:
        node.start()
    quorum.network.cut.clear()
    quorum.wait(10)
    quorum.calm()
    return True


def power_lost_after_snapshot(quorum: FaultyQuorum) -> bool:
    """Check KIP-630: a node still has an installed snapshot after a power loss."""
    leader, voters = one_leader(quorum)
    assert leader.raft is not None
    others = [n for n in quorum.nodes.values() if n is not leader]
    if len(able(quorum, voters)) < len(voters) or len(voters) == 2 or not others:
        return False
    node = quorum.random.choice(others)
    start = node.raft.state.log.start_offset if node.raft is not None else 0
    quorum.isolate(node)
    for _ in range(2):
        quorum.propose()
        quorum.wait(1)
        quorum.take_snapshot(leader)
    quorum.network.cut.clear()
    for _ in range(200):
        if node.raft is None or node.raft.state.log.start_offset > start:
            break
        quorum.wait(0.05)
    node.crash()
    quorum.calm()
    return True


def rotten_leader(quorum: FaultyQuorum) -> bool:
    """Check invariant 44: bit rot on the leader's disk does not stop nodes that need its log."""
    leader, voters = one_leader(quorum)
    others = [n for n in able(quorum, voters) if n is not leader]
    if not quorum.is_dynamic or not quorum.operators.is_idle or len(voters) < 3:
        return False
    if len(others) < len(voters) - 1 or not voters.has(leader.config.key):
        return False
    away = quorum.random.choice(others)
    assert away.raft is not None
    end_offset = away.raft.state.log.end_offset
    quorum.isolate(away)
    is_snapshot_needed = isinstance(leader.storage, Files) or quorum.random.random() < 0.5
    for _ in range(3):
        quorum.propose()
        quorum.wait(1)
        if is_snapshot_needed:
            quorum.take_snapshot(leader)
    is_rotten = quorum.operators.rot(
        leader, end_offset, snapshot_share=1.0 if is_snapshot_needed else 0.0
    )
    quorum.network.cut.clear()
    quorum.calm()
    return is_rotten


def rotten_follower(quorum: FaultyQuorum) -> bool:
    """Check invariant 43: no node delivers a batch that bit rot damaged before the commit."""
    leader, voters = one_leader(quorum)
    others = [n for n in able(quorum, voters) if n is not leader and n.raft is not None]
    if not quorum.is_dynamic or not quorum.operators.is_idle or len(voters) < 3 or not others:
        return False
    node = quorum.random.choice(others)
    end_offset = quorum.propose()
    for _ in range(200):
        if end_offset is None or node.storage.durable.end_offset >= end_offset:
            break
        quorum.wait(0.001)
    is_rotten = quorum.operators.rot(node, node.delivered, snapshot_share=0.0)
    quorum.calm()
    return is_rotten


def dead_minority(quorum: FaultyQuorum) -> bool:
    """Check invariant 110: with a dead minority, the majority continues after its own faults.

    Once these faults stop, the majority elects and commits alone; the dead nodes stay down.
    """
    leader, voters = one_leader(quorum)
    voting = able(quorum, voters)
    count = (len(voters) - 1) // 2  # Independent of the product's own arithmetic.
    if not quorum.operators.is_idle or len(voting) < len(voters) or not count:
        return False
    dead = {leader.id} if quorum.random.random() < 0.5 else set[int]()
    others = [n.id for n in voting if n.id not in dead]
    dead.update(quorum.random.sample(others, count - len(dead)))
    for node_id in dead:
        quorum.nodes[node_id].note_down("stays dead")
        quorum.nodes[node_id].crash()
    quorum.chaos(3 + 5 * quorum.random.random(), dead)
    quorum.calm(dead)
    quorum.calm()
    return True


DRILLS: Final[tuple[Callable[[FaultyQuorum], bool], ...]] = (
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
"""Drills that few quorums allow; one of them is often tried before other drills."""

FIRST: Final = (rotten_leader, rotten_follower)
"""Drills that need all voters on their first disks; most runs start with one of them."""
