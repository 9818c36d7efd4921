"""A whole cluster in one deterministic world, from one seed: raft, controllers, brokers, clients.

The real services run under trio with a clock that jumps, a scheduler whose choices are seeded, and
threads that are tasks; network and disks are simulated. Rounds of faults (crashes that lose
unsynced data, controlled stops, cuts in one direction, losses, slow disks, leaders that resign)
are each followed by calm, or by a period with a minority dead; in both, every client's requests
must be answered within a bound. :mod:`simulation.cluster.checks` keeps the books.
"""

from collections.abc import Callable, Collection
from random import Random
from typing import Final, TypeVar, TypeVarTuple
from unittest.mock import patch
from zlib import crc32

import trio
from trio.testing import MockClock

from kwire import attrs
from kwire.errors import BrokerIdNotRegistered
from simulation.cluster.checks import Books
from simulation.cluster.clients import Client
from simulation.cluster.network import Wire
from simulation.cluster.node import Process, config_of
from simulation.raft.sim import SimFailure
from simulation.raft.storage import SimStorage
from simulation.scheduler import Violation, deterministic_trio

Arguments = TypeVarTuple("Arguments")
R = TypeVar("R")

PROGRESS_SECONDS: Final = 60.0
"""The time in which every client gets answers once a majority of the voters is connected.

It covers a dead broker's session (9 s), a registration that waits for it, and elections.
"""
CLIENTS: Final = 8


@attrs.define(eq=False)
class Machine:
    """A node with its disk, and its process while that runs."""

    id: int
    disk: SimStorage
    life: int = 0
    process: Process | None = None
    scope: trio.CancelScope | None = None


@attrs.define(eq=False)
class ClusterSim:
    """One simulated cluster."""

    seed: int
    random: Random
    wire: Wire
    machines: dict[int, Machine]
    voters: list[int]
    books: Books
    clients: list[Client]
    lines: list[str]
    sync_max_s: float = 0.005
    _nursery: trio.Nursery | None = None

    @classmethod
    def of(cls, seed: int) -> "ClusterSim":
        """Make the voters, brokers and clients that follow from the seed."""
        random = Random(seed)
        voters = list(range(1, 1 + random.choice((1, 3, 3, 3, 5))))
        observers = random.randrange(3)
        machines = {n: Machine(n, SimStorage()) for n in range(1, 1 + len(voters) + observers)}
        lines: list[str] = []
        disks = {n: machine.disk for n, machine in machines.items()}

        def note(node_id: int, what: str) -> None:
            lines.append(f"{trio.current_time():9.4f} n{node_id} {what}")

        books = Books(seed, voters, disks, note)
        sim = cls(seed, random, Wire(Random(f"{seed} wire")), machines, voters, books, [], lines)
        for n in range(CLIENTS):
            client = Client(f"topic-{n}", Random(f"{seed} client {n}"), books, sim._brokers)
            sim.clients.append(client)
        return sim

    def _brokers(self) -> list[Process]:
        """Return the processes whose brokers take requests."""
        processes = [m.process for m in self.machines.values() if m.process is not None]
        return [process for process in processes if process.is_serving]

    # Running --------------------------------------------------------------------------------
    def run(self, rounds: int) -> None:
        """Run rounds of faults and calm."""
        threads = patch.object(trio.to_thread, "run_sync", self._in_a_thread)
        with deterministic_trio(self.seed), threads:
            trio.run(self._main, rounds, clock=MockClock(autojump_threshold=0))

    async def _in_a_thread(
        self, work: Callable[[*Arguments], R], *arguments: *Arguments, **_: object
    ) -> R:
        """Do a thread's work after a random delay; cancelled during the delay, it is not done."""
        await trio.sleep(self.sync_max_s * self.random.random())
        return work(*arguments)

    async def _main(self, rounds: int) -> None:
        async with trio.open_nursery() as nursery:
            self._nursery = nursery
            for machine in self.machines.values():
                self.start(machine)
            for client in self.clients:
                nursery.start_soon(client.run)
            await self.calm()
            for _ in range(rounds):
                dead = self._choose_dead() if self.random.random() < 0.4 else frozenset[int]()
                await self.chaos(2 + 15 * self.random.random(), dead)
                await self.calm(dead)
                if dead:
                    await self.calm()
            nursery.cancel_scope.cancel()

    def check(self) -> None:
        """Raise the first violation that the books have recorded."""
        if self.books.failures:
            raise self.books.failures[0]

    # Processes ------------------------------------------------------------------------------
    def start(self, machine: Machine) -> None:
        """Start a machine's process unless it is running."""
        if machine.process is None and self._nursery is not None:
            machine.life += 1
            config = config_of(machine.id, self.voters)
            machine.process = Process(config, machine.disk, self.wire, self.books, machine.life)
            machine.scope = trio.CancelScope()
            self._nursery.start_soon(self._live, machine, machine.process, machine.scope)
            self.books.note(machine.id, "starts")

    async def _live(self, machine: Machine, process: Process, scope: trio.CancelScope) -> None:
        try:
            with scope:
                await process.run()
        except* BrokerIdNotRegistered:  # The process ends.
            self.books.note(machine.id, "ends unregistered")
        finally:
            if machine.process is process:
                machine.process = None

    def crash(self, machine: Machine, *, power: bool = True) -> None:
        """End a machine's process; with ``power``, unsynced data is lost."""
        if machine.process is None or machine.scope is None:
            return
        self.books.note(machine.id, "crashes")
        machine.scope.cancel()
        machine.process = None
        # Writes that the process makes between now and its end must not reach the disk.
        machine.disk = self.books.disks[machine.id] = machine.disk.survivor(
            self.random, power=power
        )

    async def stop(self, machine: Machine) -> None:
        """Shut down a machine's process in a controlled way."""
        process, scope = machine.process, machine.scope
        if process is None or scope is None or not process.is_serving:
            return
        self.books.note(machine.id, "stops")
        try:
            await process.stop()
        finally:
            if machine.process is process:
                self.crash(machine, power=False)

    # Faults and calm ------------------------------------------------------------------------
    def _choose_dead(self) -> frozenset[int]:
        """Crash a minority of the voters and perhaps one other broker; return their ids."""
        count = (len(self.voters) - 1) // 2
        others = [n for n in self.machines if n not in self.voters]
        extra = self.random.sample(others, min(len(others), self.random.randrange(2)))
        dead = frozenset((*self.random.sample(self.voters, count), *extra))
        for node_id in sorted(dead):
            self.crash(self.machines[node_id])
        return dead

    async def chaos(self, seconds: float, dead: Collection[int]) -> None:
        """Cause faults of all kinds for a time; nodes in ``dead`` stay down."""
        until = trio.current_time() + seconds
        self.wire.loss = self.random.choice((0.0, 0.0, 0.01, 0.1))
        self.wire.delay_max_s = self.random.choice((0.002, 0.02, 0.2))
        self.sync_max_s = self.random.choice((0.001, 0.01, 0.2))
        pace = 0.05 + 0.6 * self.random.random()
        alive = [m for m in self.machines.values() if m.id not in dead]
        async with trio.open_nursery() as nursery:
            while trio.current_time() < until:
                await trio.sleep(pace * self.random.random())
                self._disturb(self.random.choice(alive), nursery)
                self.check()
            nursery.cancel_scope.cancel()

    def _disturb(self, machine: Machine, nursery: trio.Nursery) -> None:
        dice = self.random.random()
        if dice < 0.2:
            if machine.process is None:
                self.start(machine)
            else:
                self.crash(machine, power=self.random.random() < 0.7)
        elif dice < 0.35:
            both, inwards = self.random.random() < 0.5, self.random.random() < 0.5
            self.wire.isolate(
                machine.id,
                list(self.machines),
                inwards=both or inwards,
                outwards=both or not inwards,
            )
            self.books.note(machine.id, f"isolated both={both} inwards={inwards}")
        elif dice < 0.5:
            self.wire.cut.clear()
        elif dice < 0.6:
            for active in self._active():
                self.books.note(active.config.node_id, "resigns")
                active.quorum.resign(active.quorum.leader().epoch)
        elif dice < 0.65:
            nursery.start_soon(self.stop, machine)
        elif dice < 0.75 and not self.wire.hidden:
            for active in self._active():
                node_id = active.config.node_id
                self.books.note(node_id, "is active and out of reach")
                self.wire.hidden.add(node_id)
                nursery.start_soon(self._find_again, node_id)

    async def _find_again(self, node_id: int) -> None:
        """Reconnect a hidden node after 3 to 6 s.

        Another controller has been elected by then, and clients may still wait for the old one.
        """
        await trio.sleep(3 + 3 * self.random.random())
        self.wire.hidden.discard(node_id)

    def _active(self) -> list[Process]:
        """Return the processes whose own controller is active; it may be stale."""
        processes = [machine.process for machine in self.machines.values()]
        return [p for p in processes if p is not None and p.controller.is_active]

    async def calm(self, dead: Collection[int] = ()) -> None:
        """Stop all faults, but leave ``dead`` down; every client must get answers in time."""
        self.wire.calm()
        self.sync_max_s = 0.005
        before = {client.name: client.acknowledged for client in self.clients}
        deadline = trio.current_time() + PROGRESS_SECONDS
        while True:
            for machine in self.machines.values():
                if machine.id not in dead:
                    self.start(machine)
            await trio.sleep(0.25)
            self.check()
            waiting = [c.name for c in self.clients if c.acknowledged - before[c.name] < 2]
            if not waiting:
                break
            if trio.current_time() > deadline:
                raise Violation(f"no answer for {waiting} with {sorted(dead)} dead")
        if not dead:
            await self._check_agreement(deadline)

    async def _check_agreement(self, deadline: float) -> None:
        """Wait until every broker serves and one controller is active; Violation after that."""
        while True:
            active, serving = len(self._active()), len(self._brokers())
            if active == 1 and serving == len(self.machines):
                return
            if trio.current_time() > deadline:
                raise Violation(f"{active} are active, {serving} serve in calm")
            for machine in self.machines.values():
                self.start(machine)
            await trio.sleep(0.25)
            self.check()

    # Reporting ------------------------------------------------------------------------------
    @property
    def digest(self) -> int:
        """Checksum of the whole trace."""
        return crc32("\n".join(self.lines).encode())

    def describe(self, lines: int = 200) -> str:
        """Return the text for a failure: the seed and the last lines of the trace."""
        text = "\n".join(self.lines[-lines:])
        return f"seed={self.seed} voters={self.voters} nodes={sorted(self.machines)}\n{text}"


def simulate_cluster(seed: int, rounds: int) -> ClusterSim:
    """Run one seed; raise SimFailure with the trace if an invariant does not hold."""
    sim = ClusterSim.of(seed)
    try:
        sim.run(rounds)
        sim.check()
    except Exception as error:
        cause = sim.books.failures[0] if sim.books.failures else _first(error)
        kind = type(cause).__name__
        raise SimFailure(f"{kind}: {cause}\n{sim.describe()}\n{kind}: {cause}") from error
    return sim


def _first(error: BaseException) -> BaseException:
    """Return the first plain exception in a group."""
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    return error
