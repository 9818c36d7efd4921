"""Replication in one deterministic world, from one seed: brokers with real logs, a controller,
producers, and faults.

Processes are killed and started again, machines lose power unless they have the only copy of
something acknowledged, connections are cut, split into groups and slow, brokers are shut down in
order, partitions are reassigned. :mod:`kwire.simulation.replication.checks` looks at the brokers
all the time. When all faults are mended, all logs become equal and producers go on.
"""

from collections import deque
from random import Random
from typing import Final

import trio
import trio.testing

from kwire import attrs
from kwire.errors import KafkaError
from kwire.log.config import LogConfig
from kwire.raftmeta.metadata.image import PartitionImage
from kwire.records.build import New, batch
from kwire.records.header import parse
from kwire.replica.partition import ACKS_ALL, Partition
from kwire.simulation.clockwork import deterministic_trio
from kwire.simulation.replication.broker import SimLinks, SimReplicaBroker
from kwire.simulation.replication.checks import ReplicationChecks, demand
from kwire.simulation.replication.controller import SESSION_MS, SimController

NODES: Final = (1, 2, 3, 4)
REPLICAS: Final = 3
TOPIC: Final = "t"
PARTITIONS: Final = (1, 2, 2, 3, 4, 80)
"""The numbers of partitions, one of which a run draws."""
CHECKED_AT_ONCE: Final = 8
PRODUCERS: Final = 3
CHECK_S: Final = 0.05
LAG_MAX_S: Final = 2.0
HEAL_S: Final = 45.0
SESSION_S: Final = SESSION_MS / 1000
TRACE_LINES: Final = 60
CONFIG: Final = LogConfig(
    segment_bytes=2000,
    index_interval_bytes=300,
    retention_ms=-1,
    flush_ms=1_500,
    min_insync_replicas=2,
)


class ReplicationSimFailure(AssertionError):
    """A failed run: its seed and the broken invariant."""


@attrs.define(eq=False)
class ReplicationSim:
    """One run of the simulation."""

    seed: int
    random: Random = attrs.field(init=False)
    controller: SimController = attrs.field(init=False)
    links: SimLinks = attrs.field(init=False)
    brokers: dict[int, SimReplicaBroker] = attrs.field(init=False)
    checks: ReplicationChecks = attrs.field(init=False)
    partition_count: int = attrs.field(init=False)
    has_elr: bool = attrs.field(init=False)
    """Whether eligible leader replicas are finalized (KIP-966)."""
    last_acknowledged_at: float = 0.0
    trace: deque[str] = attrs.field(factory=lambda: deque(maxlen=TRACE_LINES))
    events: int = 0
    _count: int = 0
    _mended_at: float = float("-inf")
    _fragile: int = -1
    """The broker that lost power last, while it may be in an ISR."""

    def __attrs_post_init__(self) -> None:
        self.random = Random(self.seed)
        self.has_elr = self.random.random() < 0.5
        self.partition_count = self.random.choice(PARTITIONS)
        self.controller = SimController(Random(self.random.random()), has_elr=self.has_elr)
        self.links = SimLinks(Random(self.random.random()))
        self.brokers = {
            node: SimReplicaBroker(
                node,
                self.controller,
                self.links,
                Random(self.random.random()),
                CONFIG,
                LAG_MAX_S,
                lambda other: self.brokers[other],
            )
            for node in NODES
        }
        self.checks = ReplicationChecks(
            self.brokers, {index: {} for index in range(self.partition_count)}
        )

    def partition(self, index: int) -> PartitionImage:
        """Return a partition as the controller has it."""
        topic = self.controller.image.topic(TOPIC)
        assert topic is not None
        return topic.partitions[index]

    def note(self, *words: object) -> None:
        self.events += 1
        self.trace.append(f"{trio.current_time():9.3f}  " + " ".join(map(str, words)))

    # -- the run

    def simulate(self, steps: int) -> None:
        """Run; raise ReplicationSimFailure, which names the seed, if a check fails."""
        clock = trio.testing.MockClock(autojump_threshold=0)
        try:
            with deterministic_trio(self.seed):
                trio.run(self.run, steps, clock=clock)
        except Exception as error:
            story = "\n".join(self.trace)
            raise ReplicationSimFailure(
                f"seed {self.seed}, {steps} steps: {error!r}\n{story}\n{describe(self)}"
            ) from error

    async def run(self, steps: int) -> None:
        """Live through ``steps`` faults, then mend everything and check the end."""
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self.controller.run)
            for broker in self.brokers.values():
                broker.start(nursery)
            await self.controller.wait_image(
                lambda image: sum(b.is_active for b in image.brokers.values()) == len(NODES)
            )
            self.controller.create_topic(
                TOPIC, [self.random.sample(NODES, REPLICAS) for _ in range(self.partition_count)]
            )
            nursery.start_soon(self._check_always)
            for _ in range(PRODUCERS):
                nursery.start_soon(self._produce)
            for _ in range(steps):
                await trio.sleep(self.random.expovariate(1.0))
                self._act(nursery)
            await self._heal(nursery)
            nursery.cancel_scope.cancel()

    def _act(self, nursery: trio.Nursery) -> None:
        if self._is_calm_needed():
            self._start_fragile(nursery)
            return
        act, weight = zip(
            *(
                (self._kill, 3),
                (self._start, 5),
                (self._lose_power, 2),
                (self._cut, 2),
                (self._split, 2),
                (self._mend, 4),
                (self._slow, 1),
                (self._stop_in_order, 2),
                (self._reassign, 2),
            ),
            strict=True,
        )
        (chosen,) = self.random.choices(act, weight)
        chosen(nursery)

    def _draw(self, *, alive: bool) -> SimReplicaBroker | None:
        drawn = [broker for broker in self.brokers.values() if broker.is_alive == alive]
        return self.random.choice(drawn) if drawn else None

    def _kill(self, nursery: trio.Nursery) -> None:
        broker = self._draw(alive=True)
        if broker is not None:
            self.note("kill", broker.id)
            broker.kill()

    def _start(self, nursery: trio.Nursery) -> None:
        broker = self._draw(alive=False)
        if broker is not None and not broker.is_starting:
            self.note("start", broker.id)
            broker.start(nursery)

    def _lose_power(self, nursery: trio.Nursery) -> None:
        """Let a machine lose power, unless it has the only copy of something acknowledged."""
        broker = self._draw(alive=True)
        is_steady = not self.links.cut and trio.current_time() > self._mended_at + SESSION_S
        if broker is None or not (is_steady or self.has_elr):
            return  # Without eligible replicas the others may be about to leave the ISR.
        for index in range(self.partition_count):
            partition = self.partition(index)
            members = {*partition.isr, *partition.elr} - {broker.id}
            if not any(self._holds_all(node, index) for node in members):
                return
            if any(self.brokers[node].is_stopping for node in members):
                return
        # Until the broker is out of all ISRs nothing else fails: the others are the last resort.
        self._mend(nursery)
        self.note("power loss", broker.id)
        broker.lose_power()
        self._fragile = broker.id

    def _start_fragile(self, nursery: trio.Nursery) -> None:
        """Start a broker that lost power, perhaps before its session has ended."""
        broker = self.brokers[self._fragile]
        if not broker.is_alive and not broker.is_starting and self.random.random() < 0.5:
            self.note("start", broker.id)
            broker.start(nursery)

    def _is_calm_needed(self) -> bool:
        """Whether a broker that lost power may still count as in sync, or be eligible."""
        for index in range(self.partition_count):
            partition = self.partition(index)
            if self._fragile in (*partition.isr, *partition.elr, *partition.last_known_elr):
                return True
        self._fragile = -1
        return False

    def _holds_all(self, node: int, index: int) -> bool:
        """Whether a living broker has all that was acknowledged of a partition."""
        partition = self.brokers[node].partition(TOPIC, index)
        if partition is None:
            return False
        decoded = self.checks.contents.of(node, index, partition.log)
        return set(self.checks.acknowledged[index]) <= set(decoded.content)

    def _reassign(self, nursery: trio.Nursery) -> None:
        """Move a partition to other brokers, which may be down, or cancel a move."""
        index = self.random.randrange(self.partition_count)
        target: list[int] | None = self.random.sample(NODES, REPLICAS)
        if self.partition(index).is_reassigning and self.random.random() < 0.3:
            target = None
        self.note("reassign", index, target)
        self.controller.reassign(TOPIC, index, target)

    def _cut(self, nursery: trio.Nursery) -> None:
        sender, receiver = self.random.sample((0, *NODES), 2)
        pairs = [(sender, receiver)]
        if self.random.random() < 0.6:
            pairs.append((receiver, sender))
        self.note("cut", *pairs)
        self.links.cut.update(pairs)

    def _split(self, nursery: trio.Nursery) -> None:
        """Cut all connections between two groups of nodes; the controller is in one of them."""
        nodes = (0, *NODES)
        group = self.random.sample(nodes, self.random.randint(1, 3))
        others = [node for node in nodes if node not in group]
        self.note("split", group, others)
        self.links.cut.update((a, b) for a in group for b in others)
        self.links.cut.update((b, a) for a in group for b in others)

    def _mend(self, nursery: trio.Nursery) -> None:
        if self.links.cut or self.links.slow:
            self.note("mend")
            self._mended_at = trio.current_time()
            self.links.cut.clear()
            self.links.slow.clear()

    def _slow(self, nursery: trio.Nursery) -> None:
        node = self.random.choice((0, *NODES))
        self.note("slow", node)
        self.links.slow.add(node)

    def _stop_in_order(self, nursery: trio.Nursery) -> None:
        broker = self._draw(alive=True)
        if broker is not None:
            self.note("stop", broker.id)
            broker.is_stopping = True

    # -- producers

    async def _produce(self) -> None:
        while True:
            await trio.sleep(self.random.uniform(0.0, 0.3))
            index = self.random.randrange(self.partition_count)
            partition = self._draw_leader(index)
            if partition is not None:
                await self._produce_one(*partition, index)

    def _draw_leader(self, index: int) -> tuple[SimReplicaBroker, Partition] | None:
        """Return a broker that takes itself for the leader; several may for a while."""
        leaders = []
        for broker in self.brokers.values():
            partition = broker.partition(TOPIC, index)
            if partition is not None and partition.leader is not None:
                leaders.append((broker, partition))
        return self.random.choice(leaders) if leaders else None

    async def _produce_one(
        self, broker: SimReplicaBroker, partition: Partition, index: int
    ) -> None:
        services, life = broker.services, broker.lives
        assert services is not None
        values = []
        for _ in range(self.random.randint(1, 3)):
            self._count += 1
            values.append(b"%d" % self._count)
        data = batch([New(None, value) for value in values], timestamp_ms=broker.now_ms())
        replicas = services.replicas
        try:
            produced = replicas.append(partition, data, parse(data), ACKS_ALL, broker.now_ms())
            with trio.fail_after(10):
                await replicas.wait_acknowledged(
                    partition, produced, ACKS_ALL, trio.current_time() + 8
                )
        except (KafkaError, trio.TooSlowError):
            return
        if broker.lives != life:
            return
        self.events += 1
        self.last_acknowledged_at = trio.current_time()
        for offset, value in enumerate(values, produced.base_offset):
            self.checks.acknowledged[index][offset] = produced.leader_epoch, value

    # -- checks

    async def _check_always(self) -> None:
        while True:
            await trio.sleep(CHECK_S)
            self.events += 1
            indexes = range(self.partition_count)
            for index in self.random.sample(indexes, min(CHECKED_AT_ONCE, len(indexes))):
                self.checks.check(TOPIC, index, self.partition(index))

    # -- the end

    async def _heal(self, nursery: trio.Nursery) -> None:
        """Mend all faults; the cluster must recover by itself."""
        self.note("heal")
        self.links.cut.clear()
        self.links.slow.clear()
        deadline = trio.current_time() + HEAL_S
        healed_at = trio.current_time()
        while not self._is_whole(healed_at):
            # A broker that has announced its shutdown goes through with it.
            for broker in self.brokers.values():
                if not broker.is_alive and not broker.is_starting:
                    broker.start(nursery)
            demand(trio.current_time() < deadline, f"not whole after {HEAL_S} s: {describe(self)}")
            await trio.sleep(0.5)

    def _is_whole(self, healed_at: float) -> bool:
        partitions = [self.partition(index) for index in range(self.partition_count)]
        return self.last_acknowledged_at > healed_at + 5 and all(
            set(partition.isr) == set(partition.replicas) and not partition.is_reassigning
            for partition in partitions
        )


def describe(sim: ReplicationSim) -> str:
    """Return the state of all partitions, for a failure."""
    topic = sim.controller.image.topic(TOPIC)
    if topic is None:
        return ""
    lines = [f"acknowledged last at {sim.last_acknowledged_at:.1f}"]
    for index, partition in topic.partitions.items():
        lines.append(
            f"{index}: leader={partition.leader} epoch={partition.leader_epoch} "
            f"replicas={partition.replicas} isr={partition.isr} elr={partition.elr}"
        )
        lines += [
            f"   {broker.id}: end={copy.log.end_offset} hw={copy.log.high_watermark} "
            f"leader={copy.leader_id} epoch={copy.leader_epoch} {copy.log.epochs.entries()}"
            for broker, copy in sim.checks.living(TOPIC, index)
        ]
    return "\n".join(lines)


def simulate_replication(seed: int, steps: int = 40) -> ReplicationSim:
    """Run one seed; raise ReplicationSimFailure, which names the seed, if a check fails."""
    sim = ReplicationSim(seed)
    sim.simulate(steps)
    return sim
