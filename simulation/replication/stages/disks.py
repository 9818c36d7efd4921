"""Staged disk faults: full and slow disks, and brokers that restart without their logs."""

import errno
import sys
from typing import Final

import trio

from simulation.disk import PLENTY
from simulation.replication.checks import TOPIC
from simulation.replication.contents import Content, read_stored
from simulation.replication.history import demand
from simulation.replication.node import SimMachine
from simulation.replication.settings import SESSION_S
from simulation.replication.stages.scene import UNCLEAN, Scene

_WRITTEN_S: Final = 10.0
"""The time in which queued records must be written once the disk has room."""


async def fill_slow_disk(scene: Scene, nursery: trio.Nursery) -> None:
    """Fill a slow disk while writes are queued, and then free it.

    The queued records must be written even if no append follows.
    """
    index = scene.random.randrange(scene.world.partition_count)
    replicas = await scene.prepare(nursery, TOPIC, index)
    if not replicas:
        return
    machine = scene.world.machines[scene.random.choice(replicas)]
    partition = machine.partition(TOPIC, index)
    if partition is None:
        return
    disk = next(disk for disk in machine.disks if partition.log.disk is disk)
    scene.world.note("slow and full", index, *replicas, "disk of", machine.id)
    disk.slow, disk.capacity = True, disk._used_bytes() + scene.random.randrange(200)
    await scene.produce(replicas[0], index, scene.random.randint(2, 6))
    await trio.sleep(scene.random.uniform(0.1, 1.0))
    disk.slow, disk.capacity = False, PLENTY
    scene.world.is_quiet = True
    deadline = trio.current_time() + _WRITTEN_S
    while disk in machine.disks and disk.failed is None:
        logs = [copy.log for copy in machine.partitions() if copy.log.disk is disk]
        waiting = [log for log in logs if log.writer.written_offset < log.end_offset]
        if not waiting:
            break
        partitions = [str(log.partition) for log in waiting]
        demand(trio.current_time() < deadline, f"{machine.id} does not write {partitions}")
        await trio.sleep(0.2)


async def return_without_log(scene: Scene, nursery: trio.Nursery) -> None:
    """Restart the broker of the last in-sync replica with another disk or without one directory.

    It must not lead with an empty log. After the replacement of a disk, an operator elects another
    replica.
    """
    index = scene.random.randrange(scene.world.partition_count)
    replicas = await scene.prepare(nursery, TOPIC, index)
    if not replicas:
        return
    last, *followers = replicas
    machine = scene.world.machines[last]
    partition = machine.partition(TOPIC, index)
    if partition is None:
        return
    place = next(i for i, disk in enumerate(machine.disks) if partition.log.disk is disk)
    scene.world.note("alone", index, *replicas)
    for node in followers:
        scene.world.machines[node].stop()
    deadline = trio.current_time() + 2 * SESSION_S
    while any(scene.world.machines[node].is_alive for node in followers):
        if trio.current_time() > deadline:
            return
        await trio.sleep(0.05)
    ends = {(copy.topic, copy.partition): copy.high_watermark for copy in machine.partitions()}
    if not machine.is_alive:
        return
    machine.kill(scene.random)
    if scene.random.random() < 0.8 and _may_lose(scene, machine, place, ends):
        await _replace_disk(scene, nursery, machine, place)
    elif len(machine.disks) > 1:
        await _leave_directory(scene, nursery, machine, place)


def _may_lose(
    scene: Scene, machine: SimMachine, place: int, ends: dict[tuple[str, int], int]
) -> bool:
    """Return whether other replicas have the acknowledged records of all partitions on a disk.

    If only this machine is in sync, all other replicas must have them, because an operator may
    elect any replica.
    """
    directory = machine.directory_id(place)
    for topic, image in ((t.name, t) for t in scene.books.image.topics.values()):
        for index, state in image.partitions.items():
            if not machine.disks[place].root.find(f"{topic}-{index}"):
                continue
            if state.directory(machine.id) != directory:
                return False  # The controller cannot know that the log is gone.
            members = {*state.isr, *state.elr} - {machine.id}
            end = ends.get((topic, index), 0)
            complete = {
                node
                for node in {*state.replicas} - {machine.id}
                if _has_all(scene, scene.world.machines[node], topic, index, end)
            }
            others = {*state.replicas} - {machine.id}
            if not (complete & members if members else complete == others):
                return False
    return True


def _has_all(scene: Scene, machine: SimMachine, topic: str, index: int, end_offset: int) -> bool:
    """Return whether a machine has all acknowledged records, and all records below an offset."""
    content: Content = {}
    for disk in machine.disks:
        content |= read_stored(disk, topic, index)
    if max(content, default=-1) + 1 < end_offset:
        return False
    history = scene.world.history
    return topic != TOPIC or all(
        offset in content or offset < history.delete_end[index]
        for offset in history.acknowledged[index]
    )


async def _replace_disk(
    scene: Scene, nursery: trio.Nursery, machine: SimMachine, place: int
) -> None:
    """Start a machine with an empty disk, then the others; elect leaders if necessary."""
    scene.world.note("another disk", machine.id, place)
    machine.replace_disk(place)
    scene.checks.emptied.add(machine.id)
    machine.start(nursery)
    await trio.sleep(scene.random.uniform(0.0, 2.0))
    for other in scene.world.machines.values():
        other.start(nursery)
    for _ in range(30):
        await trio.sleep(0.5)
        leaderless = [
            (topic.name, index)
            for topic in scene.books.image.topics.values()
            for index, state in topic.partitions.items()
            if state.leader < 0 and machine.id in state.replicas
        ]
        for topic, index in leaderless:
            await scene.elect_leader(machine.id, topic, index, UNCLEAN)


async def _leave_directory(
    scene: Scene, nursery: trio.Nursery, machine: SimMachine, place: int
) -> None:
    """Start a machine without one of its directories, then the others; restore the directory."""
    scene.world.note("without directory", machine.id, place)
    machine.disks[place].fail_at("entries", OSError(errno.EIO, "i/o error"), times=sys.maxsize)
    machine.start(nursery)
    await trio.sleep(scene.random.uniform(0.0, 2.0))
    for other in scene.world.machines.values():
        other.start(nursery)
    await trio.sleep(scene.random.uniform(1.0, 5.0))
    if machine.is_alive:
        machine.kill(scene.random)
