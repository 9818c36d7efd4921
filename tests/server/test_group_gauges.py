"""Cost of the metrics about groups: reading them creates no partition."""

import trio

from kwire import metrics as m
from kwire.node.gauges import add_group_gauges
from tests.support.handlers.group_node import group_node

PARTITIONS = 50


async def test_group_gauges_create_no_partition() -> None:
    """Most partitions of a large topic are made in the background, one a turn."""
    async with group_node() as node, trio.open_nursery() as nursery:
        replicas = node.broker.replicas
        await nursery.start(replicas.run)
        await node.broker.create("large", partitions=PARTITIONS)
        count_before = len(replicas.partitions)
        last = PARTITIONS - 1
        for machine in node.groups.service.machines():
            assert not machine.offsets.count
        committed = await node.commit({"large": {0: 3, last: 4}})
        assert committed == {"large": {0: 0, last: 0}}
        assert replicas.partitions.find("large", last) is None, "no request has named it"
        metrics = m.Metrics()
        add_group_gauges(metrics, replicas, node.groups.service.machines)
        (line,) = (line for line in metrics.lines() if line.startswith(m.GROUP_OFFSET.name))
        assert line == f'{m.GROUP_OFFSET.name}{{group="g",topic="large",partition="0"}} 3'
        assert replicas.partitions.find("large", last) is None
        assert len(replicas.partitions) <= count_before + 5
        await trio.testing.wait_all_tasks_blocked()
        assert len(list(metrics.lines())) == 2 * 2 + 2 * 2
        nursery.cancel_scope.cancel()
