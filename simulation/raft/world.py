"""The nodes of a simulated quorum with their network, disks and time, all from one seed.

It also causes what happens to the nodes from outside: time passes, links are cut, nodes start,
clients append and snapshots are taken. The faults are in :mod:`simulation.raft.faults`.
"""

from random import Random
from typing import Self

import attrs

from kwire.codec.messages.metadata_records import FeatureLevelRecord
from kwire.raftmeta.raft.events import Append, Appended, SnapshotTaken
from kwire.raftmeta.raft.log_state import SnapshotId
from kwire.raftmeta.raft.roles import Leader
from kwire.raftmeta.raft.state import RaftConfig
from kwire.raftmeta.raft.voters import Node, ReplicaKey, Voter, VoterEndpoint, VoterSet
from kwire.raftmeta.storage.records import snapshot_chunks
from simulation.disk import Killed, SimDisk
from simulation.raft.checks import Checks
from simulation.raft.files import Files
from simulation.raft.network import SimNetwork
from simulation.raft.node import DISK_ERRORS, SimNode
from simulation.raft.storage import SimStorage
from simulation.scheduler import Scheduler, Trace

FILES_EVERY = 2
"""One seed in this many uses the real storage code: slower, but closer to production."""


@attrs.define(eq=False)
class RaftWorld:
    """The nodes of one simulated quorum, and their surroundings."""

    seed: int
    random: Random
    scheduler: Scheduler
    network: SimNetwork
    trace: Trace
    nodes: dict[int, SimNode]
    checks: Checks
    voter_ids: list[int]
    is_dynamic: bool
    _values: int = 0

    # Building -------------------------------------------------------------------------------
    @classmethod
    def of(cls, seed: int, *, trace_length: int = 400) -> Self:
        """Build the world whose voters, observers and kind of voter set follow from ``seed``."""
        random = Random(seed)
        scheduler = Scheduler()
        network = SimNetwork(scheduler, random)
        nodes: dict[int, SimNode] = {}
        is_dynamic = random.random() < 0.7
        voter_ids = list(range(1, 1 + random.choice([1, 2, 3, 3, 4, 4, 5])))
        observers = random.randrange(3)
        trace = Trace.of(trace_length)
        checks = Checks(nodes)
        world = cls(seed, random, scheduler, network, trace, nodes, checks, voter_ids, is_dynamic)
        voters = VoterSet.of(world._voter(n) for n in voter_ids)
        for node_id in range(1, 1 + len(voter_ids) + observers):
            world._add_node(node_id, voters)
        return world

    def _voter(self, node_id: int) -> Voter:
        directory = directory_of(node_id, 0) if self.is_dynamic else bytes(16)
        return Voter(ReplicaKey(node_id, directory), endpoints_of(node_id))

    def _config(self, node_id: int) -> RaftConfig:
        return RaftConfig(
            node_id=node_id,
            directory_id=directory_of(node_id, 0),
            cluster_id="sim",
            endpoints=endpoints_of(node_id),
            listener="CONTROLLER",
            bootstrap=tuple(Node(-1 - n, f"node-{n}", 9093) for n in self.voter_ids),
            auto_join=(self.seed + node_id) % 4 == 0,
            fetch_max_bytes=2000,
            snapshot_max_bytes=150,
        )

    def _add_node(self, node_id: int, voters: VoterSet) -> None:
        node = SimNode(
            self._config(node_id),
            VoterSet() if self.is_dynamic else voters,
            self.scheduler,
            self.network,
            self.random,
            self.trace,
            self.nodes,
            self.checks.on_step,
            self.checks.on_outcome,
            self.checks.on_delivery,
            self.empty_disk(),
        )
        if self.is_dynamic and node_id in self.voter_ids:
            start = SnapshotId(0, 0)
            chunks = snapshot_chunks(
                start, [], voters=voters, kraft_version=1, last_timestamp_ms=0, now_ms=0
            )
            node.storage.format(start, chunks)
        self.nodes[node_id] = node

    def empty_disk(self) -> SimStorage | Files:
        """Return an empty storage: a model or, for some seeds, the real one on a simulated disk."""
        return Files(SimDisk()) if self.seed % FILES_EVERY == 0 else SimStorage()

    # Time and nodes -------------------------------------------------------------------------
    def wait(self, seconds: float) -> None:
        self.scheduler.run_until(self.scheduler.now + seconds)

    def isolate(self, node: SimNode) -> None:
        self.network.isolate(node.id, list(self.nodes), inwards=True, outwards=True)

    def start_later(self, node: SimNode) -> None:
        incarnation = node.incarnation
        delay = 2 * self.random.random()
        self.scheduler.after(delay, lambda: self._restart(node, incarnation))

    def _restart(self, node: SimNode, incarnation: int) -> None:
        if node.raft is None and node.incarnation == incarnation:
            node.start()

    # Actions of clients and tools -----------------------------------------------------------
    def leaders(self) -> list[SimNode]:
        return [
            n
            for n in self.nodes.values()
            if n.raft is not None and isinstance(n.raft.state.role, Leader) and not n.is_paused
        ]

    def propose(self) -> int | None:
        """Append on a leader, maybe a stale one; return the end offset, or None if rejected."""
        leaders = self.leaders()
        if not leaders:
            return None
        node = self.random.choice(leaders)
        assert node.raft is not None
        self._values += 1
        values = tuple(b"%d-%d" % (self._values, n) for n in range(1 + self.random.randrange(3)))
        effects = node.feed(Append(self._values, node.raft.state.epoch, values))
        taken = [e for e in effects if isinstance(e, Appended)]
        return taken[0].last_offset + 1 if taken else None

    def take_snapshot(self, node: SimNode) -> None:
        """Let a node write a snapshot of its committed records, if there are new ones."""
        if node.raft is None or node.is_paused:
            return
        state = node.raft.state
        _, end = self.checks.progress[node.id, node.incarnation]
        newest = state.log.latest_snapshot
        if end <= state.log.start_offset or (newest and end <= newest.end_offset):
            return
        if end not in self.checks.chain:
            return
        snapshot = SnapshotId(end, state.log.epoch_at(end - 1))
        voters, version = state.history.at(end)
        digest = FeatureLevelRecord(name=str(self.checks.chain[end]), feature_level=1)
        chunks = snapshot_chunks(
            snapshot,
            [[digest]],
            voters=voters,
            kraft_version=version,
            last_timestamp_ms=0,
            now_ms=0,
        )
        if node.storage.pending or state.installing:
            return
        try:
            node.storage.store_snapshot(snapshot, chunks)
        except Killed:
            node.die()
            return
        except DISK_ERRORS:  # A later call retries.
            return
        node.feed(SnapshotTaken(snapshot))


def directory_of(node_id: int, life: int) -> bytes:
    return bytes([0xD0]) + life.to_bytes(7, "big") + node_id.to_bytes(8, "big")


def endpoints_of(node_id: int, suffix: str = "") -> tuple[VoterEndpoint, ...]:
    return (VoterEndpoint("CONTROLLER", f"node-{node_id}{suffix}", 9093),)
