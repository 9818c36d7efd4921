"""An administrator who moves replicas between the log directories of their brokers (KIP-113).

A move may be replaced by another one or ended by a request for the replica's own directory, and
faults meet it at any point. Once all faults have ended, every move must end.
"""

from random import Random
from typing import Final

import attrs
import trio

from kwire import errors
from kwire.codec.messages.alter_replica_log_dirs import AlterReplicaLogDirsRequest
from simulation.replication.clients import SimClient
from simulation.replication.history import demand
from simulation.replication.node import SimMachine
from simulation.replication.settings import data_path

_SHARE_OF_RUNS: Final = 0.4
_EXPECTED_CODES: Final = frozenset(
    error.code
    for error in (
        errors.KafkaStorageError,
        errors.ReplicaNotAvailable,
        errors.UnknownTopicOrPartition,
        errors.NotLeaderOrFollower,
    )
)
"""The codes of a broker with an offline directory, or one that does not have the replica."""


def has_mover(seed: int) -> bool:
    """Return whether replicas move between directories in the run of a seed."""
    return Random(f"{seed} moves").random() < _SHARE_OF_RUNS


@attrs.define(eq=False)
class Mover(SimClient):
    """One administrator, who moves one replica at a time."""

    is_ending: bool = attrs.field(default=False, init=False)
    """True when no further move must be asked for."""

    async def run(self) -> None:
        while not self.is_ending:
            await trio.sleep(self.random.expovariate(0.7))
            machine = self._choose_machine()
            if machine is not None:
                await self._move(machine)

    def _choose_machine(self) -> SimMachine | None:
        """Return a machine with replicas and several directories, if one serves."""
        machines = [
            machine
            for machine in self.world.machines.values()
            if machine.is_serving and len(machine.disks) > 1 and machine.partitions()
        ]
        return self.random.choice(machines) if machines else None

    async def _move(self, machine: SimMachine) -> None:
        replica = self.random.choice(machine.partitions())
        path = data_path(self.random.randrange(len(machine.disks)))
        directory = AlterReplicaLogDirsRequest.AlterReplicaLogDir
        partitions = [replica.partition]
        topic = directory.AlterReplicaLogDirTopic(name=replica.topic, partitions=partitions)
        request = AlterReplicaLogDirsRequest(dirs=[directory(path=path, topics=[topic])])
        answer = await self.call(machine.id, request)
        code = None if answer is None else answer.results[0].partitions[0].error_code
        self.world.note("move", machine.id, replica.topic, replica.partition, path, code)
        if code is not None:
            demand(code in _EXPECTED_CODES | {errors.NONE}, f"a move is answered with {code}")


def future_replicas(machines: dict[int, SimMachine]) -> list[str]:
    """Return the future replicas of all running brokers, for a failure's text."""
    return [
        f"{partition} on {machine.id}"
        for machine in machines.values()
        if machine.server is not None
        for directory in machine.server.core.logs.directories
        for partition in directory.futures
    ]
