"""The topics that are created on first use, internal ones among them: counts and settings."""

from typing import TYPE_CHECKING, Final

from kwire.configs.broker import BrokerConfig
from kwire.types import CONSUMER_OFFSETS, SHARE_GROUP_STATE, TRANSACTION_STATE

if TYPE_CHECKING:
    from kwire.codec.messages.create_topics import CreateTopicsRequest

    Topic = CreateTopicsRequest.CreatableTopic

REPLICATION_FACTORS: Final = {
    CONSUMER_OFFSETS: "offsets.topic.replication.factor",
    TRANSACTION_STATE: "transaction.state.log.replication.factor",
    SHARE_GROUP_STATE: "share.coordinator.state.topic.replication.factor",
}
"""The setting of each internal topic's number of replicas, 3 by default."""


def creatable(name: str, config: BrokerConfig) -> "Topic":
    """Return the request to create a topic on first use."""
    if name == CONSUMER_OFFSETS:
        return _topic(
            name,
            config.offsets_topic_num_partitions,
            config.offsets_topic_replication_factor,
            {
                "cleanup.policy": "compact",
                "compression.type": "producer",
                "segment.bytes": str(config.offsets_topic_segment_bytes),
            },
        )
    if name == TRANSACTION_STATE:
        return _topic(
            name,
            config.transaction_state_log_num_partitions,
            config.transaction_state_log_replication_factor,
            {
                "unclean.leader.election.enable": "false",
                "compression.type": "uncompressed",
                "cleanup.policy": "compact",
                "min.insync.replicas": str(config.transaction_state_log_min_isr),
                "segment.bytes": str(config.transaction_state_log_segment_bytes),
            },
        )
    if name == SHARE_GROUP_STATE:
        return _topic(
            name,
            config.share_coordinator_state_topic_num_partitions,
            config.share_coordinator_state_topic_replication_factor,
            {
                "cleanup.policy": "delete",
                "compression.type": "producer",
                "min.insync.replicas": str(config.share_coordinator_state_topic_min_isr),
                "retention.ms": "-1",
                "segment.bytes": str(config.share_coordinator_state_topic_segment_bytes),
            },
        )
    # The controller decides what this broker's configuration leaves open.
    return _topic(
        name,
        config.num_partitions if config.is_set("num.partitions") else -1,
        config.default_replication_factor if config.is_set("default.replication.factor") else -1,
        {},
    )


def _topic(name: str, partitions: int, replicas: int, configs: dict[str, str]) -> "Topic":
    from kwire.codec.messages.create_topics import CreateTopicsRequest

    topic = CreateTopicsRequest.CreatableTopic
    return topic(
        name=name,
        num_partitions=partitions,
        replication_factor=replicas,
        configs=[topic.CreatableTopicConfig(name=n, value=v) for n, v in configs.items()],
    )
