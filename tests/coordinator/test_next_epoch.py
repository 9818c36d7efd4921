"""A leader that goes on in the next epoch of its partition keeps what its coordinator has."""

import pytest
import trio
import trio.testing

from kwire.codec.messages.join_group import JoinGroupResponse
from kwire.errors import CoordinatorLoadInProgress, KafkaStorageError
from kwire.transaction.model import TransactionState
from tests.support.coordinator.node import (
    CLIENT,
    commit_request,
    fetch_offset,
    join_request,
    make_node,
    wait_result,
)
from tests.support.transaction.world import T0, U0, Led, World


async def test_groups_and_their_waiting_requests_go_on(autojump_clock: object) -> None:
    """Invariant 72: nothing is read again, no client is refused, no member has to join again."""
    node = make_node()
    led = {node.groups.partition_of(group) for group in ("g", "h")}
    for index in led:
        node.service.on_elected(index, 3)
    joins: list[JoinGroupResponse] = []

    async def join(member_id: str = "") -> None:
        joins.append(await node.groups.join(join_request(member_id), CLIENT))

    commits: list[int] = []

    async def commit() -> None:
        await wait_result(node.groups.commit(commit_request(5, "h")))
        commits.append(5)

    async with trio.open_nursery() as nursery:
        await nursery.start(node.service.run)
        await join()
        nursery.start_soon(join)
        await trio.testing.wait_all_tasks_blocked()
        node.log.replicas_lag = True
        node.log.read_failures += [KafkaStorageError()] * 100
        nursery.start_soon(commit)
        await trio.testing.wait_all_tasks_blocked()
        for epoch in (4, 5):
            for index in led:
                node.service.on_elected(index, epoch)
        await join(joins[0].member_id)
        node.log.catch_up()
        await trio.testing.wait_all_tasks_blocked()
        assert [reply.error_code for reply in joins] == [0, 0, 0]
        assert {reply.generation_id for reply in joins[1:]} == {2}
        assert commits == [5]
        assert await fetch_offset(node, "h") == 5
        nursery.cancel_scope.cancel()


async def test_epoch_after_that_of_another_leader_loads_the_partition_again() -> None:
    """Invariant 72: the log may have been truncated meanwhile."""
    node = make_node()
    index = node.groups.partition_of("g")
    node.service.on_elected(index, 3)
    await wait_result(node.groups.commit(commit_request(5)))
    node.service.on_elected(index, 5)
    with pytest.raises(CoordinatorLoadInProgress):
        await wait_result(node.groups.commit(commit_request(6)))


async def test_missing_markers_are_sent_with_the_next_epoch(autojump_clock: object) -> None:
    """Invariants 59 and 60: those with the former epoch may be refused by now."""
    async with trio.open_nursery() as nursery:
        subject = World(nursery)
        await subject.start()
        producer = await subject.init()
        await subject.add(producer, T0, U0)
        subject.brokers.may_serve = trio.Event()
        await subject.end(producer, commit=True)
        await trio.testing.wait_all_tasks_blocked()
        subject.epoch += 1
        for partition in (T0, U0):
            subject.brokers.partitions[partition].coordinator_epoch = subject.epoch
        subject.coordinator.on_role_changed(Led(leader_epoch=subject.epoch))
        subject.brokers.may_serve.set()
        await subject.settle()
        assert subject.directions(T0) == subject.directions(U0) == [True]
        assert (await subject.state()).state is TransactionState.COMPLETE_COMMIT
        nursery.cancel_scope.cancel()


async def test_end_that_is_committed_in_the_next_epoch_is_finished(
    autojump_clock: object,
) -> None:
    """Invariant 59: the decision waits for the replicas while the epoch changes."""
    async with trio.open_nursery() as nursery:
        subject = World(nursery)
        await subject.start()
        producer = await subject.init()
        await subject.add(producer, T0)
        subject.log.replicas_lag = True

        async def end() -> None:
            await subject.end(producer, commit=True)

        nursery.start_soon(end)
        await trio.sleep(1)
        subject.epoch += 1
        subject.coordinator.on_role_changed(Led(leader_epoch=subject.epoch))
        await trio.sleep(1)
        subject.log.catch_up()
        await subject.settle()
        assert subject.directions() == [True]
        (marker,) = subject.brokers.partitions[T0].markers
        assert marker.coordinator_epoch == subject.epoch
        assert (await subject.state()).state is TransactionState.COMPLETE_COMMIT
        nursery.cancel_scope.cancel()


async def test_long_log_does_not_hold_up_the_loads_of_others(autojump_clock: object) -> None:
    node = make_node()
    long, short = node.groups.partition_of("g"), node.groups.partition_of("h")
    assert long != short
    node.service.on_elected(long, 1)
    node.service.on_elected(short, 1)
    for offset in range(700):
        await wait_result(node.groups.commit(commit_request(offset)))
    await wait_result(node.groups.commit(commit_request(1, "h")))
    successor = make_node(node.log)
    node.log.read_delay = 0.1
    async with trio.open_nursery() as nursery:
        await nursery.start(successor.service.run)
        successor.service.on_elected(long, 2)
        successor.service.on_elected(short, 2)
        await trio.sleep(1)
        assert (successor.service.active, successor.service.loading) == ([short], [long])
        assert await fetch_offset(successor, "h") == 1
        await trio.sleep(10)
        assert await fetch_offset(successor) == 699
        nursery.cancel_scope.cancel()
