"""A whole quorum under every fault there is, from one seed.

Rounds of chaos (crashes, lost disks, pauses, cuts in one direction, bad networks, slow disks,
skewed clocks, snapshots, voter changes) are each followed by calm, in which the quorum has to
elect, commit and agree.  :mod:`kwire.testing.raft_checks` watches every step in between.
"""

from random import Random

import attrs

from kwire.codec.messages.add_raft_voter import AddRaftVoterRequest
from kwire.codec.messages.metadata_records import FeatureLevelRecord
from kwire.codec.messages.remove_raft_voter import RemoveRaftVoterRequest
from kwire.raftmeta.events import Append, Appended, Received, SnapshotTaken
from kwire.raftmeta.log import SnapshotId
from kwire.raftmeta.progress import is_epoch_committed
from kwire.raftmeta.records import snapshot_chunks
from kwire.raftmeta.roles import Leader
from kwire.raftmeta.state import RaftConfig
from kwire.raftmeta.voters import Endpoint, Node, ReplicaKey, Voter, VoterSet
from kwire.testing.cluster import Scheduler, Trace, Violation
from kwire.testing.disk import Killed, SimDisk
from kwire.testing.network import SimNetwork
from kwire.testing.raft_checks import Checks
from kwire.testing.raft_disk import SimStorage
from kwire.testing.raft_files import Files
from kwire.testing.raft_node import SimNode

FILES_EVERY = 2
"""One seed in so many writes real files: slower, and nearer to the truth."""
ELECTION_SECONDS = 15.0
"""After calm has come, how long until everybody has to agree."""


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
    healing: int | None = None
    """A node whose disk was lost and that has not been made a voter again."""
    _directories: int = 0
    _values: int = 0

    @classmethod
    def of(cls, seed: int, *, trace_length: int = 400) -> "RaftSim":
        """Voters, observers and kind of voter set follow from the seed."""
        random = Random(seed)
        scheduler = Scheduler()
        network = SimNetwork(scheduler, random)
        nodes: dict[int, SimNode] = {}
        is_dynamic = random.random() < 0.6
        voter_ids = list(range(1, 1 + random.choice([1, 2, 3, 3, 3, 4, 5, 5])))
        observers = random.randrange(3)
        trace = Trace.of(trace_length)
        checks = Checks(nodes)
        sim = cls(seed, random, scheduler, network, trace, nodes, checks, voter_ids, is_dynamic)
        voters = VoterSet.of(sim._voter(n) for n in voter_ids)
        for node_id in range(1, 1 + len(voter_ids) + observers):
            sim._add_node(node_id, voters)
        for node in nodes.values():
            node.start()
        return sim

    # Building -------------------------------------------------------------------------------
    def _voter(self, node_id: int) -> Voter:
        directory = directory_of(node_id, 0) if self.is_dynamic else bytes(16)
        return Voter(ReplicaKey(node_id, directory), endpoints_of(node_id))

    def _config(self, node_id: int, life: int) -> RaftConfig:
        return RaftConfig(
            node_id=node_id,
            directory_id=directory_of(node_id, life),
            cluster_id="sim",
            endpoints=endpoints_of(node_id),
            bootstrap=tuple(Node(-1 - n, f"node-{n}", 9093) for n in self.voter_ids),
            auto_join=(self.seed + node_id) % 4 == 0,
            fetch_max_bytes=2000,
            snapshot_max_bytes=150,
        )

    def _add_node(self, node_id: int, voters: VoterSet) -> None:
        node = SimNode(
            self._config(node_id, 0),
            VoterSet() if self.is_dynamic else voters,
            self.scheduler,
            self.network,
            self.random,
            self.trace,
            self.nodes,
            self.checks.on_step,
            self.checks.on_outcome,
            self._empty_disk(),
        )
        if self.is_dynamic and node_id in self.voter_ids:
            start = SnapshotId(0, 0)
            chunks = snapshot_chunks(
                start, [], voters=voters, kraft_version=1, last_timestamp_ms=0, now_ms=0
            )
            node.storage.format(start, chunks)
        self.nodes[node_id] = node

    def _empty_disk(self) -> SimStorage | Files:
        """Some quorums have the real storage, on a disk that loses what was not synced."""
        return Files(SimDisk()) if self.seed % FILES_EVERY == 0 else SimStorage()

    # Running --------------------------------------------------------------------------------
    def run(self, events: int) -> None:
        """Rounds of chaos and calm until so many events have happened."""
        while self.scheduler.events < events:
            self._chaos(5 + 20 * self.random.random())
            self.calm()
            drill = self.random.random()
            if drill < 0.25:
                self.drill_lost_sight()
            elif drill < 0.4:
                self.drill_isolated_leader()
            elif drill < 0.6:
                self.drill_lost_disk()

    def _chaos(self, seconds: float) -> None:
        until = self.scheduler.now + seconds
        pace = 0.02 + 0.6 * self.random.random() ** 2
        self.network.loss = self.random.choice([0.0, 0.0, 0.01, 0.1, 0.3])
        self.network.duplication = self.random.choice([0.0, 0.05, 0.2])
        self.network.slow_share = self.random.choice([0.0, 0.02, 0.1])
        self.network.rejects = self.random.random() < 0.3
        for node in self.nodes.values():
            node.sync_max = self.random.choice([0.001, 0.005, 0.05, 0.5])
            if node.raft is None:
                node.clock_rate = self.random.choice([1.0, 1.0, 0.9, 1.1])
        while self.scheduler.now < until:
            self.scheduler.run_until(self.scheduler.now + pace * self.random.random())
            self._disturb()
            for _ in range(self.random.randrange(4)):
                self.propose()

    def _disturb(self) -> None:
        node = self.random.choice(list(self.nodes.values()))
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
            self._take_snapshot(node)
        elif dice < 0.75 and self.is_dynamic:
            self._change_voters()
        elif dice < 0.77 and self.is_dynamic:
            self._lose_disk(node)
        elif dice > 0.94 and node.raft is not None:
            node.storage.die_after(self.random.randrange(8))

    def _crash_or_start(self, node: SimNode) -> None:
        if node.raft is None:
            node.start()
            return
        self.trace.add(self.scheduler.now, node.id, "down", 0, 0, 0, "crash")
        node.crash()
        if self.random.random() < 0.7:  # most come back soon
            incarnation = node.incarnation
            delay = 2 * self.random.random()
            self.scheduler.after(delay, lambda: self._restart(node, incarnation))

    def _restart(self, node: SimNode, incarnation: int) -> None:
        if node.raft is None and node.incarnation == incarnation:
            node.start()

    # What clients and tools do --------------------------------------------------------------
    def leaders(self) -> list[SimNode]:
        return [
            n
            for n in self.nodes.values()
            if n.raft is not None and isinstance(n.raft.state.role, Leader) and not n.is_paused
        ]

    def propose(self) -> int | None:
        """Append on a leader (there may be stale ones); the end offset, if it was taken."""
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

    def _take_snapshot(self, node: SimNode) -> None:
        if node.raft is None or node.is_paused:
            return
        state = node.raft.state
        _, compared = self.checks.seen[node.id, node.incarnation]
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
        node.feed(SnapshotTaken(snapshot))

    def _change_voters(self) -> None:
        leaders = self.leaders()
        if not leaders:
            return
        leader = self.random.choice(leaders)
        assert leader.raft is not None
        voters = leader.raft.state.voters
        outsiders = [n for n in self.nodes.values() if not voters.has(n.config.key)]
        if self.healing is not None:
            self._heal(leader, voters)
        elif outsiders and (len(voters) < 3 or self.random.random() < 0.5):
            self._ask_to_add(leader, self.random.choice(outsiders))
        elif len(voters) > 1:
            self._ask_to_remove(leader, self.random.choice(list(voters)).key)

    def _heal(self, leader: SimNode, voters: VoterSet) -> None:
        """Take the lost replica out and its successor in."""
        assert self.healing is not None
        node = self.nodes[self.healing]
        voter = voters.get(node.id)
        if voter is None:
            self._ask_to_add(leader, node)
        elif voter.key != node.config.key:
            self._ask_to_remove(leader, voter.key)
        elif self._is_settled(leader):
            self.healing = None

    def _is_settled(self, leader: SimNode) -> bool:
        """Whether the voter that came back is one by a committed record."""
        assert leader.raft is not None
        state = leader.raft.state
        return (
            isinstance(state.role, Leader)
            and is_epoch_committed(state, state.role)
            and state.history.latest_offset < (state.high_watermark or 0)
        )

    def _ask_to_add(self, leader: SimNode, node: SimNode) -> None:
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
        leader.feed(Received(("tool", self.scheduler.events), request))

    def _ask_to_remove(self, leader: SimNode, key: ReplicaKey) -> None:
        request = RemoveRaftVoterRequest(
            cluster_id="sim", voter_id=key.id, voter_directory_id=key.directory_id
        )
        leader.feed(Received(("tool", self.scheduler.events), request))

    def _lose_disk(self, node: SimNode) -> None:
        """One disk at a time may be lost, of a voter set that can stand it."""
        leaders = [n for n in self.leaders() if self._is_settled(n)]
        if self.healing is not None or len(leaders) != 1 or leaders[0].raft is None:
            return
        voters = leaders[0].raft.state.voters
        if voters.has(node.config.key) and len(voters) >= 3 and self._finds_others(node):
            self._replace_disk(node)

    def _finds_others(self, node: SimNode) -> bool:
        """Whether its configuration names others; one that knew them from its log alone is lost."""
        return any(node_id != node.id for node_id in self.voter_ids)

    def _replace_disk(self, node: SimNode) -> None:
        self.trace.add(self.scheduler.now, node.id, "down", 0, 0, 0, "disk lost")
        self._directories += 1
        node.crash()
        self.checks.lost[node.config.key] = node.storage.durable.end_offset
        node.storage = self._empty_disk()
        node.config = self._config(node.id, self._directories)
        self.healing = node.id
        node.start()

    # Calm -----------------------------------------------------------------------------------
    def calm(self) -> None:
        """Everything works again: the quorum must elect, commit and agree."""
        self.network.calm()
        for node in self.nodes.values():
            node.sync_max = 0.005
            node.storage.die_after(None)
            if node.raft is None:
                node.start()
            elif node.is_paused:
                node.resume()
        self.scheduler.run_until(self.scheduler.now + ELECTION_SECONDS)
        end = self.propose()
        self.scheduler.run_until(self.scheduler.now + 3)
        leaders = self.leaders()
        if end is None or len(leaders) != 1:
            raise Violation(f"no single leader after calm: {[n.id for n in leaders]}")
        for node in self.nodes.values():
            assert node.raft is not None
            if (node.raft.state.high_watermark or 0) < end:
                raise Violation(f"n{node.id} has not learnt of {end} in calm")

    def _one_leader(self) -> tuple[SimNode, VoterSet]:
        leader = self.leaders()[0]
        assert leader.raft is not None
        return leader, leader.raft.state.voters

    def drill_lost_sight(self) -> None:
        """KIP-996: a voter that loses only its leader, and comes back, disturbs nobody."""
        leader, voters = self._one_leader()
        assert leader.raft is not None
        others = [n for n in self._able(voters) if n is not leader]
        if len(voters) < 3 or len(others) < 2:
            return
        epoch = leader.raft.state.epoch
        node = self.random.choice(others)
        self.network.cut |= {(leader.id, node.id), (node.id, leader.id)}
        self.network.rejects = self.random.random() < 0.5
        self.scheduler.run_until(self.scheduler.now + 10)
        self.network.cut.clear()
        self.scheduler.run_until(self.scheduler.now + 3)
        now = [(n.id, n.raft.state.epoch) for n in self.leaders() if n.raft is not None]
        if now != [(leader.id, epoch)]:
            raise Violation(f"n{node.id} disturbed n{leader.id} in {epoch}: now {now}")

    def drill_isolated_leader(self) -> None:
        """KIP-595: a leader that hears no majority resigns, and the others elect."""
        leader, voters = self._one_leader()
        assert leader.raft is not None
        others = [n for n in self._able(voters) if n is not leader]
        if len(others) < voters.majority:
            return
        epoch = leader.raft.state.epoch
        self.network.isolate(leader.id, list(self.nodes), inwards=True, outwards=True)
        self.scheduler.run_until(self.scheduler.now + ELECTION_SECONDS)
        role = leader.raft.state.role
        if isinstance(role, Leader) and leader.raft.state.epoch == epoch:
            raise Violation(f"n{leader.id} leads on though it hears nobody")
        if not [n for n in self.leaders() if n is not leader]:
            raise Violation(f"no leader without n{leader.id}")
        self.network.cut.clear()
        self.calm()

    def drill_lost_disk(self) -> None:
        """KIP-853: a voter without its disk is not that voter, however much it is needed."""
        leader, voters = self._one_leader()
        others = [n for n in self._able(voters) if n is not leader]
        if not self.is_dynamic or self.healing is not None or len(voters) != 3 or len(others) < 2:
            return
        behind, keeper = others
        if not self._finds_others(keeper):
            return
        self.network.isolate(behind.id, list(self.nodes), inwards=True, outwards=True)
        for _ in range(3):
            self.propose()
        self.scheduler.run_until(self.scheduler.now + 1)
        leader.crash()
        self._replace_disk(keeper)
        self.network.cut.clear()
        self.scheduler.run_until(self.scheduler.now + 10)
        self.calm()

    def _able(self, voters: VoterSet) -> list[SimNode]:
        """The voters that still have the disk they became voters with."""
        return [n for n in self.nodes.values() if voters.has(n.config.key)]

    def describe(self) -> str:
        """What a failure prints: the seed and one line an event."""
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


def directory_of(node_id: int, life: int) -> bytes:
    return bytes([0xD0]) + life.to_bytes(7, "big") + node_id.to_bytes(8, "big")


def endpoints_of(node_id: int) -> tuple[Endpoint, ...]:
    return (Endpoint("CONTROLLER", f"node-{node_id}", 9093),)


class SimFailure(AssertionError):
    """A run that broke an invariant; says which, and how to see it again."""


def simulate(seed: int, events: int, *, trace_length: int = 400) -> RaftSim:
    """Run one seed; raise :class:`SimFailure` with the trace if anything does not hold."""
    sim = RaftSim.of(seed, trace_length=trace_length)
    try:
        sim.run(events)
    except Exception as error:
        kind = type(error).__name__
        raise SimFailure(f"{kind}: {error}\n{sim.describe()}\n{kind}: {error}") from error
    return sim
