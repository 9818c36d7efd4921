"""The operators of a simulated quorum, who change voters, replace disks, move and stop nodes.

Rules: they stay within the faults that raft tolerates. In a voter set of at least three, one disk
at a time is lost or rots, and one voter at a time moves. The next change of either kind waits until
the voter set has the node's current disk and address.
"""

import attrs

from kwire.codec.messages.add_raft_voter import AddRaftVoterRequest
from kwire.codec.messages.remove_raft_voter import RemoveRaftVoterRequest
from kwire.raftmeta.raft.events import Received, Resign, Shutdown, UpgradeKraftVersion
from kwire.raftmeta.raft.leader_view import is_epoch_committed
from kwire.raftmeta.raft.roles import Leader
from kwire.raftmeta.raft.voters import ReplicaKey, VoterSet
from simulation.raft.node import SimNode
from simulation.raft.world import RaftWorld, directory_of, endpoints_of

ROTTEN_SNAPSHOTS = 0.3
"""The share of bit rot that damages a snapshot instead of the log."""
ADD_SECONDS = 3
"""The time after which a request to add a voter can no longer take effect."""
STOP_SECONDS = 1.5
"""The time for which a stopping node still votes."""


@attrs.define(eq=False)
class Operators:
    """The operators of one simulated quorum, and their pending changes."""

    world: RaftWorld
    healing: int | None = None
    """The node whose disk was lost and whose new replica is not a voter yet."""
    rotten: int | None = None
    """The node with damage on its disk."""
    moving: int | None = None
    """The node whose new address is not in the voter set yet."""
    _rots_voter: bool = False
    _add_requests: dict[int, float] = attrs.field(factory=dict)
    """The time of the last request to add each node."""
    _directories: int = 0
    _addresses: int = 0

    @property
    def is_idle(self) -> bool:
        """True while every voter has the disk and the address that the voter set names."""
        return self.healing is None and self.moving is None and self.rotten is None

    def change_voters(self) -> None:
        """Continue a change of the voters, or start one."""
        leaders = self.world.leaders()
        if not leaders or self.rotten is not None:
            return
        leader = self.world.random.choice(leaders)
        assert leader.raft is not None
        voters = leader.raft.state.voters
        nodes = self.world.nodes.values()
        outsiders = [n for n in nodes if not voters.has(n.config.key)]
        if self.moving is not None:
            self._settle_move(leader, voters)
        elif self.healing is not None:
            self._heal(leader, voters)
        elif outsiders and (len(voters) < 3 or self.world.random.random() < 0.5):
            self._ask_to_add(leader, self.world.random.choice(outsiders))
        elif len(voters) > 1:
            self.ask_to_remove(leader, self.world.random.choice(list(voters)).key)

    def _heal(self, leader: SimNode, voters: VoterSet) -> None:
        """Remove the lost replica and add its successor, one step per call."""
        assert self.healing is not None
        node = self.world.nodes[self.healing]
        voter = voters.get(node.id)
        if voter is None:
            self._ask_to_add(leader, node)
        elif voter.key != node.config.key:
            self.ask_to_remove(leader, voter.key)
        elif self.is_settled(leader):
            self.healing = None

    @staticmethod
    def is_settled(leader: SimNode) -> bool:
        """Return whether the leader's voter set is in a committed record."""
        assert leader.raft is not None
        state = leader.raft.state
        return (
            isinstance(state.role, Leader)
            and is_epoch_committed(state, state.role)
            and state.history.latest_offset < (state.high_watermark or 0)
        )

    def _ask_to_add(self, leader: SimNode, node: SimNode) -> None:
        self._add_requests[node.id] = self.world.scheduler.now
        listener = AddRaftVoterRequest.Listener
        request = AddRaftVoterRequest(
            cluster_id="sim",
            timeout_ms=1000,
            voter_id=node.id,
            voter_directory_id=node.config.directory_id,
            listeners=[
                listener(name=e.name, host=e.host, port=e.port) for e in node.config.endpoints
            ],
        )
        leader.feed(Received(("tool", self.world.scheduler.events), request))

    def ask_to_remove(self, leader: SimNode, key: ReplicaKey) -> None:
        request = RemoveRaftVoterRequest(
            cluster_id="sim", voter_id=key.id, voter_directory_id=key.directory_id
        )
        leader.feed(Received(("tool", self.world.scheduler.events), request))

    # Disks ----------------------------------------------------------------------------------
    def lose_disk(self, node: SimNode) -> None:
        """Replace a voter's disk, if the voter set is settled and has three voters or more."""
        voters = self._settled_voters()
        if voters is None or not self.is_idle:
            return
        if voters.has(node.config.key) and len(voters) >= 3 and self.finds_others(node):
            self.replace_disk(node)

    def _settled_voters(self) -> VoterSet | None:
        """Return the voter set if exactly one leader has committed it, else None."""
        leaders = [n for n in self.world.leaders() if self.is_settled(n)]
        if len(leaders) != 1 or leaders[0].raft is None:
            return None
        return leaders[0].raft.state.voters

    def finds_others(self, node: SimNode) -> bool:
        """Return whether a node with an empty disk can find others through its configuration."""
        moved = max(self.world.voter_ids) if self._addresses else None
        return any(node_id not in (node.id, moved) for node_id in self.world.voter_ids)

    def replace_disk(self, node: SimNode, *, is_voter: bool = True) -> None:
        """Crash a node, and restart it at once with an empty disk."""
        world = self.world
        node.note_down("disk lost")
        self._directories += 1
        node.crash()
        world.checks.lost[node.config.key] = node.storage.durable.end_offset
        node.storage = world.empty_disk()
        directory = directory_of(node.id, self._directories)
        node.config = attrs.evolve(node.config, directory_id=directory)
        if is_voter:
            self.healing = node.id
        node.start()

    def rot(
        self, node: SimNode, start_offset: int = 0, snapshot_share: float = ROTTEN_SNAPSHOTS
    ) -> bool:
        """Flip a bit on a running node's disk, if the quorum could tolerate the loss of the disk.

        The bit is in a snapshot, or in a batch at or after ``start_offset``. Return whether a bit
        was flipped.
        """
        voters = self._settled_voters()
        if voters is None or not self.is_idle or node.raft is None:
            return False
        if not self.finds_others(node) or node.config.auto_join:
            return False
        if self.world.scheduler.now < self._add_requests.get(node.id, -ADD_SECONDS) + ADD_SECONDS:
            return False
        is_voter = voters.get(node.id) is not None
        is_able = self.world.is_dynamic and voters.has(node.config.key) and len(voters) >= 3
        if is_voter and not is_able:
            return False
        random = self.world.random
        if random.random() < snapshot_share:
            is_done = node.storage.rot_snapshot(random)
        else:
            is_done = node.storage.rot_batch(random, start_offset)
        if is_done:
            node.storage.has_rotted = True
            node.note_down("disk rots")
            self.rotten, self._rots_voter = node.id, is_voter
            self._watch(node)
        return is_done

    def _watch(self, node: SimNode) -> None:
        """Start the node whenever it is down; replace its disk once the node rejects it."""
        if self.rotten != node.id:
            return
        if node.raft is None:
            self._start_or_replace(node)
        if self.rotten == node.id:
            self.world.scheduler.after(1, lambda: self._watch(node))

    def _start_or_replace(self, node: SimNode) -> None:
        if not node.is_refused:
            node.start()
        if node.is_refused:
            self.rotten = None
            self.replace_disk(node, is_voter=self._rots_voter)

    def end_rot(self) -> bool:
        """Restart a node whose damage nobody has noticed; return whether there is one."""
        if self.rotten is None:
            return False
        node = self.world.nodes[self.rotten]
        node.note_down("is started again for its disk")
        node.crash(power=False)
        self._start_or_replace(node)
        self.rotten = None
        return True

    # Addresses ------------------------------------------------------------------------------
    def move(self) -> None:
        """Restart the last initial voter at another address; no other voter ever moves."""
        voters = self._settled_voters()
        node = self.world.nodes[max(self.world.voter_ids)]
        if voters is None or len(voters) < 3 or not self.is_idle:
            return
        if not voters.has(node.config.key) or node.raft is None:
            return
        self._addresses += 1
        node.note_down("moves")
        node.crash()
        node.config = attrs.evolve(
            node.config, endpoints=endpoints_of(node.id, f"-moved-{self._addresses}")
        )
        self.moving = node.id
        node.start()

    def _settle_move(self, leader: SimNode, voters: VoterSet) -> None:
        assert self.moving is not None
        config = self.world.nodes[self.moving].config
        voter = voters.get(config.node_id)
        if voter is not None and voter.endpoints == config.endpoints and self.is_settled(leader):
            self.moving = None

    # Leaders --------------------------------------------------------------------------------
    def resign(self) -> None:
        """Let a leader resign, as when its controller cannot continue."""
        for leader in self.world.leaders()[:1]:
            assert leader.raft is not None
            leader.feed(Resign(leader.raft.state.epoch))

    def upgrade(self) -> None:
        """Raise kraft.version to 1, which moves the voter set into the log."""
        for leader in self.world.leaders()[:1]:
            leader.feed(UpgradeKraftVersion(("upgrade", self.world.scheduler.events), 1))

    def stop(self, node: SimNode) -> None:
        """Shut a node down: it resigns, ends after STOP_SECONDS and is restarted later."""
        if node.raft is None or node.is_paused:
            return
        node.note_down("stops")
        incarnation = node.incarnation
        node.feed(Shutdown())
        self.world.scheduler.after(STOP_SECONDS, lambda: self._end(node, incarnation))

    def _end(self, node: SimNode, incarnation: int) -> None:
        if node.raft is None or node.incarnation != incarnation:
            return
        node.crash(power=False)
        self.world.start_later(node)
