"""A coordinator that loads a partition of a slow disk: it has all of the log, or does not serve."""

from typing import Any

import trio
import trio.testing

from kwire.errors import NotCoordinator
from kwire.types import CONSUMER_OFFSETS
from tests.support.handlers.group_node import group_node


async def test_coordinator_does_not_serve_without_records_that_wait_for_a_slow_disk(
    autojump_clock: Any,
) -> None:
    """Invariant 72: the offset that a coordinator returns is not changed by the next load."""
    async with group_node() as node:
        await node.commit({"t": {0: 3}})
        index = node.groups.partition_of("g")
        partition = node.broker.replicas.partitions.get(CONSUMER_OFFSETS, index)
        service, epoch = node.groups.service, partition.leader_epoch

        async def commit() -> None:
            assert await node.commit({"t": {0: 7}}) == {"t": {0: NotCoordinator.code}}

        async with trio.open_nursery() as nursery:
            node.broker.disk.slow = True
            partition.log.writer.on_queued = lambda: None
            nursery.start_soon(commit)
            await trio.testing.wait_all_tasks_blocked()
            service.on_resigned(index)
            service.on_elected(index, epoch + 1)
            await trio.testing.wait_all_tasks_blocked()
            assert index in service.loading
            partition.log.write_queued()
            node.broker.replicas.on_log_written(partition.log)
        await trio.sleep(2)
        offsets = await node.fetch({"t": [0]})
        service.on_resigned(index)
        service.on_elected(index, epoch + 2)
        await trio.testing.wait_all_tasks_blocked()
        assert await node.fetch({"t": [0]}) == offsets == {"t": {0: 7}}
