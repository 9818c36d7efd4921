"""Verbs of test brokers: topics, waits, nodes, leaders, groups, producers and the clock.

Rules: each verb calls a method of :class:`kwire.testing.nodes.LocalCluster`, or a function about a
cluster, with the same meaning. ``node`` is a node's id; null means all nodes.
"""

from kwire.testing import operations, waits
from kwire.testing.control.table import Json
from kwire.testing.nodes import LocalCluster
from kwire.testing.waits import TIMEOUT_S


async def state(broker: LocalCluster) -> Json:
    """Return the addresses, the running nodes, the topics with their partitions, and the time."""
    running = [node for node in broker.nodes.values() if node.server is not None]
    image = running[0].image if running else None
    topics = {} if image is None else {topic.name: topic for topic in image.topics.values()}
    return {
        "bootstrap_servers": broker.bootstrap_servers,
        "time_ms": running[0].environment().clock.now_ms() if running else None,
        "nodes": [
            {
                "id": node.id,
                "host": node.address.host,
                "port": node.address.port,
                "is_running": node.server is not None,
                "is_paused": node.pause.is_on,
                "is_disk_full": node.disk_space.is_full,
            }
            for node in broker.nodes.values()
        ],
        "topics": [
            {
                "name": name,
                "partitions": [
                    {
                        "index": index,
                        "leader": partition.leader,
                        "replicas": list(partition.replicas),
                        "in_sync": list(partition.isr),
                    }
                    for index, partition in sorted(topics[name].partitions.items())
                ],
            }
            for name in sorted(topics)
        ],
    }


async def create_topic(
    broker: LocalCluster,
    name: str,
    partitions: int = 1,
    replication_factor: int = -1,
    settings: dict[str, str] | None = None,
) -> Json:
    """Create a topic and wait until every node serves it; settings have Kafka's names."""
    await broker.add_topic(name, partitions, replication_factor, settings or {})
    return {}


async def delete_topics(broker: LocalCluster, names: list[str]) -> Json:
    """Delete topics; topics that do not exist are skipped."""
    await broker.delete_topics(*names)
    return {}


async def reset(broker: LocalCluster) -> Json:
    """Delete all topics, groups and transactions; undo changed settings; clear the faults."""
    await broker.reset()
    return {}


async def save_snapshot(broker: LocalCluster, name: str) -> Json:
    """Save topics, records, groups and settings under a name; all nodes restart."""
    await broker.save_snapshot(name)
    return {}


async def restore_snapshot(broker: LocalCluster, name: str) -> Json:
    """Restore what was saved under the name; clear faults and requests; all nodes restart."""
    await broker.restore_snapshot(name)
    return {}


async def wait_topic(
    broker: LocalCluster, name: str, partitions: int | None = None, timeout: float = TIMEOUT_S
) -> Json:
    """Wait until every node has the topic, with leaders."""
    await waits.wait_topic(broker, name, partitions, timeout)
    return {}


async def wait_leader(
    broker: LocalCluster,
    topic: str,
    partition: int = 0,
    node: int | None = None,
    timeout: float = TIMEOUT_S,
) -> Json:
    """Wait until a running node (this node if given) leads the partition; return its id."""
    return {"node": await waits.wait_leader(broker, topic, partition, node, timeout)}


async def wait_in_sync(
    broker: LocalCluster,
    topic: str,
    partition: int = 0,
    count: int | None = None,
    timeout: float = TIMEOUT_S,
) -> Json:
    """Wait until this many replicas of the partition are in sync; null means all."""
    await waits.wait_in_sync(broker, topic, partition, count, timeout)
    return {}


async def wait_group(
    broker: LocalCluster, group: str, members: int = 1, timeout: float = TIMEOUT_S
) -> Json:
    """Wait until the group has this many members, each with its assignment; 0 means empty."""
    await waits.wait_group(broker, group, members, timeout)
    return {}


async def wait_lag(
    broker: LocalCluster,
    group: str,
    topic: str | None = None,
    lag: int = 0,
    timeout: float = TIMEOUT_S,
) -> Json:
    """Wait until the group has committed all but this many offsets of each partition."""
    await waits.wait_lag(broker, group, topic, lag, timeout)
    return {}


async def wait_transaction_end(
    broker: LocalCluster, transactional_id: str, timeout: float = TIMEOUT_S
) -> Json:
    """Wait until no transaction of the id is in progress; return how the last one ended."""
    return {"state": await waits.wait_transaction_end(broker, transactional_id, timeout)}


async def stop(broker: LocalCluster, node: int | None = None) -> Json:
    """Shut down a node cleanly until it is restarted; its data and port are kept."""
    await broker.stop(node)
    return {}


async def kill(broker: LocalCluster, node: int | None = None) -> Json:
    """End a node as kill -9 does, until it is restarted; its data and port are kept."""
    await broker.kill(node)
    return {}


async def start(broker: LocalCluster, node: int | None = None) -> Json:
    """Start a stopped node and wait until all running nodes are ready."""
    await broker.start(node)
    return {}


async def restart(broker: LocalCluster, node: int | None = None) -> Json:
    """Stop a node and start it again, with the same data and port."""
    await broker.restart(node)
    return {}


async def pause(broker: LocalCluster, node: int | None = None) -> Json:
    """Have a node accept requests of clients, but not answer them until it is resumed."""
    await broker.pause(node)
    return {}


async def resume(broker: LocalCluster, node: int | None = None) -> Json:
    """Answer the clients' requests that have waited since a pause, and later ones."""
    await broker.resume(node)
    return {}


async def fill_disk(broker: LocalCluster, node: int | None = None) -> Json:
    """Have a node reject records with KAFKA_STORAGE_ERROR, as with a full disk, until freed."""
    await broker.fill_disk(node)
    return {}


async def free_disk(broker: LocalCluster, node: int | None = None) -> Json:
    """Leave space for records again, after a disk was filled."""
    await broker.free_disk(node)
    return {}


async def move_leader(broker: LocalCluster, topic: str, node: int, partition: int = 0) -> Json:
    """Make an in-sync replica the leader of a partition."""
    await operations.move_leader(broker, topic, partition, node)
    return {}


async def move_coordinator(
    broker: LocalCluster, node: int, group: str = "", transactional_id: str = ""
) -> Json:
    """Make a node the coordinator of a group or a transactional id, which must be in use."""
    await operations.move_coordinator(broker, node, group=group, transactional_id=transactional_id)
    return {}


async def rebalance(broker: LocalCluster, group: str) -> Json:
    """Begin a rebalance of a group with the classic protocol, in which all members rejoin."""
    await operations.rebalance(broker, group)
    return {}


async def fence_producer(broker: LocalCluster, transactional_id: str) -> Json:
    """Fence the producer of a transactional id, as a second producer with this id would."""
    await operations.fence_producer(broker, transactional_id)
    return {}


async def advance_clock(broker: LocalCluster, seconds: float) -> Json:
    """Move the broker's time forward at once; sessions, transactions and retention expire."""
    return {"time_ms": await broker.advance(seconds)}


BROKER_VERBS = (
    state,
    create_topic,
    delete_topics,
    reset,
    save_snapshot,
    restore_snapshot,
    wait_topic,
    wait_leader,
    wait_in_sync,
    wait_group,
    wait_lag,
    wait_transaction_end,
    stop,
    kill,
    start,
    restart,
    pause,
    resume,
    fill_disk,
    free_disk,
    move_leader,
    move_coordinator,
    rebalance,
    fence_producer,
    advance_clock,
)
