"""Replication in one deterministic world, from one seed: brokers with real logs, a controller,
producers, and faults.

Processes are killed and started again, machines that are no leader's last resort lose power,
connections are cut and slow, brokers are shut down in order. Checked all the time (invariants 13,
14, 21 to 25, 28 to 31): a record that acks=all acknowledged is at its offset in the log of every
leader that the controller has elected and every member of the committed ISR; the logs of two
replicas are equal below the smaller of their high watermarks; a high watermark does not move back
while a broker leads in an epoch. When all faults are mended, all logs become equal and producers
go on.
"""

from collections import deque
from collections.abc import Iterator
from random import Random
from typing import Final

import attrs
import trio
import trio.testing

from kwire.errors import KafkaError
from kwire.log.config import LogConfig
from kwire.log.partition_log import PartitionLog
from kwire.records.build import New, batch
from kwire.records.header import headers, parse
from kwire.records.iterate import records
from kwire.replica.partition import ACKS_ALL, Partition
from kwire.simulation.clockwork import deterministic_trio
from kwire.simulation.replication.broker import SimLinks, SimReplicaBroker
from kwire.simulation.replication.controller import SimController

NODES: Final = (1, 2, 3)
TOPIC: Final = "t"
PARTITIONS: Final = 2
PRODUCERS: Final = 3
CHECK_S: Final = 0.05
LAG_MAX_S: Final = 4.0
HEAL_S: Final = 90.0
TRACE_LINES: Final = 60
CONFIG: Final = LogConfig(
    segment_bytes=2000,
    index_interval_bytes=300,
    retention_ms=-1,
    flush_ms=1_500,
    min_insync_replicas=2,
)
Content = dict[int, tuple[int, bytes]]
"""The epoch and the value of each record, by offset."""


class ReplicationSimFailure(AssertionError):
    """A failed run: its seed and the broken invariant."""


def demand(condition: bool, text: str) -> None:
    """Raise AssertionError unless an invariant holds."""
    if not condition:
        raise AssertionError(text)


def content(log: PartitionLog) -> Content:
    """Read all records of a log."""
    contents: Content = {}
    offset = log.start_offset
    while offset < log.writer.written_offset:
        region = log.read(offset, 1 << 20, end_offset=log.writer.written_offset)
        data = bytes(region.read())
        region.close()
        for position, header in headers(data):
            for record in records(data, position, header):
                contents[record.offset] = header.leader_epoch, bytes(record.value or b"")
            offset = header.next_offset
    return contents


@attrs.define(eq=False)
class ReplicationSim:
    """One run of the simulation."""

    seed: int
    random: Random = attrs.field(init=False)
    controller: SimController = attrs.field(init=False)
    links: SimLinks = attrs.field(init=False)
    brokers: dict[int, SimReplicaBroker] = attrs.field(init=False)
    acknowledged: dict[int, Content] = attrs.field(init=False)
    """The records of each partition that acks=all acknowledged."""
    last_acknowledged_at: float = 0.0
    trace: deque[str] = attrs.field(factory=lambda: deque(maxlen=TRACE_LINES))
    events: int = 0
    _watermarks: dict[tuple[int, int, int, int], int] = attrs.field(factory=dict)
    """The high watermark by broker, life, partition and leader epoch."""
    _count: int = 0
    _fragile: int = -1
    """The broker that lost power last, while it may be in an ISR."""

    def __attrs_post_init__(self) -> None:
        self.random = Random(self.seed)
        self.controller = SimController(Random(self.random.random()))
        self.links = SimLinks(Random(self.random.random()))
        self.acknowledged = {index: {} for index in range(PARTITIONS)}
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

    def note(self, *words: object) -> None:
        self.events += 1
        self.trace.append(f"{trio.current_time():9.3f}  " + " ".join(map(str, words)))

    # -- the run

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
                TOPIC, [self.random.sample(NODES, len(NODES)) for _ in range(PARTITIONS)]
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
            return
        act, weight = zip(
            *(
                (self._kill, 3),
                (self._start, 5),
                (self._lose_power, 1),
                (self._cut, 3),
                (self._mend, 4),
                (self._slow, 1),
                (self._stop_in_order, 1),
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
        """Let a machine lose power that is in no ISR, or not the only one in any."""
        broker = self._draw(alive=True)
        if broker is None:
            return
        topic = self.controller.image.topic(TOPIC)
        assert topic is not None
        for index, partition in topic.partitions.items():
            others = [node for node in partition.isr if node != broker.id]
            if not any(self._holds_all(node, index) for node in others):
                return
            if any(self.brokers[node].is_stopping for node in others):
                return
        # Until the broker is out of all ISRs nothing else fails: the others are the last resort
        # (KIP-966 is for the rest).
        self._mend(nursery)
        self.note("power loss", broker.id)
        broker.lose_power()
        self._fragile = broker.id

    def _is_calm_needed(self) -> bool:
        """Whether a broker that lost power may still count as in sync."""
        topic = self.controller.image.topic(TOPIC)
        assert topic is not None
        if any(self._fragile in partition.isr for partition in topic.partitions.values()):
            return True
        self._fragile = -1
        return False

    def _holds_all(self, node: int, index: int) -> bool:
        """Whether a living broker has all that was acknowledged of a partition."""
        partition = self.brokers[node].partition(TOPIC, index)
        return partition is not None and set(self.acknowledged[index]) <= set(
            content(partition.log)
        )

    def _cut(self, nursery: trio.Nursery) -> None:
        sender, receiver = self.random.sample((0, *NODES), 2)
        pairs = [(sender, receiver)]
        if self.random.random() < 0.6:
            pairs.append((receiver, sender))
        self.note("cut", *pairs)
        self.links.cut.update(pairs)

    def _mend(self, nursery: trio.Nursery) -> None:
        if self.links.cut or self.links.slow:
            self.note("mend")
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
            index = self.random.randrange(PARTITIONS)
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
            self.acknowledged[index][offset] = produced.leader_epoch, value

    # -- checks

    async def _check_always(self) -> None:
        while True:
            await trio.sleep(CHECK_S)
            for index in range(PARTITIONS):
                self._check(index)

    def _living(self, index: int) -> Iterator[tuple[SimReplicaBroker, Partition]]:
        for broker in self.brokers.values():
            partition = broker.partition(TOPIC, index)
            if partition is not None:
                yield broker, partition

    def _check(self, index: int) -> None:
        self.events += 1
        topic = self.controller.image.topic(TOPIC)
        assert topic is not None
        committed = topic.partitions[index]
        logs: list[tuple[int, int, Content]] = []
        leaders: dict[int, int] = {}
        for broker, partition in self._living(index):
            log = partition.log
            logs.append((broker.id, log.high_watermark, content(log)))
            if partition.leader is not None:
                epoch = partition.leader.leader_epoch
                demand(epoch not in leaders, f"two leaders in epoch {epoch}")
                leaders[epoch] = broker.id
                key = broker.id, broker.lives, index, epoch
                before = self._watermarks.get(key, 0)
                demand(log.high_watermark >= before, f"high watermark of {broker.id} moved back")
                self._watermarks[key] = log.high_watermark
        for node, _, contents in logs:
            if node in committed.isr:
                self._check_complete(index, node, contents)
        for place, (node, watermark, own) in enumerate(logs):
            for other, other_watermark, others in logs[:place]:
                end = min(watermark, other_watermark)
                for offset in range(end):
                    demand(
                        own.get(offset) == others.get(offset),
                        f"partition {index} offset {offset} below both high watermarks: "
                        f"{node} has {own.get(offset)}, {other} has {others.get(offset)}",
                    )

    def _check_complete(self, index: int, node: int, contents: Content) -> None:
        for offset, record in self.acknowledged[index].items():
            demand(
                contents.get(offset) == record,
                f"partition {index}: {node} is in sync and has {contents.get(offset)} at {offset}, "
                f"acknowledged was {record}",
            )

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
            demand(trio.current_time() < deadline, f"not whole after {HEAL_S} s: {self._state()}")
            await trio.sleep(0.5)

    def _is_whole(self, healed_at: float) -> bool:
        topic = self.controller.image.topic(TOPIC)
        assert topic is not None
        return self.last_acknowledged_at > healed_at + 5 and all(
            set(partition.isr) == set(NODES) for partition in topic.partitions.values()
        )

    def _state(self) -> str:
        topic = self.controller.image.topic(TOPIC)
        if topic is None:
            return ""
        lines = [f"acknowledged last at {self.last_acknowledged_at:.1f}"]
        for index, partition in topic.partitions.items():
            lines.append(
                f"{index}: leader={partition.leader} epoch={partition.leader_epoch} "
                f"isr={partition.isr}"
            )
            lines += [
                f"   {broker.id}: end={copy.log.end_offset} hw={copy.log.high_watermark} "
                f"leader={copy.leader_id} epoch={copy.leader_epoch} {copy.log.epochs.entries()}"
                for broker, copy in self._living(index)
            ]
        return "\n".join(lines)


def simulate_replication(seed: int, steps: int = 40) -> ReplicationSim:
    """Run one seed; raise ReplicationSimFailure, which names the seed, if a check fails."""
    sim = ReplicationSim(seed)
    clock = trio.testing.MockClock(autojump_threshold=0)
    try:
        with deterministic_trio(seed):
            trio.run(sim.run, steps, clock=clock)
    except Exception as error:
        story = "\n".join(sim.trace)
        raise ReplicationSimFailure(
            f"seed {seed}, {steps} steps: {error!r}\n{story}\n{sim._state()}"
        ) from error
    return sim
