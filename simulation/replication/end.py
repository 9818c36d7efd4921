"""The end of a run: every client gets a response, and what clients then see must be complete.

Invariants 1, 3, 4, 6, 10, 11, 12, 61, 62, 70 and 75 are checked here.
"""

from collections.abc import Awaitable, Callable, Sequence
from random import Random
from typing import Final

import attrs
import trio

from simulation.replication.assigned_members import AssignedMember, own_all
from simulation.replication.checks import ReplicationChecks
from simulation.replication.clients import SimClient, World
from simulation.replication.consumers import Committer, Consumer
from simulation.replication.history import demand
from simulation.replication.members import Member, are_assigned
from simulation.replication.movers import Mover, future_replicas
from simulation.replication.sharing.groups import check_share_group
from simulation.replication.transactions import TransactionalProducer

HEAL_S: Final = 90.0
"""The time in which the cluster must recover and clients must end, once all faults have ended."""
_READER: Final = -500


@attrs.frozen
class _Deadline:
    at: float

    async def wait(self, is_reached: Callable[[], bool], text: Callable[[], str]) -> None:
        """Wait until ``is_reached`` returns True; raises AssertionError after the deadline."""
        while not is_reached():
            demand(trio.current_time() < self.at, text())
            await trio.sleep(0.5)


async def check_end(
    world: World, clients: Sequence[SimClient], checks: ReplicationChecks, seed: int
) -> None:
    """Let transactions end, and then check what every client sees."""
    deadline = _Deadline(trio.current_time() + HEAL_S)
    for client in clients:
        if isinstance(client, Mover):
            client.is_ending = True
    producers = [client for client in clients if isinstance(client, TransactionalProducer)]
    for producer in producers:
        producer.is_ending = True
    await deadline.wait(
        lambda: all(producer.has_ended for producer in producers),
        lambda: "transactional producers do not end",
    )
    await deadline.wait(
        lambda: not checks.open_partitions(),
        lambda: f"transactions hang: {checks.open_partitions()}",
    )
    await deadline.wait(
        lambda: not future_replicas(world.machines),
        lambda: f"moves between directories do not end: {future_replicas(world.machines)}",
    )
    members = [client for client in clients if isinstance(client, Member)]
    for member in members:
        member.is_ending = True
    await deadline.wait(
        lambda: not members or are_assigned(members, world.partition_count),
        lambda: f"the group does not settle: {[(m.generation, m.assignment) for m in members]}",
    )
    await _check_assigned(world, clients, deadline)
    await check_share_group(world, clients, deadline.at)
    visible: dict[bytes, int] = {}
    for index in range(world.partition_count):
        reader = await _read_all(world, index, seed, deadline)
        for value in reader.values.values():
            visible[value] = visible.get(value, 0) + 1
        _check_complete(world, reader)
    for value in world.history.once:
        demand(visible.get(value, 0) <= 1, f"{value!r} is there {visible.get(value)} times")
    for client in clients:
        if isinstance(client, TransactionalProducer):
            if not any(world.history.delete_end.values()):
                client.check_visible(visible)
            await _repeat(client.check_offset, deadline)
        elif isinstance(client, Committer):
            await _repeat(client.check, deadline)


async def _check_assigned(world: World, clients: Sequence[SimClient], deadline: _Deadline) -> None:
    """Let the group whose partitions the coordinator assigns settle, and compare its view."""
    members = [client for client in clients if isinstance(client, AssignedMember)]
    for member in members:
        member.is_ending = True
    while members and not (
        own_all(members, world.partition_count) and await members[0].is_described(members)
    ):
        demand(
            trio.current_time() < deadline.at,
            f"the group does not settle: {[(m.member_id, m.epoch, m.owned) for m in members]}",
        )
        await trio.sleep(0.5)


async def _repeat(check: Callable[[], Awaitable[bool]], deadline: _Deadline) -> None:
    while not await check():
        demand(trio.current_time() < deadline.at, "no group coordinator answers")


async def _read_all(world: World, index: int, seed: int, deadline: _Deadline) -> Consumer:
    """Read a partition to its end as a new consumer with read_committed."""
    number = _READER - index
    random = Random(f"{seed} client {number}")
    reader = Consumer(number, world, random, index=index, is_committed=True)
    while reader.position < world.history.latest[index]:
        demand(trio.current_time() < deadline.at, f"partition {index} cannot be read to its end")
        await reader.poll()
    return reader


def _check_complete(world: World, reader: Consumer) -> None:
    """Check that everything acknowledged and not deleted was read (invariant 1)."""
    history, index = world.history, reader.index
    for offset, value in history.acknowledged[index].items():
        if offset >= history.delete_end[index] and value not in history.transactions:
            content = reader.values.get(offset)
            demand(
                content == value,
                f"partition {index} offset {offset}: {value!r} is acknowledged, {content!r} read",
            )
