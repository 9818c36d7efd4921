"""The APIs that a node serves: one row per API and kind of listener.

ApiVersions and docs/protocol.md are computed from :data:`HANDLERS`; an API that is not in it
is listed in :mod:`kwire.handlers.unserved` with a reason.  A handler's module is imported at the
first request of its API, so a fresh broker loads only what its clients use.
"""

import enum
from typing import Final

import attrs


class ListenerType(enum.Flag):
    """The kind of listener that a request came in on."""

    BROKER = enum.auto()
    CONTROLLER = enum.auto()
    BOTH = BROKER | CONTROLLER


@attrs.frozen
class Row:
    """One API as it is served on one kind of listener."""

    key: int
    module: str
    """The module in :mod:`kwire.handlers` that holds the API's Handler."""
    versions: str
    sides: ListenerType
    advertised_min: int | None = None
    """The first version advertised, if it is not the first one served."""

    @property
    def first(self) -> int:
        return int(self.versions.partition("-")[0])

    @property
    def last(self) -> int:
        return int(self.versions.rpartition("-")[2])


HANDLERS: Final = (
    Row(0, "produce", "3-13", ListenerType.BROKER, advertised_min=0),
    Row(1, "fetch", "4-18", ListenerType.BROKER),
    Row(1, "fetch_metadata_log", "4-18", ListenerType.CONTROLLER),
    Row(2, "list_offsets", "1-11", ListenerType.BROKER),
    Row(3, "metadata", "0-13", ListenerType.BROKER),
    Row(8, "offset_commit", "2-10", ListenerType.BROKER),
    Row(9, "offset_fetch", "1-10", ListenerType.BROKER),
    Row(10, "find_coordinator", "0-6", ListenerType.BROKER),
    Row(11, "join_group", "0-9", ListenerType.BROKER),
    Row(12, "heartbeat", "0-4", ListenerType.BROKER),
    Row(13, "leave_group", "0-5", ListenerType.BROKER),
    Row(14, "sync_group", "0-5", ListenerType.BROKER),
    Row(15, "describe_groups", "0-6", ListenerType.BROKER),
    Row(16, "list_groups", "0-5", ListenerType.BROKER),
    Row(17, "sasl_handshake", "0-1", ListenerType.BOTH),
    Row(18, "api_versions", "0-4", ListenerType.BOTH),
    Row(19, "create_topics", "2-7", ListenerType.BOTH),
    Row(20, "delete_topics", "1-6", ListenerType.BOTH),
    Row(21, "delete_records", "0-2", ListenerType.BROKER),
    Row(22, "init_producer_id", "0-5", ListenerType.BROKER),
    Row(23, "offset_for_leader_epoch", "2-4", ListenerType.BROKER),
    Row(29, "describe_acls", "1-3", ListenerType.BOTH),
    Row(32, "describe_configs", "1-4", ListenerType.BOTH),
    Row(33, "alter_configs", "0-2", ListenerType.BOTH),
    Row(35, "describe_log_dirs", "1-5", ListenerType.BROKER),
    Row(36, "sasl_authenticate", "0-2", ListenerType.BOTH),
    Row(37, "create_partitions", "0-3", ListenerType.BOTH),
    Row(42, "delete_groups", "0-2", ListenerType.BROKER),
    Row(43, "elect_leaders", "0-2", ListenerType.BOTH),
    Row(44, "incremental_alter_configs", "0-1", ListenerType.BOTH),
    Row(45, "alter_partition_reassignments", "0-1", ListenerType.BOTH),
    Row(46, "list_partition_reassignments", "0", ListenerType.BOTH),
    Row(47, "offset_delete", "0", ListenerType.BROKER),
    Row(48, "describe_client_quotas", "0-1", ListenerType.BROKER),
    Row(49, "alter_client_quotas", "0-1", ListenerType.BOTH),
    Row(52, "vote", "0-2", ListenerType.CONTROLLER),
    Row(53, "begin_quorum_epoch", "0-1", ListenerType.CONTROLLER),
    Row(54, "end_quorum_epoch", "0-1", ListenerType.CONTROLLER),
    Row(55, "describe_quorum", "0-2", ListenerType.BOTH),
    Row(56, "alter_partition", "2-3", ListenerType.CONTROLLER),
    Row(57, "update_features", "0-2", ListenerType.BOTH),
    Row(58, "envelope", "0", ListenerType.CONTROLLER),
    Row(59, "fetch_snapshot", "0-1", ListenerType.CONTROLLER),
    Row(60, "describe_cluster", "0-2", ListenerType.BOTH),
    Row(61, "describe_producers", "0", ListenerType.BROKER),
    Row(62, "broker_registration", "0-4", ListenerType.CONTROLLER),
    Row(63, "broker_heartbeat", "0-2", ListenerType.CONTROLLER),
    Row(64, "unregister_broker", "0", ListenerType.BOTH),
    Row(67, "allocate_producer_ids", "0", ListenerType.CONTROLLER),
    Row(70, "controller_registration", "0", ListenerType.CONTROLLER),
    Row(73, "assign_replicas_to_dirs", "0", ListenerType.CONTROLLER),
    Row(74, "list_config_resources", "0-1", ListenerType.BROKER),
    Row(75, "describe_topic_partitions", "0", ListenerType.BROKER),
    Row(80, "add_raft_voter", "0-1", ListenerType.BOTH),
    Row(81, "remove_raft_voter", "0", ListenerType.BOTH),
    Row(82, "update_raft_voter", "0", ListenerType.CONTROLLER),
)


def served_on(side: ListenerType) -> dict[int, Row]:
    """Return the rows of one kind of listener, by API key; with BOTH, those of either kind."""
    return {row.key: row for row in HANDLERS if side in row.sides}
