"""The settings of each part of a node, from its configuration: pure, one function per part."""

import logging
from collections.abc import Mapping
from typing import Final

import attrs

from kwire.configs import listeners
from kwire.configs.broker import BrokerConfig
from kwire.configs.declare import ConfigError, Key
from kwire.configs.listeners import connection_counts, listener_prefix
from kwire.log.config import CleanerSettings, LogConfig, LogSettings, ScrubSettings
from kwire.net.limits import Limits
from kwire.node.tls import controller_listener
from kwire.raftmeta.metadata.snapshot_cadence import SnapshotCadence
from kwire.raftmeta.raft.cleaning import MetadataRetention
from kwire.raftmeta.raft.state import RaftConfig
from kwire.raftmeta.raft.voters import Node, ReplicaKey, Voter, VoterEndpoint, VoterSet
from kwire.storage_format.directories import Identity

logger = logging.getLogger(__name__)

AdvertisedListener = listeners.ListenerEndpoint
"""An address as advertised to clients and other nodes."""

_FIRST_BOOTSTRAP_ID: Final = -2
_SOCKET_BUFFER_BYTES: Final = 512 << 10
"""The size of socket buffers if the configuration gives none.

See docs/decisions/0011-socket-buffers.md.
"""
_BACKLOG_AT_LEAST: Final = 1024
"""The smallest backlog.

Kafka has a thread that does nothing but accept. Here a busy millisecond must not fill the queue,
because a client that finds it full retries only a second later.
"""


def limits(config: BrokerConfig) -> Limits:
    """Return the limits of connections and requests."""
    node = Limits(
        max_connections=config.max_connections,
        max_connections_per_ip=config.max_connections_per_ip,
        max_connections_per_ip_overrides=connection_counts(config.max_connections_per_ip_overrides),
        max_connection_creation_rate=config.max_connection_creation_rate,
        connections_max_idle_ms=config.connections_max_idle_ms,
        socket_request_max_bytes=config.socket_request_max_bytes,
        socket_receive_buffer_bytes=_buffer(config, "socket.receive.buffer.bytes"),
        socket_send_buffer_bytes=_buffer(config, "socket.send.buffer.bytes"),
        socket_listen_backlog_size=max(config.socket_listen_backlog_size, _BACKLOG_AT_LEAST),
        queued_max_request_bytes=config.queued_max_request_bytes,
        quota_window_num=config.quota_window_num,
        quota_window_size_seconds=config.quota_window_size_seconds,
    )
    return attrs.evolve(
        node, of_listeners={e.name: _limits_of(config, e.name, node) for e in config.endpoints}
    )


def _limits_of(config: BrokerConfig, listener: str, node: Limits) -> Limits:
    """Return the limits of a listener, which may have settings of its own (KIP-402, KIP-612)."""
    most = _own_value(config, listener, BrokerConfig.max_connections)
    rate = _own_value(config, listener, BrokerConfig.max_connection_creation_rate)
    return attrs.evolve(
        node,
        max_connections=node.max_connections if most is None else most,
        max_connection_creation_rate=node.max_connection_creation_rate if rate is None else rate,
    )


def _own_value(config: BrokerConfig, listener: str, key: Key[int]) -> int | None:
    """Return the value of a setting that concerns only one listener; None if it is not set."""
    name = listener_prefix(listener) + key.name
    for texts in (config.own, config.cluster, config.static):
        if name in texts:
            try:
                return key.parse(texts[name])
            except ConfigError as error:  # An Apache Kafka controller stores whatever it is sent.
                logger.warning("dynamic setting ignored name=%s reason=%s", name, error)
    return None


def _buffer(config: BrokerConfig, name: str) -> int:
    """Return the configured buffer size (-1: the kernel's choice), or a size for large answers."""
    size: int = getattr(config, name.replace(".", "_"))
    return size if config.is_set(name) else _SOCKET_BUFFER_BYTES


def log_settings(config: BrokerConfig) -> LogSettings:
    return LogSettings(
        high_watermark_checkpoint_ms=config.replica_high_watermark_checkpoint_interval_ms,
        flush_checkpoint_ms=config.log_flush_offset_checkpoint_interval_ms,
        retention_check_ms=config.log_retention_check_interval_ms,
        producer_expiry_check_ms=config.producer_id_expiration_check_interval_ms,
    )


def cleaner_settings(config: BrokerConfig) -> CleanerSettings:
    """Return the settings of compaction, which may change at run time."""
    return CleanerSettings(
        threads=config.log_cleaner_threads,
        backoff_ms=config.log_cleaner_backoff_ms,
        map_bytes=config.log_cleaner_dedupe_buffer_size,
        load_factor=config.log_cleaner_io_buffer_load_factor,
        buffer_bytes=config.log_cleaner_io_buffer_size,
        bytes_per_second=config.log_cleaner_io_max_bytes_per_second,
    )


def scrub_settings(config: BrokerConfig) -> ScrubSettings | None:
    """Return the settings of the scrub; None if it is off."""
    if not config.kwire_scrub_interval_ms:
        return None
    return ScrubSettings(
        interval_s=config.kwire_scrub_interval_ms / 1000,
        bytes_per_second=config.kwire_scrub_bytes_per_second,
    )


def metadata_log(config: BrokerConfig) -> LogConfig:
    """Return the settings of the metadata log."""
    small = config.internal_metadata_log_segment_bytes
    return LogConfig(
        segment_bytes=config.metadata_log_segment_bytes if small is None else small,
        segment_ms=config.metadata_log_segment_ms,
    )


def metadata_retention(config: BrokerConfig) -> MetadataRetention:
    """Return the limits of the metadata log's size and age."""
    return MetadataRetention(
        max_bytes=config.metadata_max_retention_bytes, max_ms=config.metadata_max_retention_ms
    )


def snapshot_cadence(config: BrokerConfig) -> SnapshotCadence:
    """Return how often a snapshot of the metadata is written."""
    return SnapshotCadence(
        max_bytes=config.metadata_log_max_record_bytes_between_snapshots,
        max_seconds=config.metadata_log_max_snapshot_interval_ms / 1000,
    )


def advertised_listeners(
    config: BrokerConfig, bound: Mapping[str, int], this_host: str
) -> tuple[AdvertisedListener, ...]:
    """Return the advertised addresses, with the ports that were actually bound."""
    return tuple(
        endpoint._replace(
            host=endpoint.host if endpoint.host not in ("", "0.0.0.0", "::") else this_host,
            port=endpoint.port or bound.get(endpoint.name, 0),
        )
        for endpoint in config.advertised_endpoints
    )


def raft_config(
    config: BrokerConfig,
    identity: Identity,
    directory_id: bytes,
    controller_endpoints: tuple[VoterEndpoint, ...],
) -> RaftConfig:
    """Return this node's quorum settings; ``controller_endpoints`` are its own listeners."""
    return RaftConfig(
        node_id=config.node_id,
        directory_id=directory_id,
        cluster_id=identity.cluster_id,
        endpoints=controller_endpoints,
        listener=controller_listener(config),
        bootstrap=tuple(
            Node(_FIRST_BOOTSTRAP_ID - index, address.host, address.port)
            for index, address in enumerate(config.bootstrap_servers)
        ),
        can_vote=config.is_controller,
        auto_join=config.controller_quorum_auto_join_enable,
        election_timeout_s=config.controller_quorum_election_timeout_ms / 1000,
        election_backoff_max_s=config.controller_quorum_election_backoff_max_ms / 1000,
        fetch_timeout_s=config.controller_quorum_fetch_timeout_ms / 1000,
        request_timeout_s=config.controller_quorum_request_timeout_ms / 1000,
        retry_backoff_s=config.controller_quorum_retry_backoff_ms / 1000,
        fetch_max_bytes=config.controller_quorum_fetch_max_bytes,
        snapshot_max_bytes=config.controller_quorum_fetch_snapshot_max_bytes,
    )


def configured_voters(config: BrokerConfig) -> VoterSet:
    """Return the voters in ``controller.quorum.voters``; none if the quorum is dynamic."""
    listener = controller_listener(config)
    return VoterSet.of(
        Voter(ReplicaKey(node), (VoterEndpoint(listener, address.host, address.port),))
        for node, address in config.voters.items()
    )
