"""The share coordinator: records, loads, pruning and clean-up."""

import pytest
import trio

from kwire.codec.messages.share_state_records import ShareSnapshotValue, ShareUpdateValue
from kwire.errors import (
    CoordinatorLoadInProgress,
    CoordinatorNotAvailable,
    FencedLeaderEpoch,
    NotCoordinator,
    UnknownTopicOrPartition,
)
from kwire.records.compression import NAMES
from kwire.records.header import parse
from kwire.share.keys import SharePartition
from kwire.share.persister import StateBatch
from tests.support.clock import JumpingClock
from tests.support.share.coordinator import OF, OTHER_TOPIC, TOPIC, running, share_node

ACKNOWLEDGED = 2


def ack(offset: int) -> StateBatch:
    return StateBatch(offset, offset, ACKNOWLEDGED, 1)


async def test_writes_are_updates_until_the_next_snapshot() -> None:
    node = share_node(updates_per_snapshot=2)
    node.elect()
    await node.initialize(5)
    for offset in range(5, 10):
        await node.write(ack(offset), delivery_complete_count=offset - 4)
    kinds = [type(value) for value in node.values()]
    snapshot, update = ShareSnapshotValue, ShareUpdateValue
    assert kinds == [snapshot, update, update, snapshot, update, update]
    last_snapshot, last_update = node.values()[3], node.values()[5]
    assert isinstance(last_snapshot, ShareSnapshotValue)
    assert isinstance(last_update, ShareUpdateValue)
    assert (last_snapshot.snapshot_epoch, last_snapshot.start_offset) == (1, 5)
    assert last_snapshot.delivery_complete_count == 3
    assert [(b.first_offset, b.last_offset) for b in last_snapshot.state_batches] == [(5, 7)]
    assert (last_update.snapshot_epoch, last_update.start_offset) == (1, -1)
    assert [(b.first_offset, b.last_offset) for b in last_update.state_batches] == [(9, 9)]


async def test_every_write_is_a_snapshot_if_updates_are_off() -> None:
    node = share_node(updates_per_snapshot=0)
    node.elect()
    await node.initialize()
    await node.write(ack(1))
    assert [type(value) for value in node.values()] == [ShareSnapshotValue] * 2


async def test_leader_epoch_of_a_read_is_stored_once() -> None:
    node = share_node()
    node.elect()
    await node.initialize()
    await node.read(4)
    await node.read(4)
    await node.read(-1)
    (_, update) = node.values()
    assert isinstance(update, ShareUpdateValue)
    assert update.leader_epoch == 4


@pytest.mark.parametrize("codec", [0, 1, 4], ids=[NAMES[0], NAMES[1], NAMES[4]])
async def test_successor_continues_with_the_same_state(codec: int) -> None:
    node = share_node(updates_per_snapshot=3, compression=codec)
    node.elect()
    await node.initialize(2, epoch=7)
    await node.read(4)
    for offset in (3, 9, 5, 4):
        await node.write(ack(offset), state_epoch=7, leader_epoch=4)
    await node.write(state_epoch=7, leader_epoch=4, start_offset=4)
    state = await node.read()
    batches = [batch for data in node.log.data.values() for batch in data]
    assert {parse(batch, 0).compression for batch in batches} == {codec}

    successor = share_node(node.log, updates_per_snapshot=3)
    successor.elect(1)
    async with running(successor):
        assert await successor.read() == state
        assert list(state.batches) == [StateBatch(4, 5, 2, 1), StateBatch(9, 9, 2, 1)]
        with pytest.raises(FencedLeaderEpoch):
            await successor.read(3)
        await successor.write(ack(6), state_epoch=7, leader_epoch=4)
        await successor.write(ack(7), state_epoch=7, leader_epoch=4)
    kinds = [type(value) for value in successor.values()[-2:]]
    assert kinds == [ShareUpdateValue, ShareSnapshotValue]


async def test_state_is_not_served_before_it_is_loaded() -> None:
    node = share_node()
    node.elect()
    await node.initialize()
    successor = share_node(node.log)
    with pytest.raises(NotCoordinator):
        await successor.read()
    successor.elect(1)
    with pytest.raises(CoordinatorLoadInProgress):
        await successor.read()


async def test_write_is_confirmed_only_once_it_is_replicated(
    autojump_clock: trio.testing.MockClock,
) -> None:
    node = share_node(write_timeout_ms=1500)
    node.elect()
    await node.initialize()
    node.log.replicas_lag = True
    began = trio.current_time()
    with pytest.raises(CoordinatorNotAvailable):
        await node.write(ack(1))
    assert trio.current_time() - began == pytest.approx(1.5)


async def test_state_of_an_unknown_topic_is_rejected() -> None:
    node = share_node()
    node.elect()
    with pytest.raises(UnknownTopicOrPartition):
        await node.initialize(of=SharePartition("g", TOPIC, 100))
    await node.initialize()
    node.topics.deleted.add(TOPIC)
    for ask in (node.read, node.write, node.delete, node.initialize):
        with pytest.raises(UnknownTopicOrPartition):
            await ask()


async def test_pruning_deletes_what_precedes_the_oldest_snapshot(
    autojump_clock: trio.testing.MockClock,
) -> None:
    node = share_node(updates_per_snapshot=2, prune_interval_ms=10_000)
    node.elect()
    index = node.coordinator.partition_of(OF)
    neighbour = next(
        of
        for number in range(100)
        if node.coordinator.partition_of(of := SharePartition("h", TOPIC, number)) == index
    )
    async with running(node):
        await node.initialize()
        await node.initialize(of=neighbour)
        for offset in range(3):
            await node.write(ack(offset))
        await trio.sleep(11)
        assert node.deletions == [(index, 1)]  # The second record is the neighbour's snapshot.
        for offset in range(3):
            await node.write(ack(offset), of=neighbour)
        await trio.sleep(10)
        assert node.deletions[1:] == [(index, 4)]
        await node.delete()
        await node.delete(neighbour)
        await trio.sleep(10)
        assert node.deletions[2:] == [(index, 10)]


async def test_pruning_waits_until_the_newer_snapshot_is_replicated(
    autojump_clock: trio.testing.MockClock,
) -> None:
    node = share_node(updates_per_snapshot=0, prune_interval_ms=1000, write_timeout_ms=100)
    node.elect()
    async with running(node):
        await node.initialize()
        node.log.replicas_lag = True
        with pytest.raises(CoordinatorNotAvailable):
            await node.write(ack(1))
        await trio.sleep(2)
        assert node.deletions == []
        node.log.catch_up()
        await trio.sleep(1)
        assert node.deletions == [(node.coordinator.partition_of(OF), 1)]


async def test_idle_states_are_copied_so_that_the_log_can_be_pruned(
    autojump_clock: trio.testing.MockClock,
) -> None:
    node = share_node(cold_snapshot_interval_ms=60_000)
    node.elect()
    async with running(node):
        await node.initialize(3)
        await node.write(ack(4))
        await trio.sleep(61)
        first, _, copy = node.values()
        assert isinstance(first, ShareSnapshotValue)
        assert isinstance(copy, ShareSnapshotValue)
        assert (copy.snapshot_epoch, copy.start_offset) == (1, 3)
        assert copy.create_timestamp == first.create_timestamp
        assert copy.write_timestamp == first.write_timestamp + 60_000
        assert [(b.first_offset, b.last_offset) for b in copy.state_batches] == [(4, 4)]
        await trio.sleep(600)
        assert len(node.values()) == 3  # Nothing was written since, so nothing could be pruned.


async def test_idle_states_are_copied_after_a_failover_too(
    autojump_clock: trio.testing.MockClock,
) -> None:
    node = share_node()
    node.elect()
    await node.initialize()
    successor = share_node(node.log, clock=JumpingClock(1000), cold_snapshot_interval_ms=60_000)
    successor.elect(1)
    async with running(successor):
        await trio.sleep(61)
        assert len(successor.values()) == 2


async def test_states_of_deleted_topics_are_deleted() -> None:
    node = share_node()
    node.elect()
    other = SharePartition("g", OTHER_TOPIC, 0)
    async with running(node):
        for partition in range(40):
            await node.initialize(of=SharePartition("g", TOPIC, partition))
        await node.initialize(of=other)
        node.topics.deleted.add(TOPIC)
        node.coordinator.on_topics_deleted()
        await trio.testing.wait_all_tasks_blocked()
        machines = node.coordinator.service.machines()
        assert [of for machine in machines for of in machine.states] == [other]
        assert all(len(m.snapshots) == len(m.states) == len(m.state_epochs) for m in machines)


async def test_states_of_topics_that_were_deleted_before_the_load_are_deleted() -> None:
    node = share_node()
    node.elect()
    await node.initialize()
    node.topics.deleted.add(TOPIC)
    successor = share_node(node.log, node.topics)
    successor.elect(1)
    async with running(successor):
        await trio.testing.wait_all_tasks_blocked()
        assert successor.values()[-1] is None
