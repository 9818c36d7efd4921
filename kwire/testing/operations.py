"""Changes that a test makes to a running cluster: leaders, coordinators, rebalances, producers.

Rules: each change uses the nodes' own requests and decisions, so that a tool or another client
could cause it too. A function returns once its change is in force on every running node.
"""

from functools import partial
from typing import Final

from kwire.codec.messages.alter_partition_reassignments import AlterPartitionReassignmentsRequest
from kwire.codec.messages.elect_leaders import ElectLeadersRequest
from kwire.codec.messages.init_producer_id import InitProducerIdRequest
from kwire.coordinator.decision import Decision, Moment
from kwire.coordinator.partitioning import partition_for
from kwire.errors import ConcurrentTransactions, ElectionNotNeeded, NotCoordinator
from kwire.group import rebalance as rebalances
from kwire.group.decision_builder import DecisionBuilder
from kwire.group.shard import GroupShard
from kwire.testing.errors import BrokerError
from kwire.testing.nodes import LocalCluster, raise_for
from kwire.testing.waits import NO_COORDINATOR, TIMEOUT_S, NotYet, wait_leader, wait_until
from kwire.types import CONSUMER_OFFSETS, TRANSACTION_STATE

_FENCED_TIMEOUT_MS: Final = 60_000


async def move_leader(cluster: LocalCluster, topic: str, partition: int, node: int) -> None:
    """Make an in-sync replica the leader of a partition."""
    image = cluster.running[0].image.partition(topic, partition)
    if image is None:
        raise BrokerError(f"there is no partition {topic}-{partition}")
    if node not in image.isr:
        ids = ", ".join(map(str, sorted(image.isr))) or "none"
        raise BrokerError(f"node {node} is not an in-sync replica of {topic}-{partition}: {ids}")
    what = f"move the leader of {topic}-{partition} to node {node}"
    replicas = [node, *(each for each in image.replicas if each != node)]
    shape = AlterPartitionReassignmentsRequest.ReassignableTopic
    spot = shape.ReassignablePartition(partition_index=partition, replicas=replicas)
    order = AlterPartitionReassignmentsRequest(topics=[shape(name=topic, partitions=[spot])])
    ordered = await cluster.running[0].call(order, 0)
    raise_for(ordered.error_code, ordered.error_message, what)
    for result in ordered.responses[0].partitions:
        raise_for(result.error_code, result.error_message, what)
    chosen = ElectLeadersRequest.TopicPartitions(topic=topic, partitions=[partition])
    elected = await cluster.running[0].call(ElectLeadersRequest(topic_partitions=[chosen]), 2)
    raise_for(elected.error_code, None, what)
    for election in elected.replica_election_results:
        for outcome in election.partition_result:
            if outcome.error_code != ElectionNotNeeded.code:
                raise_for(outcome.error_code, outcome.error_message, what)
    await wait_leader(cluster, topic, partition, node)


async def move_coordinator(
    cluster: LocalCluster, node: int, *, group: str = "", transactional_id: str = ""
) -> None:
    """Make a node the coordinator of a group or of a transactional id, which must be in use."""
    if bool(group) == bool(transactional_id):
        raise BrokerError("give either a group or a transactional id")
    topic = CONSUMER_OFFSETS if group else TRANSACTION_STATE
    image = cluster.running[0].image.topic(topic)
    if image is None:
        raise BrokerError(f"there is no topic {topic} yet, because no client has needed it")
    partition = partition_for(group or transactional_id, len(image.partitions))
    await move_leader(cluster, topic, partition, node)


async def rebalance(cluster: LocalCluster, group: str) -> None:
    """Begin a rebalance of a group with the classic protocol, in which every member rejoins."""
    if cluster.running[0].image.topic(CONSUMER_OFFSETS) is None:
        raise BrokerError(f"there is no group {group} yet")

    async def look() -> None:
        for node in cluster.running:
            broker = node.running.broker
            assert broker is not None, "every test node is a broker"
            groups = broker.groups.coordinator()
            try:
                decide = partial(_rebalance, group)
                has_begun = await groups.service.call(groups.partition_of(group), decide)
            except NotCoordinator:
                continue
            if not has_begun:
                raise BrokerError(f"there is no group {group} with members of the classic protocol")
            return
        raise NotYet("no node was its coordinator")

    await wait_until(f"a rebalance of the group {group}", look, TIMEOUT_S)


def _rebalance(group_id: str, shard: GroupShard, moment: Moment, ticket: int) -> Decision:
    builder = DecisionBuilder(moment, shard.settings(), ticket)
    group = shard.groups.get(group_id)
    is_possible = group is not None and bool(group.members)
    builder.answer(ticket, is_possible)
    if group is None or not is_possible:
        return builder.build()
    return builder.build(rebalances.rebalance(builder, group, "a test asks for it"))


async def fence_producer(cluster: LocalCluster, transactional_id: str) -> None:
    """Fence the producer of a transactional id, as a second producer with this id would.

    A transaction in progress is aborted.
    """
    if cluster.running[0].image.topic(TRANSACTION_STATE) is None:
        raise BrokerError(f"no producer has used the transactional id {transactional_id} yet")
    request = InitProducerIdRequest(
        transactional_id=transactional_id,
        transaction_timeout_ms=_FENCED_TIMEOUT_MS,
        producer_id=-1,
        producer_epoch=-1,
    )

    async def look() -> None:
        for node in cluster.running:
            code = (await node.call(request, 4)).error_code
            if code in NO_COORDINATOR:
                continue
            if code == ConcurrentTransactions.code:
                raise NotYet("its transaction was being aborted")
            raise_for(code, None, f"fence the producer {transactional_id}")
            return
        raise NotYet("no coordinator was ready")

    await wait_until(f"a new epoch of {transactional_id}", look, TIMEOUT_S)
