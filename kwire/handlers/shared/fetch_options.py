"""The arguments of a Fetch that apply to all its partitions.

Rules: followers read up to the log end and need permission on the cluster; consumers read up to the
high watermark or the last stable offset and need permission on the topics. A consumer's rack
matters only if the broker selects replicas by rack (KIP-392).
"""

from collections.abc import Callable
from functools import partial
from typing import Final

from kwire.configs.broker import RACK_AWARE_SELECTOR
from kwire.handlers.shared.context import CLUSTER, Context
from kwire.replica.fetch_pass import FetchOptions
from kwire.replica.leader import PartitionLeader
from kwire.replica.partition import FetchIsolation
from kwire.replica.read_replicas import ReadReplica, select

_READ_COMMITTED: Final = 1


def options_of(
    context: Context,
    reader: int,
    broker_epoch: int,
    isolation_level: int,
    min_bytes: int,
    max_bytes: int,
    rack_id: str,
    *,
    zstd_allowed: bool = True,
    reads_followers: bool = True,
) -> FetchOptions:
    """Return the arguments that apply to all partitions.

    ``reader``: the broker id of a follower, or :data:`CONSUMER`. ``reads_followers``: True if the
    consumer's version supports reading from followers.
    """
    config = context.config
    if reader >= 0:
        isolation, reads_followers = FetchIsolation.LOG_END, False
    elif isolation_level == _READ_COMMITTED:
        isolation = FetchIsolation.STABLE
    else:
        isolation = FetchIsolation.HIGH_WATERMARK
    max_bytes = min(max_bytes, config.fetch_max_bytes)
    options = FetchOptions(
        isolation,
        min(min_bytes, max_bytes),
        max_bytes,
        reader,
        broker_epoch,
        zstd_allowed,
        reads_followers,
        _permission(context, reader),
    )
    rack = rack_id if reads_followers else ""
    if rack and config.replica_selector_class == RACK_AWARE_SELECTOR:
        nearest_follower = partial(_nearest_follower, context, rack)
        options = options._replace(rack=rack, nearest_follower=nearest_follower)
    return options


def _permission(context: Context, reader: int) -> Callable[[str | bytes], bool] | None:
    """Return whether the client may read a topic; followers need permission on the cluster."""
    if context.services.authorizer is None:
        return None
    if reader >= 0:
        is_broker = context.is_allowed("ClusterAction", "Cluster", CLUSTER)
        return lambda topic: is_broker

    def may_read(topic: str | bytes) -> bool:
        name = topic if isinstance(topic, str) else context.image.topic_name(topic)
        return name is None or context.is_allowed("Read", "Topic", name)

    return may_read


def _nearest_follower(
    context: Context, rack: str, leader: PartitionLeader, offset: int
) -> int | None:
    """Return the follower that a consumer should read from, or None for the leader (KIP-392)."""
    brokers = context.image.brokers
    own = brokers.get(leader.node)
    followers = []
    for node, follower in leader.followers.items():
        broker = brokers.get(node)
        if (
            node in leader.isr
            and follower.log_start <= offset <= follower.log_end
            and broker is not None
            and not broker.fenced
            and broker.endpoint(context.listener) is not None
        ):
            near = ReadReplica(follower.log_end, follower.caught_up_at, node, broker.rack)
            followers.append(near)
    return select(rack, None if own is None else own.rack, followers)
