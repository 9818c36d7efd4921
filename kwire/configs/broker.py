"""The settings of a node, as in ``server.properties``.

Further settings are in :mod:`kwire.configs.security`, ``tls`` and ``inert``. A value set at run
time overrides the file's (``with_dynamic``), and one for this broker overrides one for all brokers.
"""

import functools
import logging
from collections.abc import Mapping
from typing import Final, Self, TypeVar, cast

from kwire.configs.consumer_groups import ConsumerGroupConfig
from kwire.configs.declare import (
    INT_MAX,
    LONG_MAX,
    ConfigError,
    Key,
    Kind,
    Scope,
    boolean,
    double,
    integer,
    long,
    optional_integer,
    optional_string,
    optional_strings,
    string,
    strings,
)
from kwire.configs.listeners import (
    Address,
    ListenerEndpoint,
    parse_address,
    parse_listeners,
    parse_protocol_map,
    parse_voters,
    per_address,
)
from kwire.configs.share import ShareConfig
from kwire.configs.streams_groups import StreamsGroupConfig
from kwire.configs.telemetry import TelemetryConfig

T = TypeVar("T")
logger = logging.getLogger(__name__)

OWN: Final = frozenset(
    (
        "broker.early.fencing.enable",
        "kwire.client.metrics.max.series",
        "kwire.produce.validation",
        "kwire.scrub.bytes.per.second",
        "kwire.scrub.interval.ms",
    )
)
"""Settings that Apache Kafka lacks; DescribeConfigs shows them only where they are set."""
CLUSTER_WIDE: Final = Scope.CLUSTER_WIDE
PER_BROKER: Final = Scope.PER_BROKER


def gzip_level(level: int) -> str | None:
    """Return Kafka's error text for a level that gzip lacks; None for a valid level."""
    if level == -1 or 1 <= level <= 9:
        return None
    return "Value must be between 1 and 9 or equal to -1"


RACK_AWARE_SELECTOR: Final = "org.apache.kafka.common.replica.RackAwareReplicaSelector"
_LEADER_SELECTOR: Final = "org.apache.kafka.common.replica.LeaderSelector"


def _selector(name: str) -> str | None:
    if name in (RACK_AWARE_SELECTOR, _LEADER_SELECTOR):
        return None
    return f"must be {RACK_AWARE_SELECTOR} or {_LEADER_SELECTOR}"


_FAMILIES: Final = (
    ("log.roll.ms", "log.roll.hours"),
    ("log.roll.jitter.ms", "log.roll.jitter.hours"),
    ("log.retention.ms", "log.retention.minutes", "log.retention.hours"),
)


def family(name: str) -> tuple[str, ...]:
    """Return the settings with the same meaning in different units, the finest unit first.

    If one of them is set at run time, it hides the others in the file.
    """
    if name == "log.flush.interval.ms":
        return (name, "log.flush.scheduler.interval.ms")
    return next((family for family in _FAMILIES if name in family), (name,))


class BrokerConfig(ConsumerGroupConfig, ShareConfig, StreamsGroupConfig, TelemetryConfig):
    """One node's settings; created by :func:`kwire.configs.load.broker_config`."""

    # fmt: off
    # The node and its place in the cluster
    process_roles = strings(
        (), "Roles of this node: broker, controller or both.", choices=("broker", "controller"),
        filled=True
    )
    node_id = integer(-1, "This node's number in the cluster.", low=0)
    broker_id = integer(-1, "An older name of node.id.")
    broker_rack = optional_string("The rack of the broker; replicas are spread over racks.")
    listeners = strings(
        ("PLAINTEXT://:9092",), "Addresses the node listens on, NAME://host:port each.",
        scope=PER_BROKER, filled=True
    )
    advertised_listeners = optional_strings(
        "Addresses that clients and other nodes connect to; by default the listeners.", filled=True
    )
    listener_security_protocol_map = string(
        "SASL_SSL:SASL_SSL,PLAINTEXT:PLAINTEXT,SSL:SSL,SASL_PLAINTEXT:SASL_PLAINTEXT",
        "Which protocol each listener name speaks.", scope=PER_BROKER
    )
    controller_listener_names = strings(
        (), "Names of the listeners that controllers use.", filled=True
    )
    inter_broker_listener_name = optional_string("The listener brokers use among themselves.")
    security_inter_broker_protocol = string(
        "PLAINTEXT", "The protocol between brokers when no listener is named for it.",
        choices=("PLAINTEXT", "SSL", "SASL_PLAINTEXT", "SASL_SSL")
    )
    early_start_listeners = optional_strings("Listeners opened before the ACLs are loaded.")
    authorizer_class_name = string("", "What decides by ACLs; empty: everybody may do everything.")
    unstable_api_versions_enable = boolean(
        False, "Offers versions of requests that may still change.", internal=True, effective=False
    )
    unstable_feature_versions_enable = boolean(
        False, "Offers levels of features that may still change.", internal=True, effective=False
    )

    # The metadata quorum
    controller_quorum_voters = strings((), "The fixed voters, id@host:port each.", repeats=True)
    controller_quorum_bootstrap_servers = strings(
        (), "Controllers to ask first when the voters are not fixed.", repeats=True
    )
    controller_quorum_auto_join_enable = boolean(
        False, "Whether a controller adds itself to the voters."
    )
    controller_quorum_append_linger_ms = integer(
        25, "How long Kafka's records wait to be written together; kwire writes and syncs at once "
        "what has come meanwhile.", low=0, effective=False
    )
    controller_quorum_election_backoff_max_ms = integer(
        1000, "The longest wait before another election is tried.", low=0
    )
    controller_quorum_election_timeout_ms = integer(
        1000, "How long a candidate waits for votes.", low=0
    )
    controller_quorum_fetch_max_bytes = integer(
        1 << 20, "The most bytes in a fetch of the metadata log.", low=1
    )
    controller_quorum_fetch_snapshot_max_bytes = integer(
        1 << 20, "The most bytes in a fetch of a metadata snapshot.", low=1
    )
    controller_quorum_fetch_timeout_ms = integer(
        2000, "How long a follower waits for the leader before it starts an election.", low=0
    )
    controller_quorum_request_timeout_ms = integer(
        2000, "How long a request between controllers may take.", low=0
    )
    controller_quorum_retry_backoff_ms = integer(
        20, "The wait before a failed request is retried.", low=0
    )
    metadata_log_dir = optional_string(
        "The directory of the metadata log; by default the first of log.dirs."
    )
    metadata_log_segment_bytes = integer(
        1 << 30, "The size of a segment of the metadata log.", low=8 << 20
    )
    internal_metadata_log_segment_bytes = optional_integer(
        "The same without a lower bound, for tests.", internal=True
    )
    metadata_log_segment_ms = long(
        604_800_000, "The age at which a segment of the metadata log is rolled."
    )
    metadata_log_max_record_bytes_between_snapshots = long(
        20 << 20, "Bytes of records after which a snapshot is made.", low=1
    )
    metadata_log_max_snapshot_interval_ms = long(
        3_600_000, "Time after which a snapshot is made if anything changed.", low=0
    )
    metadata_max_idle_interval_ms = integer(
        500, "How often an idle active controller writes a no-op record.", low=0
    )
    metadata_max_retention_bytes = long(
        100 << 20, "Size of log and snapshots above which only the newest snapshot and what "
        "follows it is kept; below it the one before, too."
    )
    metadata_max_retention_ms = long(
        604_800_000, "Age above which the snapshot before the newest is not kept either."
    )
    broker_heartbeat_interval_ms = integer(
        2000, "How often a broker sends a heartbeat to the controller."
    )
    broker_session_timeout_ms = integer(
        9000, "How long the controller waits for a heartbeat before it fences the broker."
    )
    broker_early_fencing_enable = boolean(
        True, "Whether the controller fences a broker at once whose process has ended.",
        internal=True
    )
    initial_broker_registration_timeout_ms = integer(
        60000, "How long a starting broker tries to register."
    )
    controlled_shutdown_enable = boolean(
        True, "Whether a stopping broker hands its leaders over first; kwire always does.",
        effective=False)
    auto_leader_rebalance_enable = boolean(
        True, "Whether leaders go back to the preferred replicas by themselves."
    )
    leader_imbalance_check_interval_seconds = long(300, "How often that is checked.", low=1)
    controller_quota_window_num = integer(
        11, "How many windows' worth of controller_mutation_rate may be saved up.", low=1
    )
    controller_quota_window_size_seconds = integer(1, "The length of such a window.", low=1)
    unclean_leader_election_enable = boolean(
        False, "Whether a replica that was not in sync may become leader.", scope=CLUSTER_WIDE
    )
    server_max_startup_time_ms = long(
        LONG_MAX, "How long starting up may take.", low=0, internal=True, effective=False
    )

    # Connections and requests
    num_network_threads = integer(
        3, "Kafka's number of network threads; kwire has one loop.", low=1, scope=CLUSTER_WIDE,
        effective=False
    )
    num_io_threads = integer(
        8, "Kafka's number of request threads; kwire has one loop.", low=1, scope=CLUSTER_WIDE,
        effective=False)
    background_threads = integer(
        10, "Kafka's number of background threads.", low=1, scope=CLUSTER_WIDE, effective=False
    )
    socket_listen_backlog_size = integer(50, "Connections that may wait to be accepted.", low=1)
    socket_receive_buffer_bytes = integer(
        102_400, "The socket's receive buffer; -1 leaves it to the system."
    )
    socket_send_buffer_bytes = integer(
        102_400, "The socket's send buffer; -1 leaves it to the system."
    )
    socket_request_max_bytes = integer(100 << 20, "The largest request.", low=1)
    queued_max_requests = integer(
        500, "Requests that may wait before the network is read no further.", low=1,
        effective=False)
    queued_max_request_bytes = long(-1, "Bytes of requests that may wait; -1 means no limit.")
    connections_max_idle_ms = long(600_000, "Idle time after which a connection is closed.")
    max_connections = integer(INT_MAX, "Simultaneous connections.", low=0, scope=CLUSTER_WIDE)
    max_connections_per_ip = integer(
        INT_MAX, "Simultaneous connections from one address.", low=0, scope=CLUSTER_WIDE
    )
    max_connections_per_ip_overrides = string(
        "", "Other numbers for some addresses, address:number each.", scope=CLUSTER_WIDE,
        check=per_address,
    )
    max_connection_creation_rate = integer(
        INT_MAX, "New connections a second.", low=0, scope=CLUSTER_WIDE
    )
    request_timeout_ms = integer(30000, "How long a request to another node may take.")
    max_request_partition_size_limit = integer(
        2000, "Partitions in one answer of DescribeTopicPartitions.", low=1
    )
    max_incremental_fetch_session_cache_slots = integer(1000, "Fetch sessions kept.", low=0)
    fetch_max_bytes = integer(57_671_680, "The most bytes in the answer to a Fetch.", low=1024)

    # Topics
    auto_create_topics_enable = boolean(True, "Whether a request for an unknown topic creates it.")
    delete_topic_enable = boolean(True, "Whether topics can be deleted.")
    num_partitions = integer(1, "Partitions of a topic when its creator does not say.", low=1)
    default_replication_factor = integer(1, "Replicas of a topic when its creator does not say.")
    min_insync_replicas = integer(
        1, "Replicas in sync that acks=all needs.", low=1, scope=CLUSTER_WIDE
    )
    kwire_produce_validation = string(
        "auto", "What of a produced batch is checked: header, records too, or auto: records if "
        "kwire's C module is built.", choices=("auto", "header", "records"), internal=True
    )
    kwire_scrub_interval_ms = long(
        0, "How often closed segments are checked for damage; 0 for never.", low=0, internal=True
    )
    kwire_scrub_bytes_per_second = long(
        10_485_760, "How much of a log directory is read or copied for that.", low=1, internal=True
    )
    compression_type = string(
        "producer", "The codec batches are stored in; producer leaves them as they come.",
        choices=("uncompressed", "zstd", "lz4", "snappy", "gzip", "producer"), scope=CLUSTER_WIDE
    )
    compression_gzip_level = integer(
        -1, "The level for gzip.", check=gzip_level, scope=CLUSTER_WIDE)
    compression_lz4_level = integer(
        9, "The level for lz4.", low=1, high=17, scope=CLUSTER_WIDE, effective=False)
    compression_zstd_level = integer(
        3, "The level for zstd.", low=-131_072, high=22, scope=CLUSTER_WIDE)
    message_max_bytes = integer(1_048_588, "The largest record batch.", low=0, scope=CLUSTER_WIDE)

    # The log
    log_dirs = optional_strings("Directories for the data.", filled=True)
    log_dir = strings(
        ("/tmp/kafka-logs",), "The data directory when log.dirs is not set.", filled=True
    )
    cordoned_log_dirs = strings(
        (), "Data directories that get no new partitions.", scope=PER_BROKER, effective=False
    )
    log_dir_failure_timeout_ms = long(
        30000, "How long the controller may not know of a failed directory.", low=1, effective=False
    )
    log_segment_bytes = integer(
        1 << 30, "The size at which a segment is rolled.", low=1 << 20, scope=CLUSTER_WIDE
    )
    log_roll_ms = optional_integer(
        "The age at which a segment is rolled; overrides log.roll.hours.", kind=Kind.LONG,
        scope=CLUSTER_WIDE
    )
    log_roll_hours = integer(168, "The age at which a segment is rolled.", low=1)
    log_roll_jitter_ms = optional_integer(
        "At most this much earlier, at random; overrides log.roll.jitter.hours.", kind=Kind.LONG,
        scope=CLUSTER_WIDE
    )
    log_roll_jitter_hours = integer(0, "At most this much earlier, at random.", low=0)
    log_index_interval_bytes = integer(
        4096, "Bytes between two entries of an index.", low=0, scope=CLUSTER_WIDE
    )
    log_index_size_max_bytes = integer(
        10 << 20, "The size of an index file.", low=4, scope=CLUSTER_WIDE
    )
    log_retention_bytes = long(
        -1, "The size of a partition above which old segments are deleted; -1 means no limit.",
        scope=CLUSTER_WIDE
    )
    log_retention_ms = optional_integer(
        "The age above which segments are deleted; overrides the minutes and hours.",
        kind=Kind.LONG, scope=CLUSTER_WIDE
    )
    log_retention_minutes = optional_integer("Segment age limit in minutes; overrides the hours.")
    log_retention_hours = integer(168, "The age above which segments are deleted.")
    log_retention_check_interval_ms = long(300_000, "How often old segments are looked for.", low=1)
    log_cleanup_policy = strings(
        ("delete",), "What happens to old segments: delete, compact, or both.",
        choices=("compact", "delete"), scope=CLUSTER_WIDE
    )
    log_segment_delete_delay_ms = long(
        60000, "How long a deleted file stays.", low=0, scope=CLUSTER_WIDE
    )
    log_flush_interval_messages = long(
        LONG_MAX, "Records after which a log is flushed to disk.", low=1, scope=CLUSTER_WIDE
    )
    log_flush_interval_ms = optional_integer(
        "Time after which a log is flushed to disk.", kind=Kind.LONG, scope=CLUSTER_WIDE
    )
    log_flush_scheduler_interval_ms = long(LONG_MAX, "How often logs that are due are looked for.")
    log_flush_offset_checkpoint_interval_ms = integer(
        60000, "How often recovery points are written.", low=0
    )
    log_flush_start_offset_checkpoint_interval_ms = integer(
        60000, "How often Kafka writes log starts.", low=0, effective=False
    )
    log_initial_task_delay_ms = long(
        30000, "The wait before the log's housekeeping begins.", low=0, internal=True,
        effective=False
    )
    log_preallocate = boolean(
        False, "Whether a segment's file gets its full size at once.", scope=CLUSTER_WIDE
    )
    log_message_timestamp_type = string(
        "CreateTime", "Whose clock stamps records: CreateTime or LogAppendTime.",
        choices=("CreateTime", "LogAppendTime"), scope=CLUSTER_WIDE
    )
    log_message_timestamp_before_max_ms = long(
        LONG_MAX, "How old a record's own timestamp may be.", low=0, scope=CLUSTER_WIDE
    )
    log_message_timestamp_after_max_ms = long(
        3_600_000, "How far ahead a record's own timestamp may be.", low=0, scope=CLUSTER_WIDE
    )
    num_recovery_threads_per_data_dir = integer(
        2, "Kafka's workers per directory that recover logs at the start.", low=1,
        scope=CLUSTER_WIDE, effective=False)
    log_cleaner_enable = boolean(True, "Whether logs are compacted.")
    log_cleaner_threads = integer(
        1, "Logs that are compacted at the same time.", low=0, scope=CLUSTER_WIDE
    )
    log_cleaner_backoff_ms = long(
        15000, "The wait after a change before logs are checked for compaction.", low=0,
        scope=CLUSTER_WIDE
    )
    log_cleaner_dedupe_buffer_size = long(
        134_217_728, "Memory for the keys of one compaction.", scope=CLUSTER_WIDE
    )
    log_cleaner_io_buffer_size = integer(
        524_288, "Memory for the records of one compaction.", low=0, scope=CLUSTER_WIDE
    )
    log_cleaner_io_buffer_load_factor = double(
        0.9, "How full the table of keys may get.", scope=CLUSTER_WIDE
    )
    log_cleaner_io_max_bytes_per_second = double(
        1.7976931348623157e308, "Bytes a second that compaction reads and writes.",
        scope=CLUSTER_WIDE
    )
    log_cleaner_delete_retention_ms = long(
        86_400_000, "How long a tombstone stays.", low=0, scope=CLUSTER_WIDE
    )
    log_cleaner_min_cleanable_ratio = double(
        0.5, "The uncompacted share of a log from which it is compacted.", low=0, high=1,
        scope=CLUSTER_WIDE
    )
    log_cleaner_min_compaction_lag_ms = long(
        0, "The age below which records are not compacted.", low=0, scope=CLUSTER_WIDE
    )
    log_cleaner_max_compaction_lag_ms = long(
        LONG_MAX, "The age at which records must be compacted.", low=1, scope=CLUSTER_WIDE
    )
    producer_id_expiration_ms = integer(
        86_400_000, "How long a silent producer is remembered.", low=1, scope=CLUSTER_WIDE
    )
    producer_id_expiration_check_interval_ms = integer(
        600_000, "How often expired producers are looked for.", low=1, internal=True
    )

    # Replication
    num_replica_fetchers = integer(
        1, "Fetchers per source broker.", low=1, scope=CLUSTER_WIDE, effective=False)
    replica_fetch_backoff_ms = integer(1000, "The wait after a failed fetch.", low=0)
    replica_fetch_max_bytes = integer(1 << 20, "Bytes a follower fetches per partition.", low=0)
    replica_fetch_min_bytes = integer(1, "Bytes for which a follower's fetch waits.")
    replica_fetch_response_max_bytes = integer(10 << 20, "Bytes a follower fetches at once.", low=0)
    replica_fetch_wait_max_ms = integer(500, "How long a follower's fetch may wait.")
    replica_high_watermark_checkpoint_interval_ms = long(
        5000, "How often high watermarks are written.")
    replica_lag_time_max_ms = long(
        30000, "How long a follower may lag before it leaves the replicas in sync.")
    replica_lag_max_messages = optional_integer(
        "Records that a replica in sync may lack.", kind=Kind.LONG, low=1, internal=True)
    replica_socket_receive_buffer_bytes = integer(
        65536, "The receive buffer of a follower's socket.", effective=False)
    replica_socket_timeout_ms = integer(30000, "How long a follower's request may take.")
    quota_window_num = integer(11, "Windows of the rate of each client with a quota.", low=1)
    quota_window_size_seconds = integer(1, "The length of such a window.", low=1)
    replication_quota_window_num = integer(11, "Windows of the rate of throttled replicas.", low=1)
    replication_quota_window_size_seconds = integer(1, "The length of such a window.", low=1)
    leader_replication_throttled_rate = long(
        LONG_MAX, "Bytes a second that a leader sends to throttled replicas.", low=0,
        scope=CLUSTER_WIDE, internal=True)
    follower_replication_throttled_rate = long(
        LONG_MAX, "Bytes a second that throttled replicas fetch.", low=0, scope=CLUSTER_WIDE,
        internal=True)
    num_replica_alter_log_dirs_threads = optional_integer(
        "Concurrent copies between log directories; by default as many as directories.")
    replica_alter_log_dirs_io_max_bytes_per_second = long(
        LONG_MAX, "Bytes a second that are copied between log directories.", low=0,
        scope=CLUSTER_WIDE, internal=True)
    alter_log_dirs_replication_quota_window_num = integer(
        11, "Windows of the rate of such copies.", low=1)
    alter_log_dirs_replication_quota_window_size_seconds = integer(
        1, "The length of such a window.", low=1)
    replica_selector_class = optional_string(
        "The class that picks the replica a consumer reads from: Kafka's RackAwareReplicaSelector, "
        "or LeaderSelector.", check=_selector
    )

    # Groups and their offsets
    group_coordinator_rebalance_protocols = strings(
        ("classic", "consumer", "streams"), "The kinds of groups served.",
        choices=("consumer", "classic", "share", "streams"), filled=True
    )
    group_initial_rebalance_delay_ms = integer(3000, "How long a new group waits for more members.")
    group_max_session_timeout_ms = integer(1_800_000, "The longest session a member may ask for.")
    group_min_session_timeout_ms = integer(6000, "The shortest session a member may ask for.")
    group_max_size = integer(INT_MAX, "Members of one group.", low=1)
    group_coordinator_append_linger_ms = integer(
        -1, "How long Kafka's records wait to be written together.", low=-1, effective=False
    )
    offset_metadata_max_bytes = integer(4096, "The longest text beside a committed offset.")
    offsets_commit_timeout_ms = integer(5000, "How long a commit may take.", low=1)
    offsets_load_buffer_size = integer(
        5 << 20, "Bytes read at once while a coordinator loads.", low=1, effective=False
    )
    offsets_retention_check_interval_ms = long(
        600_000, "How often expired offsets are looked for.", low=1
    )
    offsets_retention_minutes = integer(
        10080, "How long the offsets of an empty group stay.", low=1
    )
    offsets_topic_compression_codec = integer(
        0, "The codec of the offsets topic, by number.", effective=False)
    offsets_topic_num_partitions = integer(50, "Partitions of the offsets topic.", low=1)
    offsets_topic_replication_factor = integer(
        3, "Replicas of the offsets topic.", kind=Kind.SHORT, low=1
    )
    offsets_topic_segment_bytes = integer(100 << 20, "Segment size of the offsets topic.", low=1)

    # Transactions
    transaction_max_timeout_ms = integer(
        900_000, "The longest transaction a producer may ask for.", low=1
    )
    transaction_partition_verification_enable = boolean(
        True, "Whether a partition asks if it belongs to the transaction.", scope=CLUSTER_WIDE
    )
    transaction_state_log_load_buffer_size = integer(
        5 << 20, "Bytes read at once while a coordinator loads.", low=1, effective=False
    )
    transaction_state_log_min_isr = integer(
        2, "Replicas in sync that the transaction topic needs.", low=1
    )
    transaction_state_log_num_partitions = integer(
        50, "Partitions of the transaction topic.", low=1
    )
    transaction_state_log_replication_factor = integer(
        3, "Replicas of the transaction topic.", kind=Kind.SHORT, low=1
    )
    transaction_state_log_segment_bytes = integer(
        100 << 20, "The segment size of the transaction topic.", low=1
    )
    transactional_id_expiration_ms = integer(
        604_800_000, "How long an idle transactional id is remembered.", low=1
    )
    transaction_abort_timed_out_transaction_cleanup_interval_ms = integer(
        10000, "How often timed-out transactions are looked for.", low=1
    )
    transaction_remove_expired_transaction_cleanup_interval_ms = integer(
        3_600_000, "How often expired transactional ids are looked for.", low=1
    )

    # fmt: on

    def __init__(
        self,
        static: Mapping[str, str],
        cluster: Mapping[str, str] | None = None,
        own: Mapping[str, str] | None = None,
    ) -> None:
        self.static = dict(static)
        """The properties in the file."""
        self.cluster = dict(cluster or {})
        """The settings made at run time for all brokers."""
        self.own = dict(own or {})
        """The settings made at run time for this broker."""
        texts = self.static
        for layer in (self.cluster, self.own):
            hidden = {other for name in layer for other in family(name)}
            visible = {name: text for name, text in texts.items() if name not in hidden}
            texts = {**visible, **layer}
        super().__init__(texts)

    def with_dynamic(self, cluster: Mapping[str, str], own: Mapping[str, str]) -> Self:
        """Return the same node's config with other run-time settings; invalid ones are dropped."""
        for_all = self._usable(cluster, is_for_all=True)
        return type(self)(self.static, for_all, self._usable(own, is_for_all=False))

    def _usable(self, texts: Mapping[str, str], *, is_for_all: bool) -> dict[str, str]:
        usable = {}
        for name, text in texts.items():
            try:
                if (key := broker_key(name)) is not None:
                    key.parse_at_run_time(text, is_for_all=is_for_all)
                usable[name] = text
            except ConfigError as error:
                logger.warning("dynamic setting ignored reason=%s", error)
        return usable

    def fallback(self, key: Key[T]) -> T:
        """Return the default; ``node.id`` and ``broker.id`` default to each other's value."""
        return cast(T, self._values.get(_OTHER_NAME.get(key.name, ""), key.default))

    def raw(self, name: str) -> object:
        """Return the value of any Kafka setting, whether or not kwire acts on it."""
        key = broker_key(name)
        if key is None:
            raise KeyError(name)
        for texts in (self.own, self.cluster, self.static):
            if name in texts:
                return key.parse(texts[name])
        return key.default

    def raw_integer(self, name: str) -> int:
        """Return the value of any Kafka setting that is a whole number."""
        value = self.raw(name)
        assert isinstance(value, int), name
        return value

    @property
    def is_broker(self) -> bool:
        """True if the node serves clients."""
        return "broker" in self.process_roles

    @property
    def is_controller(self) -> bool:
        """True if the node takes part in the metadata quorum."""
        return "controller" in self.process_roles

    @property
    def data_directories(self) -> tuple[str, ...]:
        """The directories of the partitions' logs."""
        return self.log_dir if self.log_dirs is None else self.log_dirs

    @property
    def metadata_directory(self) -> str:
        """The directory of the metadata log."""
        return self.metadata_log_dir or self.data_directories[0]

    @property
    def log_retention_time_ms(self) -> int:
        """The age in ms above which segments are deleted; -1 means never."""
        time = self.log_retention_ms
        if time is None and self.log_retention_minutes is not None:
            time = self.log_retention_minutes * 60_000
        if time is None:
            time = self.log_retention_hours * 3_600_000
        return -1 if time < 0 else time

    @property
    def log_roll_time_ms(self) -> int:
        """The age in ms at which a segment is rolled."""
        return self.log_roll_hours * 3_600_000 if self.log_roll_ms is None else self.log_roll_ms

    @property
    def log_roll_jitter_time_ms(self) -> int:
        """The maximum time in ms by which a segment may be rolled early."""
        if self.log_roll_jitter_ms is None:
            return self.log_roll_jitter_hours * 3_600_000
        return self.log_roll_jitter_ms

    @property
    def log_flush_time_ms(self) -> int:
        """The time in ms after which a log is flushed."""
        if self.log_flush_interval_ms is None:
            return self.log_flush_scheduler_interval_ms
        return self.log_flush_interval_ms

    @property
    def protocols(self) -> dict[str, str]:
        """The protocol by listener name; controller listeners default to plaintext, as in Kafka."""
        protocols = parse_protocol_map(self.listener_security_protocol_map)
        if not self.is_set("listener.security.protocol.map"):
            for name in self.controller_listener_names:
                protocols.setdefault(name.upper(), "PLAINTEXT")
        return protocols

    @property
    def endpoints(self) -> tuple[ListenerEndpoint, ...]:
        """All addresses to listen on."""
        return parse_listeners("listeners", self.listeners, self.protocols)

    @property
    def controller_endpoints(self) -> tuple[ListenerEndpoint, ...]:
        """The addresses of the controller listeners."""
        names = {name.upper() for name in self.controller_listener_names}
        return tuple(endpoint for endpoint in self.endpoints if endpoint.name in names)

    @property
    def broker_endpoints(self) -> tuple[ListenerEndpoint, ...]:
        """The addresses of the listeners for clients and other brokers."""
        names = {name.upper() for name in self.controller_listener_names}
        return tuple(endpoint for endpoint in self.endpoints if endpoint.name not in names)

    @property
    def advertised_endpoints(self) -> tuple[ListenerEndpoint, ...]:
        """The advertised addresses; a controller listener without one uses its own address."""
        if not self.advertised_listeners:
            return self.endpoints
        named = parse_listeners("advertised.listeners", self.advertised_listeners, self.protocols)
        names = {endpoint.name for endpoint in named}
        own = tuple(e for e in self.controller_endpoints if e.name not in names)
        return named + own

    @property
    def inter_broker_listener(self) -> str:
        """The name of the listener for connections between brokers."""
        return (self.inter_broker_listener_name or self.security_inter_broker_protocol).upper()

    @property
    def voters(self) -> dict[int, Address]:
        """The fixed voters; empty when voters are dynamic."""
        return parse_voters(self.controller_quorum_voters)

    @property
    def bootstrap_servers(self) -> tuple[Address, ...]:
        """The controllers to contact first when voters are dynamic."""
        setting = "controller.quorum.bootstrap.servers"
        return tuple(parse_address(setting, t) for t in self.controller_quorum_bootstrap_servers)


_OTHER_NAME: Final = {"node.id": "broker.id", "broker.id": "node.id"}


def broker_key(name: str) -> Key[object] | None:
    """Return a broker setting of Kafka 4.3; None if it has no setting of this name."""
    return BrokerConfig.keys().get(name) or all_broker_keys().get(name)


@functools.cache
def all_broker_keys() -> dict[str, Key[object]]:
    """Return every broker setting of Kafka 4.3, sorted by name."""
    from kwire.configs import delegation_tokens as tokens
    from kwire.configs import inert, oauth, providers, security, tls

    logins = (security.SecurityConfig, oauth.OAuthConfig, tokens.DelegationTokenConfig)
    tables = (BrokerConfig, *logins, tls.TlsConfig, providers.ProviderConfig, inert.InertConfig)
    return dict(sorted(item for table in tables for item in table.keys().items()))
