"""The operations that a client may perform on a resource, as a bit field (KIP-430)."""

from typing import Final

from kwire.handlers.shared.context import CLUSTER, Context
from kwire.security.acls import OPERATIONS

_OPERATIONS: Final = {
    "Topic": (
        "Read",
        "Write",
        "Create",
        "Delete",
        "Alter",
        "Describe",
        "DescribeConfigs",
        "AlterConfigs",
    ),
    "Group": ("Read", "Delete", "Describe", "DescribeConfigs", "AlterConfigs"),
    "Cluster": (
        "Create",
        "Alter",
        "Describe",
        "ClusterAction",
        "DescribeConfigs",
        "AlterConfigs",
        "IdempotentWrite",
    ),
}
"""The operations that exist for each type of resource."""


def authorized_operations(context: Context, resource_type: str, name: str) -> int:
    """Return the operations that the client may perform on a resource."""
    bits = 0
    for operation in _OPERATIONS[resource_type]:
        if context.is_allowed(operation, resource_type, name):
            bits |= 1 << OPERATIONS[operation]
    return bits


def cluster_operations(context: Context) -> int:
    """Return the client's operations on the cluster; none if it may not describe the cluster."""
    if not context.is_allowed("Describe", "Cluster", CLUSTER):
        return 0
    return authorized_operations(context, "Cluster", CLUSTER)
