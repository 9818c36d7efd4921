"""Metrics about groups: offsets and lag, groups by state, rebalances."""

from pathlib import Path
from typing import Any

import pytest
import trio
from trio.testing import MockClock, wait_all_tasks_blocked

from kwire import metrics as m
from kwire.codec.messages.consumer_group_heartbeat import ConsumerGroupHeartbeatRequest
from kwire.codec.messages.find_coordinator import FindCoordinatorRequest
from kwire.codec.messages.join_group import JoinGroupRequest
from kwire.codec.messages.produce import ProduceRequest
from kwire.codec.messages.share_group_heartbeat import ShareGroupHeartbeatRequest
from kwire.codec.messages.sync_group import SyncGroupRequest
from kwire.group.consumer.model import ConsumerGroupState as ConsumerState
from kwire.group.counts import STATES
from kwire.group.model import ClassicGroupState
from kwire.group.share.model import ShareGroupState as ShareState
from kwire.group.streams.model import StreamsGroupState as StreamsState
from kwire.node.gauges import add_gauges, add_group_gauges
from kwire.node.server import Server
from kwire.records.build import New, batch
from kwire.share.persister import InitialState
from kwire.testing.wire import TrioWireClient
from tests.support.handlers.group_node import group_node
from tests.support.server.nodes import create, running

PARTITIONS = 50
COORDINATOR = "kafka_server_group_coordinator_metrics_"
ONCE = {
    "offsets_topic_num_partitions": "1",
    "offsets_topic_replication_factor": "1",
    "share_coordinator_state_topic_num_partitions": "1",
    "share_coordinator_state_topic_replication_factor": "1",
    "share_coordinator_state_topic_min_isr": "1",
    "group_initial_rebalance_delay_ms": "0",
}


def values(metrics: m.Metrics) -> dict[str, float]:
    lines = (line for line in metrics.lines() if not line.startswith("#"))
    return {name: float(value) for name, value in (line.rsplit(" ", 1) for line in lines)}


def labels(group: str, partition: int, topic: str = "large") -> str:
    return f'{{group="{group}",topic="{topic}",partition="{partition}"}}'


async def test_group_gauges_create_no_partition(mock_clock: MockClock) -> None:
    """Most partitions of a large topic are made in the background, one a turn.

    The clock stands still, so that no slice of time ends and gives the background a turn.
    """
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
        offsets = {
            f"{m.GROUP_OFFSET.name}{labels('g', 0)}": 3,
            f"{m.GROUP_OFFSET.name}{labels('g', last)}": 4,
        }
        # A partition that this node does not lead, or not yet, has an offset but no lag.
        assert values(metrics) == {**offsets, f"{m.GROUP_LAG.name}{labels('g', 0)}": 0}
        assert replicas.partitions.find("large", last) is None
        assert len(replicas.partitions) <= count_before + 5
        await wait_all_tasks_blocked()
        assert len(values(metrics)) == 2 * 2
        nursery.cancel_scope.cancel()


@pytest.mark.slow
async def test_groups_are_counted_by_state_and_their_rebalances_too(tmp_path: Path) -> None:
    async with running(tmp_path, **ONCE) as server:
        await create(server, "t")
        async with await TrioWireClient.connect(*server.address) as client:
            await have_groups(client)
        shown = await read_counts(server)
        assert shown == {
            'group_count{protocol="classic"}': 1,
            'group_count{protocol="consumer"}': 1,
            'group_count{protocol="share"}': 1,
            'classic_group_count{state="Stable"}': 1,
            'consumer_group_count{state="Stable"}': 1,
            'share_group_count{state="Stable"}': 1,
            "group_completed_rebalance_count": 1,
            "consumer_group_rebalance_count": 1,
            "share_group_rebalance_count": 1,
        }
        async with await TrioWireClient.connect(*server.address) as client:
            leaving = ConsumerGroupHeartbeatRequest(
                group_id="consumers", member_id="m", member_epoch=-1
            )
            assert (await client.call(leaving, 1)).error_code == 0
        shown = await read_counts(server)
        assert shown['consumer_group_count{state="Empty"}'] == 1
        assert 'consumer_group_count{state="Stable"}' not in shown
        assert shown["consumer_group_rebalance_count"] == 2
    async with running(tmp_path, **ONCE) as server:
        with trio.fail_after(30):
            while not (shown := await read_counts(server)):  # noqa: ASYNC110 - a load has no event
                await trio.sleep(0.01)
        assert shown['group_count{protocol="consumer"}'] == 1
        assert not {name for name in shown if "rebalance" in name}, "a load is no rebalance"


async def have_groups(client: TrioWireClient) -> None:
    """Let a member join a group of each kind."""
    find = FindCoordinatorRequest(key_type=0, coordinator_keys=["g"])
    for _ in range(500):
        if not (await client.call(find, 4)).coordinators[0].error_code:
            break
        await trio.sleep(0.01)
    member: dict[str, Any] = {"member_id": "m", "member_epoch": 0, "subscribed_topic_names": ["t"]}
    consuming = ConsumerGroupHeartbeatRequest(
        group_id="consumers", rebalance_timeout_ms=60_000, topic_partitions=[], **member
    )
    assert (await client.call(consuming, 1)).error_code == 0
    sharing = ShareGroupHeartbeatRequest(group_id="sharers", **member)
    assert (await client.call(sharing, 1)).error_code == 0
    protocol = JoinGroupRequest.JoinGroupRequestProtocol(name="range", metadata=b"")
    joining = JoinGroupRequest(
        group_id="classic",
        session_timeout_ms=10_000,
        rebalance_timeout_ms=10_000,
        member_id="",
        protocol_type="consumer",
        protocols=[protocol],
    )
    joined = await client.call(joining, 3)
    syncing = SyncGroupRequest(
        group_id="classic",
        generation_id=joined.generation_id,
        member_id=joined.member_id,
        assignments=[],
    )
    assert (await client.call(syncing, 3)).error_code == 0


async def read_counts(server: Server) -> dict[str, float]:
    """Return what is not 0 of the counts of groups and rebalances."""
    counts = add_gauges(server.core, server.broker)
    await counts.update()
    return {
        name.removeprefix(COORDINATOR): value
        for name, value in values(server.services.metrics).items()
        if name.startswith(COORDINATOR) and value
    }


@pytest.mark.slow
async def test_lag_of_a_share_group_needs_no_member(tmp_path: Path) -> None:
    async with running(tmp_path, **ONCE) as server:
        await create(server, "t", 2)
        assert server.broker is not None
        persister = server.broker.share_states.persister()
        topic_id = server.core.publisher.image.topic_ids["t"]
        initial = {0: InitialState(1, 0), 1: InitialState(1, -1)}
        assert await persister.initialize("g", topic_id, initial) == {0: 0, 1: 0}
        assert await persister.write("g", topic_id, 0, 1, 0, 1, 2, []) == 0
        async with await TrioWireClient.connect(*server.address) as client:
            await produce(client, topic_id, 5)
        add_gauges(server.core, server.broker)
        shown = values(server.services.metrics)
        assert shown['kafka_topic_partition_current_offset{topic="t",partition="0"}'] == 5
        shared = {name: value for name, value in shown.items() if "kafka_sharegroup" in name}
        assert shared == {
            f"kafka_sharegroup_current_offset{labels('g', 0, 't')}": 3,
            f"kafka_sharegroup_lag{labels('g', 0, 't')}": 2,
        }


async def produce(client: TrioWireClient, topic_id: bytes, count: int) -> None:
    topic = ProduceRequest.TopicProduceData
    records = batch([New(None, b"v")] * count, timestamp_ms=1)
    data = topic(
        topic_id=topic_id, partition_data=[topic.PartitionProduceData(index=0, records=records)]
    )
    answer = await client.call(ProduceRequest(acks=-1, timeout_ms=10_000, topic_data=[data]), 13)
    assert answer.responses[0].partition_responses[0].error_code == 0


def test_states_of_groups_have_the_names_of_each_kind() -> None:
    kinds = {
        "classic": ClassicGroupState,
        "consumer": ConsumerState,
        "share": ShareState,
        "streams": StreamsState,
    }
    assert {kind: set(states) for kind, states in STATES.items()} == {
        kind: {state.value for state in states} for kind, states in kinds.items()
    }
