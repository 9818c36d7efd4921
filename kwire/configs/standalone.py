"""The settings of nodes that start without a file: a single node, test brokers, local clusters.

Rules: whatever the user sets comes first. A node that keeps its data has Kafka's defaults except
where a single node could not work with them; one for tests also has groups that do not wait.
"""

from collections.abc import Mapping
from typing import Final

ALONE: Final[Mapping[str, str]] = {
    "process.roles": "broker,controller",
    "node.id": "1",
    "listeners": "PLAINTEXT://127.0.0.1:9092,CONTROLLER://127.0.0.1:9093",
    "controller.listener.names": "CONTROLLER",
    "controller.quorum.bootstrap.servers": "127.0.0.1:9093",
    "log.dirs": "kwire-data",
    "offsets.topic.replication.factor": "1",
    "transaction.state.log.replication.factor": "1",
    "transaction.state.log.min.isr": "1",
    "share.coordinator.state.topic.replication.factor": "1",
    "share.coordinator.state.topic.min.isr": "1",
    "group.initial.rebalance.delay.ms": "0",
}
"""The properties of `serve` without a file: a single node that is its own quorum."""

_HEARTBEAT_INTERVAL_MS: Final = "200"
PROMPT_GROUPS: Final[Mapping[str, str]] = {
    "group.initial.rebalance.delay.ms": "0",
    "group.streams.initial.rebalance.delay.ms": "0",
    **{
        f"group.{kind}.{setting}": value
        for kind in ("consumer", "share", "streams")
        for setting, value in (
            ("assignment.interval.ms", "0"),
            ("heartbeat.interval.ms", _HEARTBEAT_INTERVAL_MS),
            ("min.heartbeat.interval.ms", _HEARTBEAT_INTERVAL_MS),
        )
    },
}
"""Settings of brokers for tests, with which members soon learn of each change of their group.

In the newer protocols, a member learns its partitions with a heartbeat, and gives some up with the
next one. With Kafka's interval of 5 s, a second consumer waits about 10 s for its partitions, and a
first member of a share group 5 s for its first records.
"""
