"""A simulation of a whole quorum under faults of all kinds, from one seed.

Rounds of chaos (crashes, lost disks, pauses, cuts in one direction, bad networks, damaged messages,
slow, failing, full and rotten disks, skewed clocks, snapshots, and what
:mod:`kwire.simulation.raft_operators` does) are each followed by calm, in which the quorum must
elect, commit and agree, and by drills (:mod:`kwire.simulation.raft_drills`).
:mod:`kwire.simulation.raft_checks` checks every step.
"""

from collections.abc import Collection
from random import Random

import attrs

from kwire.codec.messages.metadata_records import FeatureLevelRecord
from kwire.raftmeta.raft.events import Append, Appended, SnapshotTaken
from kwire.raftmeta.raft.log_state import SnapshotId
from kwire.raftmeta.raft.roles import Leader
from kwire.raftmeta.raft.state import RaftConfig
from kwire.raftmeta.raft.voters import Node, ReplicaKey, Voter, VoterSet
from kwire.raftmeta.storage.records import snapshot_chunks
from kwire.simulation import raft_drills
from kwire.simulation.clockwork import Scheduler, Trace, Violation
from kwire.simulation.disk import Killed, SimDisk
from kwire.simulation.network import SimNetwork
from kwire.simulation.raft_checks import Checks
from kwire.simulation.raft_disk import SimStorage
from kwire.simulation.raft_drills import ELECTION_SECONDS
from kwire.simulation.raft_files import Files
from kwire.simulation.raft_node import DISK_ERRORS, SimNode
from kwire.simulation.raft_operators import Operators, directory_of, endpoints_of

FILES_EVERY = 2
"""One seed in this many uses the real storage code: slower, but closer to production."""
DRILL_SHARE = 0.9
"""The probability that a drill follows a period of calm."""
FIRST_SHARE = 0.7
"""The probability that a run begins with a drill."""


@attrs.define(eq=False)
class RaftSim:
    """One simulated quorum."""

    seed: int
    random: Random
    scheduler: Scheduler
    network: SimNetwork
    trace: Trace
    nodes: dict[int, SimNode]
    checks: Checks
    voter_ids: list[int]
    is_dynamic: bool
    operators: Operators = attrs.field(init=False)
    _values: int = 0

    def __attrs_post_init__(self) -> None:
        self.operators = Operators(self)

    @classmethod
    def of(cls, seed: int, *, trace_length: int = 400) -> "RaftSim":
        """Make the voters, observers and kind of voter set that follow from the seed."""
        random = Random(seed)
        scheduler = Scheduler()
        network = SimNetwork(scheduler, random)
        nodes: dict[int, SimNode] = {}
        is_dynamic = random.random() < 0.7
        voter_ids = list(range(1, 1 + random.choice([1, 2, 3, 3, 4, 4, 5])))
        observers = random.randrange(3)
        trace = Trace.of(trace_length)
        checks = Checks(nodes)
        sim = cls(seed, random, scheduler, network, trace, nodes, checks, voter_ids, is_dynamic)
        voters = VoterSet.of(sim._voter(n) for n in voter_ids)
        for node_id in range(1, 1 + len(voter_ids) + observers):
            sim._add_node(node_id, voters)
        return sim

    # Building -------------------------------------------------------------------------------
    def _voter(self, node_id: int) -> Voter:
        directory = directory_of(node_id, 0) if self.is_dynamic else bytes(16)
        return Voter(ReplicaKey(node_id, directory), endpoints_of(node_id))

    def _config(self, node_id: int) -> RaftConfig:
        return RaftConfig(
            node_id=node_id,
            directory_id=directory_of(node_id, 0),
            cluster_id="sim",
            endpoints=endpoints_of(node_id),
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
        """Return an empty storage: by the seed, the real one on a simulated disk, or a model."""
        return Files(SimDisk()) if self.seed % FILES_EVERY == 0 else SimStorage()

    # Running --------------------------------------------------------------------------------
    def run(self, events: int) -> None:
        """Run rounds of chaos and calm until ``events`` events have happened."""
        for node in self.nodes.values():
            if node.incarnation == 0:
                node.start()
        if self.random.random() < FIRST_SHARE:
            self.calm()
            self.random.choice(raft_drills.FIRST)(self)
        while self.scheduler.events < events:
            self.chaos(2 + 20 * self.random.random() ** 2)
            self.calm()
            if self.random.random() < DRILL_SHARE:
                drills = self.random.sample(raft_drills.DRILLS, len(raft_drills.DRILLS))
                if self.random.random() < 0.8:
                    drills = [self.random.choice(raft_drills.SELDOM), *drills]
                any(drill(self) for drill in drills)

    def wait(self, seconds: float) -> None:
        self.scheduler.run_until(self.scheduler.now + seconds)

    def isolate(self, node: SimNode) -> None:
        self.network.isolate(node.id, list(self.nodes), inwards=True, outwards=True)

    def note(self, node: SimNode, what: str) -> None:
        """Add an external event of a node to the trace."""
        node.note_down(what)

    def chaos(self, seconds: float, dead: Collection[int] = ()) -> None:
        """Cause faults of all kinds for a time; with ``dead`` nodes, operators do nothing."""
        until = self.scheduler.now + seconds
        pace = 0.02 + 0.6 * self.random.random() ** 2
        self.network.loss = self.random.choice([0.0, 0.0, 0.01, 0.1, 0.3])
        self.network.duplication = self.random.choice([0.0, 0.05, 0.2])
        self.network.slow_share = self.random.choice([0.0, 0.02, 0.1])
        self.network.corruption = self.random.choice([0.0, 0.0, 0.05])
        self.network.rejects = self.random.random() < 0.3
        for node in self.nodes.values():
            node.sync_max = self.random.choice([0.001, 0.005, 0.05, 0.5])
            if node.raft is None:
                node.clock_rate = self.random.choice([1.0, 1.0, 0.9, 1.1])
        alive = [node for node in self.nodes.values() if node.id not in dead]
        while self.scheduler.now < until:
            self.wait(pace * self.random.random())
            self._disturb(self.random.choice(alive))
            if not dead:
                self._operate(self.random.choice(alive))
            for _ in range(self.random.randrange(4)):
                self.propose()

    def _disturb(self, node: SimNode) -> None:
        dice = self.random.random()
        if dice < 0.12:
            self._crash_or_start(node)
        elif dice < 0.2:
            node.resume() if node.is_paused else node.pause()
        elif dice < 0.32:
            both = self.random.random() < 0.4
            inwards = self.random.random() < 0.5
            self.network.isolate(
                node.id, list(self.nodes), inwards=both or inwards, outwards=both or not inwards
            )
        elif dice < 0.42:
            self.network.cut.clear()
        elif dice < 0.6:
            self.take_snapshot(node)
        elif dice < 0.64 and node.raft is not None:
            node.storage.fail(self.random)
        elif dice < 0.7 and node.raft is not None:
            node.storage.die_after(self.random.randrange(8))

    def _operate(self, node: SimNode) -> None:
        """Run an operator's action, with a small probability each."""
        dice = self.random.random()
        if dice < 0.03:
            self.operators.stop(node)
        elif dice < 0.05:
            self.operators.resign()
        elif dice > 0.9:
            self.operators.rot(node)
        elif not self.is_dynamic:
            if dice < 0.1:
                self.operators.upgrade()
        elif dice < 0.2:
            self.operators.change_voters()
        elif dice < 0.22:
            self.operators.lose_disk(node)
        elif dice < 0.24:
            self.operators.move()

    def _crash_or_start(self, node: SimNode) -> None:
        if node.raft is None:
            node.start()
            return
        self.note(node, "crash")
        node.crash()
        if self.random.random() < 0.7:  # Most come back soon.
            self.start_later(node)

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
        """Append on a leader, maybe a stale one; return the end offset, None if refused."""
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
        _, compared = self.checks.progress[node.id, node.incarnation]
        newest = state.log.latest_snapshot
        end = compared
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
        except DISK_ERRORS:  # A later call tries again.
            return
        node.feed(SnapshotTaken(snapshot))

    # Calm -----------------------------------------------------------------------------------
    def calm(self, dead: Collection[int] = ()) -> None:
        """Stop all faults, but leave ``dead`` down; the quorum must elect, commit and agree.

        It must do so before a rotten disk that no node has noticed is replaced.
        """
        self._agree(dead)
        if self.operators.end_rot():
            self._agree(dead)

    def _agree(self, dead: Collection[int]) -> None:
        self.network.calm()
        alive = [node for node in self.nodes.values() if node.id not in dead]
        for node in alive:
            node.sync_max = 0.005
            if node.storage.repair():
                node.die()
            if node.raft is None:
                node.start()
            elif node.is_paused:
                node.resume()
        self.wait(ELECTION_SECONDS)
        end = self.propose()
        self.wait(3)
        leaders = self.leaders()
        if end is None or len(leaders) != 1:
            raise Violation(f"no single leader after calm: {[n.id for n in leaders]}")
        for node in alive:
            if node.raft is None or (node.raft.state.high_watermark or 0) < end:
                raise Violation(f"n{node.id} has not learnt of {end} in calm")

    def describe(self) -> str:
        """Return the text for a failure: the seed and one line per event."""
        states = "\n".join(self._state_of(node) for node in self.nodes.values())
        return f"seed={self.seed} events={self.scheduler.events}\n{self.trace.text()}\n{states}"

    @staticmethod
    def _state_of(node: SimNode) -> str:
        if node.raft is None:
            return f"n{node.id} down"
        state = node.raft.state
        sets = [(offset, voters.ids) for offset, voters in state.history.sets[-3:]]
        return (
            f"n{node.id} {state.role} epoch={state.election} log={state.log.start_offset}"
            f"..{state.log.end_offset} hw={state.high_watermark} voters={sets}"
        )


class SimFailure(AssertionError):
    """A run that broke an invariant; the message has the invariant, the seed and the trace."""


def simulate(seed: int, events: int, *, trace_length: int = 400) -> RaftSim:
    """Run one seed; raise :class:`SimFailure` with the trace if an invariant does not hold."""
    sim = RaftSim.of(seed, trace_length=trace_length)
    try:
        sim.run(events)
    except Exception as error:
        kind = type(error).__name__
        raise SimFailure(f"{kind}: {error}\n{sim.describe()}\n{kind}: {error}") from error
    return sim
