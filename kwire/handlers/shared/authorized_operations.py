"""The operations that a client may perform on a resource, as a bit field (KIP-430)."""

from kwire.handlers.shared.context import CLUSTER, Context
from kwire.security.acls import OPERATIONS, OPERATIONS_OF


def authorized_operations(context: Context, resource_type: str, name: str) -> int:
    """Return the operations that the client may perform on a resource."""
    bits = 0
    for operation in OPERATIONS_OF[resource_type]:
        if context.is_allowed(operation, resource_type, name):
            bits |= 1 << OPERATIONS[operation]
    return bits


def cluster_operations(context: Context) -> int:
    """Return the client's operations on the cluster; none if it may not describe the cluster."""
    if not context.is_allowed("Describe", "Cluster", CLUSTER):
        return 0
    return authorized_operations(context, "Cluster", CLUSTER)
