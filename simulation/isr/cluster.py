"""The simulated cluster: a controller, four machines, and the messages between them.

Decisions of the controller are committed at once (:mod:`simulation.controller.world`). What the
brokers learn of them, and when, is up to the steps.
"""

from collections.abc import Callable
from random import Random
from typing import Final, NamedTuple

import attrs

from kwire.codec.messages.alter_partition import AlterPartitionRequest, AlterPartitionResponse
from kwire.codec.messages.broker_heartbeat import BrokerHeartbeatRequest
from kwire.codec.messages.create_topics import CreateTopicsRequest
from kwire.log.directories.directory import LogDirectory
from kwire.raftmeta.controller.brokers import decide_heartbeat
from kwire.raftmeta.controller.topics import decide_create_topics
from kwire.raftmeta.metadata.image import PartitionImage
from kwire.types import TopicIdPartition
from simulation.controller import steps as controller_steps
from simulation.controller.checks import demand
from simulation.controller.world import World
from simulation.disk import SimDisk
from simulation.isr.broker import NAME, Machine, Replicas
from simulation.isr.checks import IsrChecks

BROKERS: Final = 4
REPLICAS: Final = [1, 2, 3]


class Proposals(NamedTuple):
    """An AlterPartition request on its way to the controller."""

    sender: Replicas
    request: AlterPartitionRequest


class Answer(NamedTuple):
    """The controller's answer on its way back."""

    proposals: Proposals
    response: AlterPartitionResponse


@attrs.define(eq=False)
class Cluster:
    """A cluster with one partition."""

    world: World
    machines: dict[int, Machine]
    place: TopicIdPartition = (b"", 0)
    requests: list[Proposals] = attrs.field(factory=list)
    answers: list[Answer] = attrs.field(factory=list)
    checks: IsrChecks = attrs.field(factory=IsrChecks)
    value_count: int = 0

    @classmethod
    def of(cls, random: Random) -> "Cluster":
        """Return a cluster whose brokers serve, with eligible leader replicas and one topic."""
        world = World.of(random, BROKERS)
        world.is_calm = True  # The steps decide when the controller fails over.
        for process in world.brokers.values():
            del process.directories[1:]
        controller_steps.bootstrap(world, eligible=True)
        machines = {number: Machine(process) for number, process in world.brokers.items()}
        cluster = cls(world, machines)
        for machine in machines.values():
            cluster.start(machine)
            cluster.heartbeat(machine)
        cluster._create_topic()
        return cluster

    def _create_topic(self) -> None:
        creatable = CreateTopicsRequest.CreatableTopic
        topic = creatable(
            name=NAME,
            num_partitions=-1,
            replication_factor=-1,
            assignments=[
                creatable.CreatableReplicaAssignment(partition_index=0, broker_ids=REPLICAS)
            ],
        )
        reply = self.world.ask(decide_create_topics, CreateTopicsRequest(topics=[topic]))
        demand(reply is not None and not reply.topics[0].error_code, "no topic:", reply)
        self.place = (self.world.state.image.topic_ids[NAME], 0)

    @property
    def random(self) -> Random:
        return self.world.random

    @property
    def partition(self) -> PartitionImage:
        """The partition in the newest committed metadata."""
        return self.world.partition(self.place)

    def replicas(self, broker: int) -> Replicas | None:
        """Return the replica layer of a broker if it runs."""
        machine = self.machines.get(broker)
        return None if machine is None else machine.replicas

    def draw(self, where: Callable[[Replicas], bool]) -> Replicas | None:
        """Return one of the running brokers for which a condition holds, if there are any."""
        running = [m.replicas for m in self.machines.values() if m.replicas is not None]
        suitable = [replicas for replicas in running if where(replicas)]
        return self.random.choice(suitable) if suitable else None

    def end_step(self) -> None:
        """Let the brokers promise what they may, and check all promises."""
        for machine in self.machines.values():
            if machine.replicas is not None:
                settled = machine.replicas.settle()
                self.checks.on_settled(settled)
                for value, result in settled.acknowledged:
                    self.world.note(machine.id, "acknowledges", value, "at", result.base_offset)
                for deletion in settled.deleted:
                    self.world.note(machine.id, "has deleted up to", deletion.offset)
            machine.look()
        self.world.update_leaders(whole=True)
        self.checks.check(self.partition, self.machines)

    # Brokers.

    def catch_up(self, machine: Machine) -> None:
        """Let a running broker apply all metadata."""
        replicas = machine.replicas
        assert replicas is not None
        while replicas.is_applying or replicas.batch_count < len(self.world.log):
            if replicas.is_applying:
                replicas.apply_next()
            else:
                replicas.publish(len(self.world.log))

    def heartbeat(self, machine: Machine) -> None:
        """Send a broker's heartbeat; stop the broker if the controller lets it shut down."""
        process, replicas, world = machine.process, machine.replicas, self.world
        if replicas is None or process.silent:
            return
        request = BrokerHeartbeatRequest(
            broker_id=process.id,
            broker_epoch=process.epoch,
            current_metadata_offset=replicas.image.applied.offset,
            want_fence=False,
            want_shut_down=process.stopping,
            offline_log_dirs=sorted(process.offline),
        )
        world.reported_offsets[process.id] = request.current_metadata_offset
        reply = world.ask(decide_heartbeat, request)
        if reply is None:
            return
        world.answer_times[process.id] = world.now
        if reply.should_shut_down:
            self.stop(machine)

    def start(self, machine: Machine) -> None:
        """Start a broker, which serves when it has all metadata, its own registration among them.

        The controller rejects it while the former process has a session.
        """
        process = machine.process
        controller_steps.start(self.world, process)
        if process.epoch < 0:
            process.running = False
            return
        directory = LogDirectory(machine.disk, f"disk {machine.id}", process.directories[0])
        machine.replicas = Replicas(process, self.world, directory)
        machine.has_lost_power = False
        self.catch_up(machine)

    def stop(self, machine: Machine) -> None:
        """Shut a broker down cleanly, which it cannot if its disk has failed."""
        if machine.replicas is None or machine.disk.failed is not None:
            self.kill(machine)
            return
        machine.replicas.close()
        controller_steps.stop_alone(self.world, machine.process)
        self._end(machine, machine.disk.after_kill())

    def kill(self, machine: Machine, *, by_power_loss: bool = False) -> None:
        """End a broker's process, or its machine, shortly after a checkpoint."""
        if machine.replicas is None:
            return
        if machine.disk.failed is None:
            machine.replicas.store_checkpoints()
        controller_steps.crash(self.world, machine.process)
        disk = machine.disk
        machine.has_lost_power = by_power_loss
        self._end(machine, disk.power_loss(self.random) if by_power_loss else disk.after_kill())

    def _end(self, machine: Machine, disk: SimDisk) -> None:
        """End a broker's process; of its requests in flight, some still arrive."""
        machine.look()
        sender, machine.replicas, machine.disk = machine.replicas, None, disk
        self.requests = [
            proposals
            for proposals in self.requests
            if proposals.sender is not sender or self.random.random() < 0.5
        ]
