"""The nodes of the simulated cluster and their settings, with short times and small files."""

from collections.abc import Mapping, Sequence
from typing import Final

CLUSTER_ID: Final = "simulated-cluster-0001"
NODES: Final = (1, 2, 3, 4)
"""The brokers."""
CONTROLLERS: Final = (1, 2, 3)
MORE_CONTROLLERS: Final = (1, 2, 3, 4, 105)
"""The controllers of a dynamic quorum, each of which may become a voter."""
REPLICAS: Final = 3
GROUP_PARTITIONS: Final = 2
TRANSACTION_PARTITIONS: Final = 2
TIMEOUT_MS: Final = 6_000
"""The timeout of transactions."""
TRANSACTIONAL_IDS: Final = ("tx-0", "tx-1")
SESSION_MS: Final = 3_000
SESSION_S: Final = SESSION_MS / 1000
WITHOUT_CONTROLLERS_S: Final = 12.0
"""The longest time for which a broker serves without an answer from a controller."""
METADATA_PATH: Final = "/metadata"
"""The directory of the metadata log."""
SNAPSHOT_BYTES: Final = 6000
"""The number of bytes of records after which a node writes a snapshot."""
_SETTINGS: Final[Mapping[str, str]] = {
    "controller.listener.names": "CONTROLLER",
    "broker.session.timeout.ms": str(SESSION_MS),
    "broker.heartbeat.interval.ms": "500",
    "replica.lag.time.max.ms": "2000",
    "replica.fetch.max.bytes": "1000",
    "replica.fetch.backoff.ms": "500",
    "min.insync.replicas": "2",
    "log.index.interval.bytes": "300",
    "offsets.topic.num.partitions": "2",
    "group.consumer.session.timeout.ms": "6000",
    "group.consumer.min.session.timeout.ms": "6000",
    "group.consumer.heartbeat.interval.ms": "500",
    "group.consumer.min.heartbeat.interval.ms": "500",
    "group.share.session.timeout.ms": "6000",
    "group.share.min.session.timeout.ms": "6000",
    "group.share.heartbeat.interval.ms": "500",
    "group.share.min.heartbeat.interval.ms": "500",
    "group.share.record.lock.duration.ms": "4000",
    "group.share.min.record.lock.duration.ms": "4000",
    "group.share.initialize.retry.interval.ms": "5000",
    "share.coordinator.state.topic.num.partitions": "2",
    "share.coordinator.snapshot.update.records.per.snapshot": "4",
    "share.coordinator.state.topic.prune.interval.ms": "3000",
    "share.coordinator.cold.partition.snapshot.interval.ms": "4000",
    "transaction.state.log.num.partitions": "2",
    "transaction.state.log.min.isr": "2",
    "transaction.abort.timed.out.transaction.cleanup.interval.ms": "1000",
    "request.timeout.ms": "5000",
    "leader.imbalance.check.interval.seconds": "10",
    "auto.create.topics.enable": "false",
    "metadata.log.dir": METADATA_PATH,
    "metadata.log.max.record.bytes.between.snapshots": str(SNAPSHOT_BYTES),
    "metadata.log.max.snapshot.interval.ms": "0",
    "controller.quorum.fetch.max.bytes": "4000",
    "controller.quorum.fetch.snapshot.max.bytes": "500",
}


def data_path(place: int) -> str:
    """Return the path of a log directory."""
    return f"/data/{place}"


def settings_of(
    node: int, controllers: Sequence[int], directory_count: int, *, is_dynamic: bool
) -> dict[str, str]:
    """Return the settings of one node; with ``is_dynamic``, voters are in the log (KIP-853)."""
    roles = {"broker": node in NODES, "controller": node in controllers}
    listeners = {"broker": f"PLAINTEXT://node-{node}:9092"}
    listeners["controller"] = f"CONTROLLER://node-{node}:9093"
    settings = {
        **_SETTINGS,
        "process.roles": ",".join(role for role in roles if roles[role]),
        "node.id": str(node),
        "log.dirs": ",".join(map(data_path, range(directory_count))) or METADATA_PATH,
        "listeners": ",".join(listeners[role] for role in roles if roles[role]),
    }
    if is_dynamic:
        addresses = ",".join(f"node-{n}:9093" for n in controllers)
        settings["controller.quorum.bootstrap.servers"] = addresses
    else:
        voters = ",".join(f"{n}@node-{n}:9093" for n in controllers)
        settings["controller.quorum.voters"] = voters
    if roles["broker"]:
        settings["advertised.listeners"] = listeners["broker"]
    return settings
