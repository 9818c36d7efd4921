"""The operations that a client may perform on a resource, as a bit field (KIP-430)."""

from typing import Final

from kwire.handlers.shared.context import Context

_BITS: Final = {
    "Read": 3,
    "Write": 4,
    "Create": 5,
    "Delete": 6,
    "Alter": 7,
    "Describe": 8,
    "ClusterAction": 9,
    "DescribeConfigs": 10,
    "AlterConfigs": 11,
    "IdempotentWrite": 12,
}
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
            bits |= 1 << _BITS[operation]
    return bits
