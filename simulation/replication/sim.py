"""A whole cluster in one deterministic world, from one seed: quorum, brokers, replicas, clients.

Four machines run real kwire nodes: logs, replicas, coordinators and three to five controllers,
which are also brokers in most runs. Clients produce (some in transactions), consume, delete records
and commit offsets. Machines are killed, paused, cleanly shut down or lose power. Connections are
cut, split or slow. Directories fail, disks fill up, partitions are reassigned, and replicas move
between directories. Voters are added and removed. In some runs nodes start with an old release and
are upgraded, and feature levels rise.

:mod:`simulation.replication.checks` checks the replicas all the time, and clients check their
responses. Once all faults have ended, all logs must become equal and every client must make
progress. In some runs a minority of the voters stays dead for a while, and clients must make
progress without it.
"""

from collections import deque
from collections.abc import Sequence
from random import Random
from typing import Final
from unittest.mock import patch

import attrs
import trio
import trio.testing

from kwire.configs.load import broker_config
from kwire.raftmeta.broker import session_lease
from kwire.raftmeta.controller.features import SUPPORTED
from kwire.raftmeta.metadata.image import MetadataImage, PartitionImage
from kwire.raftmeta.storage.levels import ELR, METADATA_VERSION
from simulation.disk import SimDisk
from simulation.replication.assigned_members import AssignedBook, AssignedMember
from simulation.replication.checks import TOPIC, ReplicationChecks
from simulation.replication.clients import Deleter, Producer, SimClient, World
from simulation.replication.consumers import Committer, Consumer
from simulation.replication.end import HEAL_S, check_end
from simulation.replication.faults import Faults
from simulation.replication.history import History, demand
from simulation.replication.members import GroupBook, Member
from simulation.replication.metadata_checks import Books
from simulation.replication.movers import Mover, has_mover
from simulation.replication.node import Cluster, SimMachine, initial_voters
from simulation.replication.operators import Operator
from simulation.replication.processes import SimThreads, simulated_processes, world_time
from simulation.replication.releases import Release
from simulation.replication.settings import (
    CONTROLLERS,
    MORE_CONTROLLERS,
    NODES,
    TRANSACTIONAL_IDS,
    WITHOUT_CONTROLLERS_S,
    settings_of,
)
from simulation.replication.sharing.groups import (
    SHARING,
    ShareWatcher,
    has_share_group,
    prepare_share_group,
    share_clients,
)
from simulation.replication.topic_owners import TopicOwner
from simulation.replication.topics import create_topics
from simulation.replication.transactions import TransactionalProducer
from simulation.replication.wire import Wire

PARTITIONS: Final = (1, 2, 2, 3, 4, 12)
"""The numbers of partitions, from which a run draws one."""
MEMBERS: Final = 3
"""The number of members of the group."""
OWNERS: Final = 3
"""The number of administrators, each with its own topic."""
ANSWERS: Final = 2
"""The number of responses that every administrator must get once the faults have ended."""
CHECKED_AT_ONCE: Final = 8
CHECK_S: Final = 0.05
SETTLE_S: Final = 5.0
"""The time after the last fault during which clients may still fail."""
_ADMIN: Final = -1000
TRACE_LINES: Final = 80


class ReplicationSimFailure(AssertionError):
    """A failed run: its seed and the broken invariant."""


@attrs.define(eq=False)
class ReplicationSim:
    """One run of the simulation."""

    seed: int
    is_sharing: bool = attrs.field(default=False, kw_only=True)
    """True in a small cluster whose clients are producers and share members, which is fast."""
    random: Random = attrs.field(init=False)
    books: Books = attrs.field(init=False)
    machines: dict[int, SimMachine] = attrs.field(init=False)
    world: World = attrs.field(init=False)
    checks: ReplicationChecks = attrs.field(init=False)
    faults: Faults = attrs.field(init=False)
    threads: SimThreads = attrs.field(init=False)
    release: Release = attrs.field(init=False)
    operator: Operator = attrs.field(init=False)
    clients: list[SimClient] = attrs.field(factory=list)
    trace: deque[str] = attrs.field(factory=lambda: deque(maxlen=TRACE_LINES))
    events: int = 0

    def __attrs_post_init__(self) -> None:
        self.random = Random(self.seed)
        self.threads = SimThreads(Random(f"{self.seed} threads"))
        self.release = self.random.choice((Release.old, Release.newest))(self.random)
        partition_count = self.random.choice(PARTITIONS)
        if self.is_sharing:
            self.release, partition_count = Release.newest(self.random), min(partition_count, 2)
        if self.is_sharing or (self.release.is_newest and has_share_group(self.seed)):
            self.release = self.release.with_share_groups()
        wire = Wire(Random(f"{self.seed} wire"))
        self.machines = self._make_machines(wire)
        history = History.of(partition_count)
        self.world = World(wire, self.machines, self.books, history, partition_count, self.note)
        self.checks = ReplicationChecks(self.machines, history)
        self.faults = Faults(self.world, self.books, self.random, self.checks)
        self._make_clients()

    def _make_machines(self, wire: Wire) -> dict[int, SimMachine]:
        """Return the machines, of which some are voters and some may become voters."""
        is_dynamic = self.random.random() < 0.5 and not self.is_sharing
        controllers: tuple[int, ...] = MORE_CONTROLLERS if is_dynamic else CONTROLLERS
        is_apart = self.random.random() < 0.3  # No node is both controller and broker.
        if is_apart and not self.is_sharing:
            controllers = tuple(100 + node % 100 for node in controllers)
        count = self.random.choice((1, 2, 3, 3)) if is_dynamic else len(CONTROLLERS)
        voters = controllers[:count]
        self.books = Books(self.seed, voters, {}, self._on_note)
        cluster = Cluster(self.seed, wire, self.books, self.release.levels)
        cluster.initial_voters = initial_voters(voters) if is_dynamic else None
        directory_count = 2 if self.release.has_directories else self.random.choice((1, 2, 2, 2))
        for node in sorted({*NODES, *controllers}):
            cluster.machines[node] = self._machine(cluster, node, controllers, directory_count)
        return cluster.machines

    def _machine(
        self, cluster: Cluster, node: int, controllers: Sequence[int], directory_count: int
    ) -> SimMachine:
        is_dynamic = cluster.initial_voters is not None
        disks = [SimDisk() for _ in range(directory_count if node in NODES else 0)]
        settings = settings_of(node, controllers, len(disks), is_dynamic=is_dynamic)
        config, features = broker_config(settings), self.release.features
        return SimMachine(node, config, cluster, disks, installed=features)

    def _basis(self) -> tuple[int, World, Random]:
        """Return the first arguments of the next client."""
        number = -1 - len(self.clients)
        return number, self.world, Random(f"{self.seed} client {number}")

    def _make_clients(self) -> None:
        basis = self._basis
        for is_idempotent in (False, True, True):
            self.clients.append(Producer(*basis(), is_idempotent=is_idempotent))
        for is_committed in (False, True):
            index = self.random.randrange(self.world.partition_count)
            self.clients.append(Consumer(*basis(), index=index, is_committed=is_committed))
        if self.random.random() < 0.4:
            self.clients.append(Deleter(*basis()))
        self.clients.append(Committer(*basis()))
        for name in TRANSACTIONAL_IDS:
            self.clients.append(TransactionalProducer(*basis(), name=name))
        self.operator = Operator(
            *basis(),
            books=self.books,
            changes_voters=self.random.random() < 0.7,
            raises_levels=self.random.random() < 0.7,
            spared=self.random.choice(((), (ELR,), (METADATA_VERSION, ELR))),
        )
        self.clients.append(self.operator)
        if not self.is_sharing:
            self._make_group_members()
        if self.release.has_share_groups:
            self.clients += share_clients(self.seed, len(self.clients), self.world)
        if has_mover(self.seed) and not self.is_sharing:
            self.clients.append(Mover(*basis()))

    def _make_group_members(self) -> None:
        """Make the members of the other groups, and the administrators with their own topics."""
        book = GroupBook(self.world.partition_count)
        for _ in range(MEMBERS):
            self.clients.append(Member(*self._basis(), book=book))
        for number in range(OWNERS):
            self.clients.append(TopicOwner(*self._basis(), name=f"own-{number}"))
        assigned = AssignedBook(self.world.partition_count)
        for _ in range(MEMBERS):
            self.clients.append(AssignedMember(*self._basis(), book=assigned))

    def partition(self, index: int) -> PartitionImage:
        """Return a partition of the committed metadata."""
        topic = self.books.image.topic(TOPIC)
        assert topic is not None
        return topic.partitions[index]

    def note(self, *words: object) -> None:
        self.events += 1
        self.trace.append(f"{world_time():9.3f}  " + " ".join(map(str, words)))

    def _on_note(self, node: int, what: str) -> None:
        self.note(f"n{node}", what)

    # -- the run

    def simulate(self, steps: int) -> None:
        """Run the simulation; raise ReplicationSimFailure, which names the seed, if it fails."""
        clock = trio.testing.MockClock(autojump_threshold=0)
        try:
            with (
                simulated_processes(self.seed, self.threads),
                patch.object(session_lease, "WITHOUT_CONTROLLERS_MAX_S", WITHOUT_CONTROLLERS_S),
            ):
                trio.run(self.run, steps, clock=clock)
        except Exception as error:
            story = "\n".join(self.trace)
            raise ReplicationSimFailure(
                f"seed {self.seed}, {steps} steps: {error!r}\n{story}\n{describe(self)}"
                f"\n{first(error)!r}"
            ) from error

    async def run(self, steps: int) -> None:
        """Cause ``steps`` faults, then end all faults and check the outcome."""
        async with trio.open_nursery() as nursery:
            for machine in self.machines.values():
                machine.start(nursery)
            await self._wait_serving()
            await create_topics(SimClient(_ADMIN, self.world, self.random))
            for watcher in self.clients:
                if isinstance(watcher, ShareWatcher):
                    await prepare_share_group(watcher)
            nursery.start_soon(self._check_always)
            for client in self.clients:
                nursery.start_soon(client.run)  # type: ignore[attr-defined]
            for _ in range(steps):
                await trio.sleep(self.random.expovariate(1.4))
                self.faults.act(nursery)
                self.check()
            await self.operator.rest()
            while self.faults.staged.is_running:  # noqa: ASYNC110
                await trio.sleep(0.1)
            await self._heal(nursery)
            if self.random.random() < 0.4:
                await self._heal(nursery, self._draw_minority())
                await self._heal(nursery)
            if self.operator.raises_levels:
                await self._upgrade(nursery)
            await check_end(self.world, self.clients, self.checks, self.seed)
            self.check()
            nursery.cancel_scope.cancel()

    async def _wait_serving(self) -> None:
        while not all(machine.is_serving for machine in self.machines.values()):  # noqa: ASYNC110
            await trio.sleep(0.1)

    def check(self) -> None:
        """Raise the first violation recorded by the metadata checks."""
        if self.books.failures:
            raise self.books.failures[0]

    async def _check_always(self) -> None:
        while True:
            await trio.sleep(CHECK_S)
            self.events += 1
            indexes = range(self.world.partition_count)
            for index in self.random.sample(indexes, min(CHECKED_AT_ONCE, len(indexes))):
                self.checks.check(TOPIC, index, self.partition(index))

    # -- the end

    def _draw_minority(self) -> frozenset[int]:
        """Return less than half of the voters, of which at most one is a broker."""
        voters = list(self.books.voters)
        self.random.shuffle(voters)
        brokers = [node for node in voters if self.machines[node].config.is_broker]
        others = [node for node in voters if node not in brokers]
        return frozenset([*brokers[:1], *others][: (len(voters) - 1) // 2])

    async def _upgrade(self, nursery: trio.Nursery) -> None:
        """Restart every node of the old release with the new one, and raise all levels."""
        for machine in self.machines.values():
            machine.installed = SUPPORTED
            if machine.is_outdated:
                self.note("restart", machine.id)
                machine.stop()
                while machine.is_alive:  # noqa: ASYNC110
                    await trio.sleep(0.1)
                await self._wait_whole(nursery, trio.current_time() + HEAL_S)
        await self.operator.raise_all(trio.current_time() + HEAL_S)
        await self._heal(nursery)

    async def _heal(self, nursery: trio.Nursery, dead: frozenset[int] = frozenset()) -> None:
        """End all faults, except that ``dead`` nodes stay down; the cluster must then recover.

        In half of the cases it must recover without producers: nothing is appended until all
        replicas are in sync.
        """
        self.note("heal", *dead)
        owners = [client for client in self.clients if isinstance(client, TopicOwner)]
        answered = {owner.name: owner.answer_count + ANSWERS for owner in owners}
        self.world.is_quiet = self.random.random() < 0.5
        self.faults.mend_all()
        for node in sorted(dead):
            self.machines[node].kill(self.random)
        deadline = trio.current_time() + HEAL_S
        self._start_all(nursery, dead)
        await trio.sleep(SETTLE_S)
        await self._wait_whole(nursery, deadline, dead)
        self.world.is_quiet = False
        before = self.world.history.acknowledgement_count
        while self.world.history.acknowledgement_count < before + 3:
            demand(trio.current_time() < deadline, "producers do not go on")
            await trio.sleep(0.5)
        while waiting := [o.name for o in owners if o.answer_count < answered[o.name]]:
            demand(trio.current_time() < deadline, f"no answers for {waiting}")
            await trio.sleep(0.5)

    async def _wait_whole(
        self, nursery: trio.Nursery, deadline: float, dead: frozenset[int] = frozenset()
    ) -> None:
        """Start nodes that do not run, until all except ``dead`` ones serve and are in sync."""
        while not self._is_whole(dead):
            self._start_all(nursery, dead)
            demand(trio.current_time() < deadline, f"not whole after {HEAL_S} s")
            await trio.sleep(0.5)
            self.check()

    def _is_current(self, machine: SimMachine) -> bool:
        """Return whether a machine serves, with the committed voters and feature levels."""
        server = machine.server
        if server is None or not server.is_serving:
            return False
        quorum, features = server.core.quorum, server.core.publisher.image.features
        return (
            quorum.voters.ids == self.books.voters
            and quorum.kraft_version == self.books.kraft_version
            and features == self.books.image.features
        )

    def _start_all(self, nursery: trio.Nursery, dead: frozenset[int]) -> None:
        for machine in self.machines.values():
            if machine.id not in dead:
                machine.start(nursery)

    def _is_whole(self, dead: frozenset[int]) -> bool:
        """Return whether all machines except ``dead`` are current, and their replicas in sync."""
        image: MetadataImage = self.books.image
        living = [m for m in self.machines.values() if m.id not in dead]
        logs = (partition.log for machine in living for partition in machine.partitions())
        if any(log.writer.written_offset < log.end_offset for log in logs):
            return False  # Batches that waited for room on a disk are still queued.
        if sum(machine.is_active for machine in living) != 1:
            return False
        return all(map(self._is_current, living)) and all(
            set(partition.isr) - dead == set(partition.replicas) - dead
            and (bool(dead) or not partition.is_reassigning)
            for topic in image.topics.values()
            for partition in topic.partitions.values()
        )


def first(error: BaseException) -> BaseException:
    """Return the first exception in nested groups that is not a group."""
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    return error


def describe(sim: ReplicationSim) -> str:
    """Return the state of all partitions, for a failure report."""
    lines = [f"features {dict(sim.books.image.features)}"]
    lines += [
        f"n{machine.id} lives={machine.lives} alive={machine.is_alive} "
        f"serving={machine.is_serving} paused={machine.is_paused}"
        for machine in sim.machines.values()
    ]
    for topic in sim.books.image.topics.values():
        for index, partition in topic.partitions.items():
            lines.append(
                f"{topic.name}-{index}: leader={partition.leader} epoch={partition.leader_epoch} "
                f"replicas={partition.replicas} isr={partition.isr} elr={partition.elr}"
            )
            lines += [
                f"   {machine.id}: start={copy.log.log_start} end={copy.log.end_offset} "
                f"hw={copy.log.high_watermark} lso={copy.last_stable_offset} "
                f"leader={copy.leader_id} epoch={copy.leader_epoch} {copy.log.epochs.entries()}"
                for machine, copy in sim.checks.living(topic.name, index)
            ]
    return "\n".join(lines)


def simulate_replication(seed: int, steps: int = 40, *, stage: str = "") -> ReplicationSim:
    """Run one seed; raise ReplicationSimFailure, which names the seed, if a check fails.

    With ``stage``, this staged fault is repeated and no other fault happens; with the stage
    "sharing", there are the usual faults, in a small cluster with share members.
    """
    sim = staged_sim(seed, stage)
    sim.simulate(steps)
    return sim


def staged_sim(seed: int, stage: str = "") -> ReplicationSim:
    """Return a run that :func:`simulate_replication` would simulate."""
    sim = ReplicationSim(seed, is_sharing=stage == SHARING)
    if stage not in ("", SHARING):
        sim.faults.play_only(stage)
    return sim
