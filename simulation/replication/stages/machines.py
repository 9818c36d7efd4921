"""Staged faults of machines that are suspended: a coordinator's, and the active controller's.

A suspended machine sends and receives nothing, but its connections stay open, and requests wait in
its sockets. Its monotonic clock stands still. So when it resumes, it believes that it is still the
leader, until it hears of the next one.
"""

from typing import Final

import trio

from kwire.coordinator.partitioning import partition_for
from kwire.types import CONSUMER_OFFSETS
from simulation.replication.assigned_members import GROUP as ASSIGNED
from simulation.replication.checks import TOPIC
from simulation.replication.controller_faults import ControllerFaults
from simulation.replication.members import GROUP as CLASSIC
from simulation.replication.node import SimMachine
from simulation.replication.settings import GROUP_PARTITIONS, SESSION_S
from simulation.replication.stages.scene import PREFERRED, Scene

_REPLACED_S: Final = (2.5, 8.0)
"""The minimum and maximum time for which a controller is suspended: another one is elected."""


async def suspend_coordinator(scene: Scene, nursery: trio.Nursery) -> None:
    """Suspend the machine of a group coordinator, for a moment or for longer than all sessions.

    If its own session goes on, an operator may move the leadership meanwhile. Then it resumes with
    a lease that holds, and perhaps cannot reach the controllers for another while.
    """
    index = partition_for(scene.random.choice((ASSIGNED, CLASSIC)), GROUP_PARTITIONS)
    replicas = await scene.prepare(nursery, CONSUMER_OFFSETS, index)
    if not replicas:
        return
    leader, successor, other = replicas
    machine = scene.world.machines[leader]
    is_short = scene.random.random() < 0.6
    bounds = (0.1, 0.9 * SESSION_S) if is_short else (SESSION_S, 3 * SESSION_S)
    length_s = scene.random.uniform(*bounds)
    scene.world.note("suspend coordinator", index, *replicas, round(length_s, 1))
    moves = scene.random.random() < 0.7
    machine.gate.suspend()
    if moves:
        nursery.start_soon(_move, scene, index, [successor, leader, other])
    await trio.sleep(length_s)
    await _resume(scene, machine, cut_off=scene.random.random() < 0.5)
    await trio.sleep(scene.random.uniform(0.0, 3.0))


async def _move(scene: Scene, index: int, replicas: list[int]) -> None:
    """Let an operator make the first of ``replicas`` the leader of a group partition."""
    successor = replicas[0]
    await scene.reassign(successor, index, replicas, topic=CONSUMER_OFFSETS)
    await scene.elect_leader(successor, CONSUMER_OFFSETS, index, PREFERRED)


async def _resume(scene: Scene, machine: SimMachine, *, cut_off: bool) -> None:
    """Resume a machine; with ``cut_off``, controllers are out of its reach for a while."""
    wire, machines = scene.world.wire, scene.world.machines.values()
    controllers = [m.id for m in machines if m.config.is_controller and m.id != machine.id]
    pairs = {pair for c in controllers for pair in ((machine.id, c), (c, machine.id))}
    if cut_off:
        wire.cut.update(pairs)
    scene.world.note("resume", machine.id, "cut off" if cut_off else "")
    machine.gate.open()
    if cut_off:
        await trio.sleep(scene.random.uniform(0.1, SESSION_S))
        wire.cut.difference_update(pairs)


async def suspend_controller(scene: Scene, nursery: trio.Nursery) -> None:
    """Suspend the active controller's machine while it is cut off, until another one is elected.

    It resumes before it can hear of the next one. It must neither decide nor vouch for anything.
    """
    if not await scene.prepare(nursery, TOPIC, 0):
        return
    active = [machine for machine in scene.world.machines.values() if machine.is_active]
    if len(active) != 1:
        return
    (machine,) = active
    faults = ControllerFaults(scene.world, scene.random)
    async with faults.isolation(machine.id):
        scene.world.note("suspend controller", machine.id)
        machine.gate.suspend()
        await trio.sleep(scene.random.uniform(*_REPLACED_S))
        scene.world.note("resume", machine.id)
        machine.gate.open()
        await trio.sleep(scene.random.uniform(0.5, 3.0))
