"""The metrics of a node, with Kafka's meanings and the names that Kafka's dashboards use.

Each metric is declared once, here; a node's :class:`Metrics` holds the values. Code that counts
obtains its cell once and adds to ``cell.value``, which needs no lookup and no call. Gauges are
computed when they are read. ``text`` returns Prometheus' exposition format.
"""

import enum
from bisect import bisect_left
from collections.abc import Callable, Iterable, Iterator
from typing import Final, NamedTuple

import attrs


class Kind(enum.Enum):
    COUNTER = "counter"
    GAUGE = "gauge"
    HISTOGRAM = "histogram"


class Metric(NamedTuple):
    """A declared metric."""

    kind: Kind
    name: str
    doc: str
    labels: tuple[str, ...] = ()
    bounds: tuple[float, ...] = ()
    """The upper bounds of a histogram's buckets."""


def counter(name: str, doc: str, *labels: str) -> Metric:
    """Declare a value that only increases."""
    return Metric(Kind.COUNTER, name, doc, labels)


def gauge(name: str, doc: str, *labels: str) -> Metric:
    """Declare a value that can go up and down."""
    return Metric(Kind.GAUGE, name, doc, labels)


def histogram(name: str, doc: str, *labels: str, bounds: tuple[float, ...]) -> Metric:
    """Declare a distribution of values."""
    return Metric(Kind.HISTOGRAM, name, doc, labels, bounds)


_SECONDS: Final = (0.0001, 0.0005, 0.001, 0.005, 0.01, 0.05, 0.1, 0.5, 1.0, 5.0)

REQUESTS: Final = counter(
    "kafka_network_requestmetrics_requests_total", "Requests answered.", "request", "version"
)
REQUEST_SECONDS: Final = histogram(
    "kafka_network_requestmetrics_totaltime_seconds",
    "From the end of a request to its response, including waits.",
    "request",
    bounds=_SECONDS,
)
QUOTA_THROTTLED: Final = counter(
    "kwire_quota_throttled_total",
    "Responses with a throttle time because of a quota; for connection_creation_rate, connections "
    "that are closed.",
    "quota",
)
QUOTA_THROTTLE_SECONDS: Final = counter(
    "kwire_quota_throttle_seconds_total",
    "The throttle times of these responses; for connections, the time until they are closed.",
    "quota",
)
CONNECTIONS: Final = gauge(
    "kafka_server_socket_server_metrics_connection_count", "Open connections.", "listener"
)
CONNECTIONS_MADE: Final = counter(
    "kafka_server_socket_server_metrics_connection_creation_total",
    "Connections accepted.",
    "listener",
)
AUTHENTICATIONS: Final = counter(
    "kafka_server_socket_server_metrics_successful_authentication_total",
    "Logins of clients.",
    "listener",
)
FAILED_AUTHENTICATIONS: Final = counter(
    "kafka_server_socket_server_metrics_failed_authentication_total",
    "Connections closed because their login failed.",
    "listener",
)
REAUTHENTICATIONS: Final = counter(
    "kafka_server_socket_server_metrics_successful_reauthentication_total",
    "Logins that renewed a session.",
    "listener",
)
FAILED_REAUTHENTICATIONS: Final = counter(
    "kafka_server_socket_server_metrics_failed_reauthentication_total",
    "Connections closed because their session could not be renewed.",
    "listener",
)
EXPIRED_CONNECTIONS: Final = counter(
    "kafka_server_socket_server_metrics_expired_connections_killed_count",
    "Connections closed because of a request after the end of their session.",
    "listener",
)
CERTIFICATE_EXPIRY: Final = gauge(
    "kwire_server_certificate_expiry_timestamp_ms",
    "When the first certificate of a listener's key store expires.",
    "listener",
)
REQUEST_MEMORY: Final = gauge(
    "kafka_network_request_memory_used_bytes", "Bytes of requests in flight."
)
MESSAGES_IN: Final = counter(
    "kafka_server_brokertopicmetrics_messagesin_total", "Records produced.", "topic"
)
BYTES_IN: Final = counter(
    "kafka_server_brokertopicmetrics_bytesin_total", "Bytes of batches produced.", "topic"
)
BYTES_OUT: Final = counter(
    "kafka_server_brokertopicmetrics_bytesout_total", "Bytes of batches fetched.", "topic"
)
PARTITIONS: Final = gauge(
    "kafka_server_replicamanager_partitioncount", "Partitions with a replica here."
)
LEADERS: Final = gauge("kafka_server_replicamanager_leadercount", "Partitions led here.")
UNDER_REPLICATED: Final = gauge(
    "kafka_server_replicamanager_underreplicatedpartitions",
    "Partitions led here with replicas that are not in sync.",
)
UNDER_MIN_ISR: Final = gauge(
    "kafka_server_replicamanager_underminisrpartitioncount",
    "Partitions led here with fewer replicas in sync than min.insync.replicas.",
)
AT_MIN_ISR: Final = gauge(
    "kafka_server_replicamanager_atminisrpartitioncount",
    "Partitions led here with exactly min.insync.replicas replicas in sync.",
)
OFFLINE_REPLICAS: Final = gauge(
    "kafka_server_replicamanager_offlinereplicacount", "Replicas here whose directory failed."
)
OFFLINE_DIRECTORIES: Final = gauge(
    "kafka_log_logmanager_offlinelogdirectorycount", "Log directories that failed."
)
FULL_DIRECTORIES: Final = gauge(
    "kwire_log_full_directories", "Log directories without room for records."
)
LOG_SIZE: Final = gauge(
    "kafka_log_log_size", "Bytes of a partition's segments.", "topic", "partition"
)
SCRUB_BYTES: Final = gauge(
    "kwire_log_scrub_bytes", "Bytes of closed segments that the scrub has read since the start."
)
SCRUB_LAST_PASS: Final = gauge(
    "kwire_log_scrub_last_pass_timestamp_ms",
    "When the last pass of the scrub over a directory ended; -1 before.",
    "directory",
)
DAMAGED_SEGMENTS: Final = gauge(
    "kwire_log_damaged_segments", "Segments with known damage that is not repaired yet."
)
DAMAGED_RANGES: Final = gauge(
    "kwire_log_damaged_ranges",
    "Stretches of damaged batches in these segments; fetches that reach one get an error.",
)
RESTORED_RANGES: Final = gauge(
    "kwire_log_restored_ranges", "Damaged stretches repaired from other replicas since the start."
)
WRONG_INDEXES: Final = gauge(
    "kwire_log_wrong_indexes",
    "Index files that the scrub has found wrong since the start, counted in each pass.",
)
REBUILT_INDEXES: Final = gauge(
    "kwire_log_rebuilt_indexes", "Index files that the scrub has rebuilt since the start."
)
UNCLEANABLE_PARTITIONS: Final = gauge(
    "kafka_log_logcleanermanager_uncleanable_partitions_count",
    "Partitions that are not compacted until a restart, because their log could not be read.",
    "directory",
)
UNCLEANABLE_BYTES: Final = gauge(
    "kafka_log_logcleanermanager_uncleanable_bytes",
    "Bytes that compaction would read in these partitions.",
    "directory",
)
MAX_DIRTY_PERCENT: Final = gauge(
    "kafka_log_logcleanermanager_max_dirty_percent",
    "How much of the dirtiest log compaction would read, in percent.",
)
CLEANER_SINCE_LAST_RUN: Final = gauge(
    "kafka_log_logcleanermanager_time_since_last_run_ms",
    "Milliseconds since logs were last checked for compaction; 0 if no log has changed since.",
)
MAX_COMPACTION_DELAY: Final = gauge(
    "kafka_log_logcleaner_max_compaction_delay_secs",
    "The longest time by which a log exceeds its max.compaction.lag.ms.",
)
CLEANER_RECOPY_PERCENT: Final = gauge(
    "kafka_log_logcleaner_cleaner_recopy_percent",
    "Bytes written for each hundred bytes read, in the last compactions.",
)
CLEANER_BUFFER_PERCENT: Final = gauge(
    "kafka_log_logcleaner_max_buffer_utilization_percent",
    "How full the table of keys was in the last compactions.",
)
CLEANER_MAX_TIME: Final = gauge(
    "kafka_log_logcleaner_max_clean_time_secs", "The duration of the longest of these compactions."
)
CLEANER_DEAD_THREADS: Final = gauge(
    "kafka_log_logcleaner_deadthreadcount",
    "Workers whose compaction process exited unexpectedly; they are restarted.",
)
FETCH_SESSIONS: Final = gauge(
    "kafka_server_fetchsessioncache_numincrementalfetchsessions", "Open fetch sessions."
)
ACTIVE_CONTROLLER: Final = gauge(
    "kafka_controller_kafkacontroller_activecontrollercount",
    "1 on the node that is the active controller.",
)
ACTIVE_BROKERS: Final = gauge(
    "kafka_controller_kafkacontroller_activebrokercount",
    "Brokers that are not fenced, as far as this controller knows.",
)
FENCED_BROKERS: Final = gauge(
    "kafka_controller_kafkacontroller_fencedbrokercount",
    "Brokers that are registered but fenced, as far as this controller knows.",
)
TOPICS: Final = gauge(
    "kafka_controller_kafkacontroller_globaltopiccount",
    "Topics of the cluster, as far as this controller knows.",
)
ALL_PARTITIONS: Final = gauge(
    "kafka_controller_kafkacontroller_globalpartitioncount",
    "Partitions of the cluster, as far as this controller knows.",
)
LEADERLESS: Final = gauge(
    "kafka_controller_kafkacontroller_offlinepartitionscount",
    "Partitions of the cluster without a leader, as far as this controller knows.",
)
NOT_PREFERRED: Final = gauge(
    "kafka_controller_kafkacontroller_preferredreplicaimbalancecount",
    "Partitions of the cluster whose leader is not their preferred (first) replica.",
)
UNCLEAN_ELECTIONS: Final = counter(
    "kafka_controller_controllerstats_uncleanleaderelections_total",
    "Replicas not in sync that were elected leader while this controller was active: records "
    "may have been lost.",
)
CLIENT_INSTANCES: Final = gauge(
    "kafka_server_client_metrics_instance_count", "Clients that push metrics to this broker."
)
CLIENT_UNKNOWN_SUBSCRIPTIONS: Final = counter(
    "kafka_server_client_metrics_unknown_subscription_request_total",
    "Pushes of clients whose subscription has changed; they ask for it and push again.",
)
CLIENT_PUSHES_THROTTLED: Final = counter(
    "kafka_server_client_metrics_throttle_total",
    "Telemetry requests of clients that came before the end of the push interval.",
)
CLIENT_PUSHES: Final = counter(
    "kafka_server_client_metrics_plugin_export_total", "Pushes of clients that were accepted."
)
CLIENT_PUSHES_REFUSED: Final = counter(
    "kafka_server_client_metrics_plugin_error_total",
    "Pushes of clients that were too large or not readable.",
)
CLIENT_SERIES: Final = gauge("kwire_telemetry_series", "Series of clients that this page shows.")
CLIENT_SERIES_DROPPED: Final = counter(
    "kwire_telemetry_series_dropped_total",
    "Numbers in pushes that this page does not show, because of a limit or a conflict of types.",
)
LAST_COMMITTED: Final = gauge(
    "kafka_controller_kafkacontroller_lastcommittedrecordoffset",
    "Offset of the last metadata record that this controller knows to be committed.",
)
LAST_APPLIED: Final = gauge(
    "kafka_server_broker_metadata_metrics_last_applied_record_offset",
    "Offset of the last metadata record that this node has applied.",
)
LAST_APPLIED_AT: Final = gauge(
    "kafka_server_broker_metadata_metrics_last_applied_record_timestamp",
    "The time when that record was written, in milliseconds.",
)
RAFT_STATE: Final = gauge(
    "kafka_server_raft_metrics_current_state", "1 for the state that this node is in.", "state"
)
RAFT_LEADER: Final = gauge(
    "kafka_server_raft_metrics_current_leader", "The id of the quorum's leader; -1 if unknown."
)
RAFT_VOTE: Final = gauge(
    "kafka_server_raft_metrics_current_vote",
    "The id of the voter that this node voted for in this epoch; -1 if there is none.",
)
RAFT_EPOCH: Final = gauge("kafka_server_raft_metrics_current_epoch", "The quorum's epoch.")
RAFT_HIGH_WATERMARK: Final = gauge(
    "kafka_server_raft_metrics_high_watermark",
    "The high watermark of the metadata log that this node knows; -1 if it is unknown.",
)
RAFT_LOG_END: Final = gauge(
    "kafka_server_raft_metrics_log_end_offset", "The end of this node's metadata log."
)
RAFT_LOG_END_EPOCH: Final = gauge(
    "kafka_server_raft_metrics_log_end_epoch", "The epoch of the metadata log's last batch."
)
RAFT_VOTERS: Final = gauge("kafka_server_raft_metrics_number_of_voters", "Voters of the quorum.")
RAFT_OBSERVERS: Final = gauge(
    "kafka_server_raft_metrics_number_of_observers",
    "Nodes that fetch from this node and are not voters; 0 on nodes other than the leader.",
)
RAFT_VOTER_CHANGE: Final = gauge(
    "kafka_server_raft_metrics_uncommitted_voter_change",
    "1 while a change of the voters is in progress; 0 on nodes other than the leader.",
)
RAFT_ELECTIONS: Final = histogram(
    "kafka_server_raft_metrics_election_latency_seconds",
    "From losing a leader to learning of the next one.",
    bounds=(0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0),
)
HIGH_WATERMARKS: Final = gauge(
    "kafka_topic_partition_current_offset",
    "The high watermark of a partition that this node leads.",
    "topic",
    "partition",
)
GROUP_COUNT: Final = gauge(
    "kafka_server_group_coordinator_metrics_group_count",
    "Groups that this node coordinates.",
    "protocol",
)
CLASSIC_GROUPS: Final = gauge(
    "kafka_server_group_coordinator_metrics_classic_group_count",
    "Groups of the classic protocol that this node coordinates; also those without members.",
    "state",
)
CONSUMER_GROUPS: Final = gauge(
    "kafka_server_group_coordinator_metrics_consumer_group_count",
    "Groups of the consumer protocol (KIP-848) that this node coordinates.",
    "state",
)
SHARE_GROUPS: Final = gauge(
    "kafka_server_group_coordinator_metrics_share_group_count",
    "Share groups that this node coordinates.",
    "state",
)
STREAMS_GROUPS: Final = gauge(
    "kafka_server_group_coordinator_metrics_streams_group_count",
    "Streams groups that this node coordinates.",
    "state",
)
CLASSIC_REBALANCES: Final = counter(
    "kafka_server_group_coordinator_metrics_group_completed_rebalance_count",
    "Rebalances of classic groups that have ended with an assignment.",
)
CONSUMER_REBALANCES: Final = counter(
    "kafka_server_group_coordinator_metrics_consumer_group_rebalance_count",
    "New epochs of groups of the consumer protocol.",
)
SHARE_REBALANCES: Final = counter(
    "kafka_server_group_coordinator_metrics_share_group_rebalance_count",
    "New epochs of share groups.",
)
STREAMS_REBALANCES: Final = counter(
    "kafka_server_group_coordinator_metrics_streams_group_rebalance_count",
    "New epochs of streams groups.",
)
GROUP_OFFSET: Final = gauge(
    "kafka_consumergroup_current_offset",
    "The offset that a group coordinated by this node has committed.",
    "group",
    "topic",
    "partition",
)
GROUP_LAG: Final = gauge(
    "kafka_consumergroup_lag",
    "From a group's committed offset to the high watermark of a partition that this node leads.",
    "group",
    "topic",
    "partition",
)
SHARE_OFFSET: Final = gauge(
    "kafka_sharegroup_current_offset",
    "The start offset of a share partition whose state this node stores, plus the number of "
    "complete records from there onwards.",
    "group",
    "topic",
    "partition",
)
SHARE_LAG: Final = gauge(
    "kafka_sharegroup_lag",
    "From that offset to the high watermark of a partition that this node leads.",
    "group",
    "topic",
    "partition",
)
SHARE_SESSIONS: Final = gauge(
    "kafka_server_sharesessioncache_sharesessionscount", "Share sessions with this node."
)
SHARE_IN_FLIGHT: Final = gauge(
    "kafka_server_sharepartitionmetrics_inflightmessagecount",
    "From the start offset to the end offset of a share partition that this node leads.",
    "group",
    "topic",
    "partition",
)
SHARE_ACKNOWLEDGED: Final = counter(
    "kafka_server_share_group_metrics_record_acknowledgement_count",
    "Records that members of share groups have acknowledged: accept, release, reject or renew.",
    "ack_type",
)
DIRECTORY_FREE: Final = gauge(
    "kwire_log_directory_free_bytes", "Free space under a log directory.", "directory"
)
DIRECTORY_TOTAL: Final = gauge(
    "kwire_log_directory_total_bytes", "All space under a log directory.", "directory"
)
LOOP_DELAY: Final = gauge(
    "kwire_loop_delay_seconds",
    "How long a runnable task waited for its turn, just before this response.",
)
BUILD_INFO: Final = gauge("kwire_build_info", "Always 1.", "version", "python")
CPU_SECONDS: Final = counter(
    "process_cpu_seconds_total", "User and system CPU time of this process."
)
RESIDENT_MEMORY: Final = gauge("process_resident_memory_bytes", "Resident memory.")
VIRTUAL_MEMORY: Final = gauge("process_virtual_memory_bytes", "Address space.")
OPEN_FILES: Final = gauge("process_open_fds", "Open file descriptors.")
MAX_FILES: Final = gauge("process_max_fds", "The largest allowed number of open file descriptors.")
START_TIME: Final = gauge(
    "process_start_time_seconds", "Start time of the process, in seconds since the epoch."
)


@attrs.define(eq=False, repr=False)
class Cell:
    """The value of a counter or gauge for one set of labels."""

    value: float = 0


@attrs.define(eq=False, repr=False)
class Histogram:
    """The values of a histogram for one set of labels."""

    bounds: tuple[float, ...]
    counts: list[int] = attrs.field(init=False)
    total: float = 0.0

    def __attrs_post_init__(self) -> None:
        self.counts = [0] * (len(self.bounds) + 1)

    def observe(self, value: float) -> None:
        self.counts[bisect_left(self.bounds, value)] += 1
        self.total += value


Labelled = Iterable[tuple[tuple[str, ...], float] | None]
"""Values with their labels; None stands for something that was looked at and has no value, so that
a page can pause there."""


@attrs.define(eq=False, repr=False)
class Metrics:
    """The values of one node."""

    _cells: dict[Metric, dict[tuple[str, ...], Cell]] = attrs.field(factory=dict)
    _histograms: dict[Metric, dict[tuple[str, ...], Histogram]] = attrs.field(factory=dict)
    _functions: dict[Metric, dict[tuple[str, ...], Callable[[], float]]] = attrs.field(factory=dict)
    _label_functions: dict[Metric, Callable[[], Labelled]] = attrs.field(factory=dict)

    def cell(self, metric: Metric, *labels: str) -> Cell:
        """Return the cell to add to; callers obtain it once and keep it."""
        return self._cells.setdefault(metric, {}).setdefault(labels, Cell())

    def total(self, metric: Metric) -> float:
        """Return the sum of a metric's cells."""
        return sum(cell.value for cell in self._cells.get(metric, {}).values())

    def histogram(self, metric: Metric, *labels: str) -> Histogram:
        """Return the histogram to observe into; callers obtain it once and keep it."""
        histograms = self._histograms.setdefault(metric, {})
        if labels not in histograms:
            histograms[labels] = Histogram(metric.bounds)
        return histograms[labels]

    def register_function(self, metric: Metric, read: Callable[[], float], *labels: str) -> None:
        """Register a function that returns a metric's value when metrics are read."""
        self._functions.setdefault(metric, {})[labels] = read

    def register_label_function(self, metric: Metric, read_all: Callable[[], Labelled]) -> None:
        """Register a function that returns all values of a metric whose label sets vary."""
        self._label_functions[metric] = read_all

    def declare(self, metrics: Iterable[Metric]) -> None:
        """Show metrics even without values: as 0 if they have no labels, else only their names."""
        for metric in metrics:
            all_values = (self._cells, self._histograms, self._functions, self._label_functions)
            if any(metric in values for values in all_values):
                continue
            if metric.labels:
                self._cells[metric] = {}
            elif metric.kind is Kind.HISTOGRAM:
                self.histogram(metric)
            else:
                self.cell(metric)

    def forget(self, metric: Metric, *labels: str) -> None:
        """Remove the value of a subject that no longer exists, such as a deleted topic."""
        for values in (self._cells, self._histograms, self._functions):
            values.get(metric, {}).pop(labels, None)

    def text(self) -> str:
        """Return all metrics in Prometheus' format."""
        return "".join(f"{line}\n" for line in self.lines())

    def lines(self) -> Iterator[str]:
        """Yield the lines of :meth:`text`; values may change from one line to the next."""
        return (line for line in self.lines_and_gaps() if line is not None)

    def lines_and_gaps(self) -> Iterator[str | None]:
        """Yield the lines, and None instead of a line where a function has found no value."""
        for metric in {
            **self._cells,
            **self._functions,
            **self._histograms,
            **self._label_functions,
        }:
            yield f"# HELP {metric.name} {metric.doc}"
            yield f"# TYPE {metric.name} {metric.kind.value}"
            for labels, cell in list(self._cells.get(metric, {}).items()):
                yield _line(metric, labels, cell.value)
            for labels, value in list(self._functions.get(metric, {}).items()):
                yield _line(metric, labels, value())
            for labels, spread in list(self._histograms.get(metric, {}).items()):
                yield from _spread(metric, labels, spread)
            list_values = self._label_functions.get(metric)
            for each in () if list_values is None else list_values():
                yield None if each is None else _line(metric, *each)


def count_throttle(metrics: Metrics, quota: str, seconds: float) -> None:
    """Count a response, or a connection, that a quota delays by this time."""
    metrics.cell(QUOTA_THROTTLED, quota).value += 1
    metrics.cell(QUOTA_THROTTLE_SECONDS, quota).value += seconds


def _spread(metric: Metric, labels: tuple[str, ...], spread: Histogram) -> Iterator[str]:
    below = 0
    for bound, count in zip((*metric.bounds, "+Inf"), spread.counts, strict=True):
        below += count
        yield _line(metric, labels, below, "_bucket", (("le", str(bound)),))
    yield _line(metric, labels, spread.total, "_sum")
    yield _line(metric, labels, below, "_count")


def _line(
    metric: Metric,
    labels: tuple[str, ...],
    value: float,
    suffix: str = "",
    more: tuple[tuple[str, str], ...] = (),
) -> str:
    pairs = (*zip(metric.labels, labels, strict=True), *more)
    return f"{metric.name}{suffix}{labels_text(pairs)} {value:.17g}"


def labels_text(labels: Iterable[tuple[str, str]]) -> str:
    """Return labels in Prometheus' format."""
    shown = ",".join(f'{name}="{_escape(text)}"' for name, text in labels)
    return f"{{{shown}}}" if shown else ""


def _escape(text: str) -> str:
    return text.replace("\\", r"\\").replace('"', r"\"").replace("\n", r"\n")
