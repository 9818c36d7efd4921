"""The faults of the simulated cluster; each is drawn from the run's source of randomness.

Rule: a fault may destroy anything whose loss the cluster promises to survive, and no more. So a
machine loses power only while other in-sync or eligible replicas have all acknowledged records, and
nothing else fails until the machine has left all ISRs.
"""

import errno
from collections.abc import Iterator
from random import Random
from typing import Final

import attrs
import trio

from kwire.codec.messages.alter_partition_reassignments import AlterPartitionReassignmentsRequest
from kwire.raftmeta.controller.features import SUPPORTED
from kwire.raftmeta.metadata.image import PartitionImage
from kwire.raftmeta.storage.levels import ELR
from simulation.disk import PLENTY
from simulation.replication.checks import TOPIC, ReplicationChecks
from simulation.replication.clients import SimClient, World
from simulation.replication.controller_faults import ControllerFaults
from simulation.replication.lease_faults import LeaseFaults
from simulation.replication.metadata_checks import Books
from simulation.replication.node import SimMachine
from simulation.replication.settings import NODES, REPLICAS, SESSION_S
from simulation.replication.staged_faults import StagedFaults
from simulation.replication.stages.scene import Scene

CLOCK_JUMPS_S: Final = (5, 60, 600, 3_600)
"""The seconds by which a wall clock is set forward or back: less than producers' expiration."""
_ADMIN: Final = -900


@attrs.define(eq=False)
class Faults:
    """The faults of one run."""

    world: World
    books: Books
    random: Random
    checks: ReplicationChecks
    staged: StagedFaults = attrs.field(init=False)
    controllers: ControllerFaults = attrs.field(init=False)
    leases: LeaseFaults = attrs.field(init=False)
    is_staged_only: bool = False
    """True if staged faults are the only faults of this run."""
    _mended_at: float = float("-inf")
    _fragile: int = -1
    """The machine that lost power last, as long as it may be in an ISR; else -1."""

    def __attrs_post_init__(self) -> None:
        self.staged = StagedFaults(Scene(self.world, self.books, self.random, self.checks))
        self.controllers = ControllerFaults(self.world, self.random)
        self.leases = LeaseFaults(self.world, self.random)

    @property
    def has_elr(self) -> bool:
        """True if eligible leader replicas are enabled (KIP-966)."""
        return self.books.image.features.get(ELR, 0) > 0

    @property
    def machines(self) -> dict[int, SimMachine]:
        return self.world.machines

    def play_only(self, stage: str) -> None:
        """Repeat this staged fault, and cause no other."""
        self.staged.names, self.is_staged_only = (stage,), True

    def act(self, nursery: trio.Nursery) -> None:
        """Cause one fault, or end some."""
        if self.staged.is_running:
            return
        if self.is_staged_only:
            self._stage(nursery)
            return
        if self._is_calm_needed():
            self._start_fragile(nursery)
            return
        act, weight = zip(
            *(
                (self._kill, 3),
                (self._start, 6),
                (self._lose_power, 2),
                (self._pause, 2),
                (self._cut, 2),
                (self._split, 2),
                (self._mend, 4),
                (self._slow, 1),
                (self._lose_messages, 1),
                (self.controllers.cut_off, 1),
                (self._stop_in_order, 2),
                (self._stop_followers, 1),
                (self._reassign, 2),
                (self.controllers.resign, 1),
                (self._break_directory, 1),
                (self._fill_disk, 1),
                (self._install, 2),
                (self._set_clock, 1),
                (self.leases.suspend, 2),
                (self.leases.refuse, 2),
                (self._stage, 4),
            ),
            strict=True,
        )
        (chosen,) = self.random.choices(act, weight)
        chosen(nursery)

    def _stage(self, nursery: trio.Nursery) -> None:
        nursery.start_soon(self.staged.run, nursery)

    def _draw(self, *, alive: bool) -> SimMachine | None:
        drawn = [machine for machine in self.machines.values() if machine.is_alive == alive]
        return self.random.choice(drawn) if drawn else None

    # -- processes

    def _kill(self, nursery: trio.Nursery) -> None:
        machine = self._draw(alive=True)
        if machine is not None:
            self.world.note("kill", machine.id)
            machine.kill(self.random)

    def _start(self, nursery: trio.Nursery) -> None:
        machine = self._draw(alive=False)
        if machine is not None:
            self.world.note("start", machine.id)
            machine.start(nursery)

    def _pause(self, nursery: trio.Nursery) -> None:
        """Pause a process for some time, often for longer than its session."""
        machine = self._draw(alive=True)
        if machine is not None and not machine.is_paused:
            nursery.start_soon(self._hold, machine, self.random.uniform(0.2, 3 * SESSION_S))

    async def _hold(self, machine: SimMachine, seconds: float) -> None:
        gate = machine.gate
        self.world.note("pause", machine.id, round(seconds, 1))
        gate.shut()
        try:
            await trio.sleep(seconds)
        finally:
            gate.open()
        self.world.note("continue", machine.id)

    def _stop_in_order(self, nursery: trio.Nursery) -> None:
        machine = self._draw(alive=True)
        if machine is not None:
            self.world.note("stop", machine.id)
            machine.stop()

    def _stop_followers(self, nursery: trio.Nursery) -> None:
        """Cleanly shut down the brokers of all followers of a partition."""
        state = self.books.image.partition(TOPIC, self.random.randrange(self.world.partition_count))
        followers = [] if state is None else [n for n in state.isr if n != state.leader]
        self.world.note("stop followers", *followers)
        for node in followers:
            self.machines[node].stop()

    def _install(self, nursery: trio.Nursery) -> None:
        """Install the new release on a machine, and shut its process down cleanly or kill it."""
        machines = [m for m in self.machines.values() if m.installed != SUPPORTED]
        if machines:
            machine = self.random.choice(machines)
            self.world.note("install", machine.id)
            machine.installed = SUPPORTED
            if self.random.random() < 0.5:
                machine.stop()
            elif machine.is_alive:
                machine.kill(self.random)

    def _set_clock(self, nursery: trio.Nursery) -> None:
        """Set the wall clock of one machine or of all machines forward or back."""
        machines = list(self.machines.values())
        chosen = machines if self.random.random() < 0.5 else [self.random.choice(machines)]
        seconds = self.random.choice((-1, 1)) * self.random.choice(CLOCK_JUMPS_S)
        self.world.note("set clock", seconds, *(machine.id for machine in chosen))
        for machine in chosen:
            machine.clock.ahead_ms += 1000 * seconds

    # -- power

    def _lose_power(self, nursery: trio.Nursery) -> None:
        """Let a machine lose power, unless it has the only copy of something acknowledged."""
        machine = self._draw(alive=True)
        mended_at = max(self._mended_at, self.controllers.mended_at)
        is_steady = self.world.wire.is_whole and trio.current_time() > mended_at + SESSION_S
        if machine is None or not (is_steady or self.has_elr):
            return  # Without ELR, the other replicas may be about to leave the ISR.
        for topic, index, partition in self._partitions():
            members = {*partition.isr, *partition.elr} - {machine.id}
            if not any(self.checks.has_all(node, topic, index) for node in members):
                return
            if any(self.machines[n].is_stopping or self.machines[n].is_paused for n in members):
                return
            disks = [disk for n in members for disk in self.machines[n].disks]
            if any(failure.times > 0 for disk in disks for failure in disk._failures):
                return
        # Nothing else fails until the broker has left all ISRs: the others have the only copies.
        self._mend(nursery)
        self.world.note("power loss", machine.id)
        machine.lose_power(self.random)
        self._fragile = machine.id

    def _start_fragile(self, nursery: trio.Nursery) -> None:
        """Start a machine that lost power, perhaps before its session has ended."""
        machine = self.machines[self._fragile]
        if not machine.is_alive and self.random.random() < 0.5:
            self.world.note("start", machine.id)
            machine.start(nursery)

    def _is_calm_needed(self) -> bool:
        """Return whether the broker that lost power may still be in sync or eligible."""
        for _, _, partition in self._partitions():
            if self._fragile in (*partition.isr, *partition.elr, *partition.last_known_elr):
                return True
        self._fragile = -1
        return False

    def _partitions(self) -> Iterator[tuple[str, int, PartitionImage]]:
        for topic in self.books.image.topics.values():
            for index, partition in topic.partitions.items():
                yield topic.name, index, partition

    # -- disks

    def _break_directory(self, nursery: trio.Nursery) -> None:
        """Let a log directory fail; it works again after a restart of its process."""
        machine = self._draw(alive=True)
        if machine is not None and machine.disks:
            index = self.random.randrange(len(machine.disks))
            kind = self.random.choice(("write", "sync", "read", "*"))
            self.world.note("directory fails", machine.id, index, kind)
            machine.disks[index].fail_at(kind, OSError(errno.EIO, "input/output error"), times=1)

    def _fill_disk(self, nursery: trio.Nursery) -> None:
        """Fill a volume for a while."""
        machine = self._draw(alive=True)
        if machine is not None and machine.disks:
            nursery.start_soon(self._keep_full, machine, self.random.uniform(0.5, 5.0))

    async def _keep_full(self, machine: SimMachine, seconds: float) -> None:
        disk = self.random.choice(machine.disks)
        self.world.note("full disk", machine.id, round(seconds, 1))
        disk.capacity = disk._used_bytes() + self.random.randrange(3000)
        await trio.sleep(seconds)
        for survivor in machine.disks:  # The process may have been restarted.
            survivor.capacity = PLENTY

    # -- connections

    def _cut(self, nursery: trio.Nursery) -> None:
        sender, receiver = self.random.sample(list(self.machines), 2)
        pairs = [(sender, receiver)]
        if self.random.random() < 0.6:
            pairs.append((receiver, sender))
        self.world.note("cut", *pairs)
        self.world.wire.cut.update(pairs)

    def _split(self, nursery: trio.Nursery) -> None:
        """Cut all connections between two groups of machines; clients still reach both groups."""
        nodes = list(self.machines)
        group = self.random.sample(nodes, self.random.randint(1, len(nodes) - 1))
        others = [node for node in nodes if node not in group]
        self.world.note("split", group, others)
        self.world.wire.cut.update((a, b) for a in group for b in others)
        self.world.wire.cut.update((b, a) for a in group for b in others)

    def _mend(self, nursery: trio.Nursery) -> None:
        wire = self.world.wire
        if wire.slow or not wire.is_whole:
            self.world.note("mend")
            self._mended_at = trio.current_time()
            wire.calm()

    def _slow(self, nursery: trio.Nursery) -> None:
        node = self.random.choice(list(self.machines))
        self.world.note("slow", node)
        self.world.wire.slow.add(node)

    def _lose_messages(self, nursery: trio.Nursery) -> None:
        """Let the network lose a share of all messages."""
        self.world.wire.loss = self.random.choice((0.01, 0.1))
        self.world.note("lose messages", self.world.wire.loss)

    def mend_all(self) -> None:
        """End all faults; processes that do not run stay down."""
        self.world.wire.calm()
        for machine in self.machines.values():
            machine.gate.open()
            for disk in machine.disks:
                disk.mend()
            if any(disk.failed is not None for disk in machine.disks):
                machine.kill(self.random)  # Only a restarted process uses the directory.

    # -- administration

    def _reassign(self, nursery: trio.Nursery) -> None:
        """Move a partition to other brokers, which may be down, or cancel a move."""
        nursery.start_soon(self._ask_reassignment)

    async def _ask_reassignment(self) -> None:
        index = self.random.randrange(self.world.partition_count)
        target: list[int] | None = self.random.sample(NODES, REPLICAS)
        state = self.books.image.partition(TOPIC, index)
        if state is not None and state.is_reassigning and self.random.random() < 0.3:
            target = None
        self.world.note("reassign", index, target)
        topic = AlterPartitionReassignmentsRequest.ReassignableTopic
        partition = topic.ReassignablePartition(partition_index=index, replicas=target)
        request = AlterPartitionReassignmentsRequest(
            topics=[topic(name=TOPIC, partitions=[partition])], timeout_ms=3_000
        )
        client = SimClient(_ADMIN, self.world, self.random)
        await client.call(client.any_broker(), request)
