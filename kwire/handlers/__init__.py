"""What this node serves: one row per API and kind of listener.

ApiVersions and docs/protocol.md are computed from :data:`HANDLERS`; an API that is not in it
stands in :mod:`kwire.handlers.unserved` with a reason.  A handler's module is imported when its
API is first asked for, so a fresh broker loads what its clients use.
"""

import enum
from typing import Final

import attrs


class Side(enum.Flag):
    """Which kind of listener a request came in on."""

    BROKER = enum.auto()
    CONTROLLER = enum.auto()
    BOTH = BROKER | CONTROLLER


@attrs.frozen
class Row:
    """One API as it is served on one kind of listener."""

    key: int
    module: str
    """Of :mod:`kwire.handlers`; it holds the API's Handler."""
    versions: str
    sides: Side
    told_first: int | None = None
    """The first version advertised, where it is not the first one served."""

    @property
    def first(self) -> int:
        return int(self.versions.partition("-")[0])

    @property
    def last(self) -> int:
        return int(self.versions.rpartition("-")[2])


HANDLERS: Final = (
    Row(0, "produce", "3-13", Side.BROKER, told_first=0),
    Row(1, "fetch", "4-18", Side.BROKER),
    Row(1, "raft", "4-18", Side.CONTROLLER),
    Row(2, "list_offsets", "1-11", Side.BROKER),
    Row(3, "metadata", "0-13", Side.BROKER),
    Row(8, "offset_commit", "2-10", Side.BROKER),
    Row(9, "offset_fetch", "1-10", Side.BROKER),
    Row(10, "find_coordinator", "0-6", Side.BROKER),
    Row(11, "join_group", "0-9", Side.BROKER),
    Row(12, "heartbeat", "0-4", Side.BROKER),
    Row(13, "leave_group", "0-5", Side.BROKER),
    Row(14, "sync_group", "0-5", Side.BROKER),
    Row(15, "describe_groups", "0-6", Side.BROKER),
    Row(16, "list_groups", "0-5", Side.BROKER),
    Row(17, "sasl_handshake", "0-1", Side.BOTH),
    Row(18, "api_versions", "0-4", Side.BOTH),
    Row(19, "create_topics", "2-7", Side.BOTH),
    Row(20, "delete_topics", "1-6", Side.BOTH),
    Row(21, "delete_records", "0-2", Side.BROKER),
    Row(22, "init_producer_id", "0-5", Side.BROKER),
    Row(23, "offset_for_leader_epoch", "2-4", Side.BROKER),
    Row(29, "describe_acls", "1-3", Side.BOTH),
    Row(32, "describe_configs", "1-4", Side.BOTH),
    Row(33, "alter_configs", "0-2", Side.BOTH),
    Row(35, "describe_log_dirs", "1-5", Side.BROKER),
    Row(36, "sasl_authenticate", "0-2", Side.BOTH),
    Row(37, "create_partitions", "0-3", Side.BOTH),
    Row(42, "delete_groups", "0-2", Side.BROKER),
    Row(43, "elect_leaders", "0-2", Side.BOTH),
    Row(44, "incremental_alter_configs", "0-1", Side.BOTH),
    Row(45, "alter_partition_reassignments", "0-1", Side.BOTH),
    Row(46, "list_partition_reassignments", "0", Side.BOTH),
    Row(47, "offset_delete", "0", Side.BROKER),
    Row(48, "describe_client_quotas", "0-1", Side.BROKER),
    Row(49, "alter_client_quotas", "0-1", Side.BOTH),
    Row(52, "raft", "0-2", Side.CONTROLLER),
    Row(53, "raft", "0-1", Side.CONTROLLER),
    Row(54, "raft", "0-1", Side.CONTROLLER),
    Row(55, "describe_quorum", "0-2", Side.BOTH),
    Row(56, "alter_partition", "2-3", Side.CONTROLLER),
    Row(57, "update_features", "0-2", Side.BOTH),
    Row(58, "envelope", "0", Side.CONTROLLER),
    Row(59, "raft", "0-1", Side.CONTROLLER),
    Row(60, "describe_cluster", "0-2", Side.BOTH),
    Row(61, "describe_producers", "0", Side.BROKER),
    Row(62, "broker_registration", "0-4", Side.CONTROLLER),
    Row(63, "broker_heartbeat", "0-2", Side.CONTROLLER),
    Row(64, "unregister_broker", "0", Side.BOTH),
    Row(67, "allocate_producer_ids", "0", Side.CONTROLLER),
    Row(70, "controller_registration", "0", Side.CONTROLLER),
    Row(73, "assign_replicas_to_dirs", "0", Side.CONTROLLER),
    Row(74, "list_config_resources", "0-1", Side.BROKER),
    Row(75, "describe_topic_partitions", "0", Side.BROKER),
    Row(80, "raft", "0-1", Side.BOTH),
    Row(81, "raft", "0", Side.BOTH),
    Row(82, "raft", "0", Side.CONTROLLER),
)


def served_on(side: Side) -> dict[int, Row]:
    """The rows of one kind of listener, by API key; with BOTH those that serve on either alike."""
    return {row.key: row for row in HANDLERS if side in row.sides}
