"""Waits for conditions that tests need: topics, leaders, groups, lag, ends of transactions.

Rules: a wait queries the nodes directly, without a connection. It checks every few milliseconds,
and its timeout error describes the last state that it saw.
"""

from collections.abc import Awaitable, Callable
from typing import Final

import trio

from kwire.codec.messages.describe_groups import DescribeGroupsRequest
from kwire.codec.messages.describe_transactions import DescribeTransactionsRequest
from kwire.codec.messages.list_offsets import ListOffsetsRequest
from kwire.codec.messages.offset_fetch import OffsetFetchRequest
from kwire.errors import (
    CoordinatorLoadInProgress,
    CoordinatorNotAvailable,
    NotCoordinator,
    TransactionalIdNotFound,
)
from kwire.testing.arguments import check_number, check_whole
from kwire.testing.errors import BrokerError
from kwire.testing.nodes import LocalCluster, error_name
from kwire.types import NO_LEADER, TopicPartition

TIMEOUT_S: Final = 10.0
_INTERVAL_S: Final = 0.005
NO_COORDINATOR: Final = frozenset(
    error.code for error in (CoordinatorLoadInProgress, CoordinatorNotAvailable, NotCoordinator)
)
_ENDED: Final = frozenset({"CompleteAbort", "CompleteCommit", "Dead", "Empty"})
"""The states of a transactional id without a transaction in progress."""
_LATEST: Final = -1
_EARLIEST: Final = -2


class NotYet(Exception):
    """The awaited state has not been reached; the text says what the current state is."""


async def wait_until(what: str, look: Callable[[], Awaitable[None]], timeout: float) -> None:
    """Wait until ``look`` does not raise NotYet; raise BrokerError after ``timeout`` seconds."""
    check_number("timeout", timeout)
    deadline = trio.current_time() + timeout
    while True:
        try:
            return await look()
        except NotYet as state:
            if trio.current_time() >= deadline:
                text = f"waited {timeout:g} s for {what}; in the end {state}"
                raise BrokerError(text) from None
        await trio.sleep(_INTERVAL_S)


async def wait_topic(
    cluster: LocalCluster, name: str, partitions: int | None = None, timeout: float = TIMEOUT_S
) -> None:
    """Wait until every node has the topic, with leaders and ``partitions`` partitions if given."""
    if partitions is not None:
        check_whole("partitions", partitions)

    async def look() -> None:
        for node in cluster.running:
            topic = node.image.topic(name)
            if topic is None:
                names = ", ".join(sorted(node.image.topic_ids)) or "no topics"
                raise NotYet(f"node {node.id} had {names}")
            if partitions not in (None, len(topic.partitions)):
                raise NotYet(f"it had {len(topic.partitions)} partitions")
            for index, partition in topic.partitions.items():
                if partition.leader == NO_LEADER:
                    raise NotYet(f"partition {index} had no leader")

    what = f"the topic {name}" + ("" if partitions is None else f" with {partitions} partitions")
    await wait_until(what, look, timeout)


async def wait_leader(
    cluster: LocalCluster,
    topic: str,
    partition: int = 0,
    node: int | None = None,
    timeout: float = TIMEOUT_S,
) -> int:
    """Wait until all nodes know the same running leader, ``node`` if given; return its id."""
    if node is not None:
        check_whole("node", node)
    leaders: set[int] = set()

    async def look() -> None:
        leaders.clear()
        for each in cluster.running:
            image = each.image.partition(topic, partition)
            leaders.add(NO_LEADER if image is None else image.leader)
        if dead := leaders - {NO_LEADER, *(each.id for each in cluster.running)}:
            raise NotYet(f"the leader was node {min(dead)}, which is not running")
        if len(leaders) > 1 or NO_LEADER in leaders or (node is not None and node not in leaders):
            ids = ", ".join("none" if n == NO_LEADER else f"node {n}" for n in sorted(leaders))
            raise NotYet(f"the nodes' leader was {ids}")

    which = "a leader" if node is None else f"node {node} as leader"
    await wait_until(f"{which} of {topic}-{partition}", look, timeout)
    return leaders.pop()


async def wait_in_sync(
    cluster: LocalCluster,
    topic: str,
    partition: int = 0,
    count: int | None = None,
    timeout: float = TIMEOUT_S,
) -> None:
    """Wait until ``count`` replicas of a partition are in sync; None means all of them."""
    if count is not None:
        check_whole("count", count)

    async def look() -> None:
        for node in cluster.running:
            image = node.image.partition(topic, partition)
            if image is None:
                raise NotYet(f"node {node.id} did not know the partition")
            if len(image.isr) != (len(image.replicas) if count is None else count):
                isr = ", ".join(map(str, sorted(image.isr))) or "none"
                raise NotYet(f"the in-sync replicas were {isr} of {len(image.replicas)}")

    many = "all replicas" if count is None else f"{count} replicas"
    await wait_until(f"{many} of {topic}-{partition} in sync", look, timeout)


async def wait_group(
    cluster: LocalCluster, group: str, members: int = 1, timeout: float = TIMEOUT_S
) -> None:
    """Wait until a group has exactly ``members`` members, all with assignments; 0: it is empty."""
    check_whole("members", members)

    async def look() -> None:
        for node in cluster.running:
            request = DescribeGroupsRequest(groups=[group])
            (state,) = (await node.call(request, 5)).groups
            if state.error_code in NO_COORDINATOR:
                continue
            expected = ("Stable",) if members else ("Empty", "Dead")
            if state.group_state not in expected or len(state.members) != members:
                ids = ", ".join(m.client_id for m in state.members) or "no members"
                raise NotYet(f"it was {state.group_state} with {len(state.members)}: {ids}")
            return
        if members:
            if cluster.running[0].image.topic("__consumer_offsets") is None:
                raise NotYet("no client had used any group")
            raise NotYet("no node was its coordinator")

    await wait_until(f"the group {group} with {members} members", look, timeout)


async def wait_lag(
    cluster: LocalCluster,
    group: str,
    topic: str | None = None,
    lag: int = 0,
    timeout: float = TIMEOUT_S,
) -> None:
    """Wait until a group has committed all but ``lag`` offsets of every partition.

    Without ``topic``, these are the partitions for which the group has committed any offset. A
    partition of ``topic`` without a committed offset counts from its first record.
    """
    check_whole("lag", lag)

    async def look() -> None:
        offsets = await _committed_offsets(cluster, group)
        if topic is not None:
            image = cluster.running[0].image.topic(topic)
            if image is None:
                raise NotYet(f"there was no topic {topic}")
            partitions = [TopicPartition(topic, index) for index in sorted(image.partitions)]
        else:
            partitions = sorted(offsets)
        if not partitions:
            raise NotYet("it had committed nothing")
        behind = []
        for partition in partitions:
            end = await _offset(cluster, partition, _LATEST)
            start = offsets.get(partition)
            if start is None:
                start = await _offset(cluster, partition, _EARLIEST)
            if end - start > lag:
                behind.append(f"{partition} by {end - start} (at {start} of {end})")
        if behind:
            raise NotYet(f"it was behind in {', '.join(behind)}")

    of_topic = "" if topic is None else f" in {topic}"
    await wait_until(f"the group {group} with a lag of {lag}{of_topic}", look, timeout)


async def _committed_offsets(cluster: LocalCluster, group: str) -> dict[TopicPartition, int]:
    shape = OffsetFetchRequest.OffsetFetchRequestGroup
    for node in cluster.running:
        request = OffsetFetchRequest(groups=[shape(group_id=group, topics=None)])
        (answer,) = (await node.call(request, 9)).groups
        if not answer.error_code:
            return {
                TopicPartition(topic.name, partition.partition_index): partition.committed_offset
                for topic in answer.topics
                for partition in topic.partitions
                if partition.committed_offset >= 0
            }
    raise NotYet("no node was its coordinator")


async def _offset(cluster: LocalCluster, partition: TopicPartition, timestamp: int) -> int:
    """Return the first or the end offset of a partition, as its leader reports it."""
    image = cluster.running[0].image.partition(*partition)
    leader = None if image is None else cluster.nodes.get(image.leader)
    if leader is None or leader.server is None:
        raise NotYet(f"no running node led {partition}")
    shape = ListOffsetsRequest.ListOffsetsTopic
    spot = shape.ListOffsetsPartition(partition_index=partition.partition, timestamp=timestamp)
    request = ListOffsetsRequest(
        replica_id=-1, topics=[shape(name=partition.topic, partitions=[spot])]
    )
    answer = (await leader.call(request, 7)).topics[0].partitions[0]
    if answer.error_code:
        raise NotYet(f"{partition} answered {error_name(answer.error_code)}")
    offset: int = answer.offset
    return offset


async def wait_transaction_end(
    cluster: LocalCluster, transactional_id: str, timeout: float = TIMEOUT_S
) -> str:
    """Wait until no transaction of the id is in progress; return the state, e.g. CompleteCommit."""
    states: list[str] = []

    async def look() -> None:
        states.clear()
        for node in cluster.running:
            request = DescribeTransactionsRequest(transactional_ids=[transactional_id])
            (answer,) = (await node.call(request, 0)).transaction_states
            if answer.error_code in NO_COORDINATOR:
                continue
            if answer.error_code == TransactionalIdNotFound.code:
                raise NotYet("no producer had used it")
            if answer.error_code:
                raise NotYet(f"the coordinator answered {error_name(answer.error_code)}")
            states.append(answer.transaction_state)
            if answer.transaction_state not in _ENDED:
                topics = ", ".join(topic.topic for topic in answer.topics) or "no topics"
                raise NotYet(f"it was {answer.transaction_state} with {topics}")
            return
        raise NotYet("no node was its coordinator")

    await wait_until(f"the end of the transaction of {transactional_id}", look, timeout)
    return states[0]
