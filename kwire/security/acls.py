"""Access control entries (ACLs): their fields, and their codes in the protocol.

An ACL allows or denies one operation on the resources of one pattern to one principal, from one
host. The names of resource types and operations are those that Kafka's tools print.
"""

from collections.abc import Mapping, Sequence
from typing import Final, NamedTuple

ANY: Final = 1
"""The code in a filter that selects every resource type, pattern type, operation or permission."""
MATCH: Final = 2
"""The pattern type in a filter that selects the patterns which cover a resource."""
LITERAL: Final = 3
PREFIXED: Final = 4
DENY: Final = 2
ALLOW: Final = 3
ALL: Final = 2
"""The operation that stands for all others."""
WILDCARD: Final = "*"
"""The literal name of all resources, and the host of all clients."""
ANY_PRINCIPAL: Final = "User:*"
STEP_ACLS: Final = 16
"""ACLs that are compared with a filter, or put into an index, between two pauses."""
CLUSTER_TYPE: Final = 4
CLUSTER_NAME: Final = "kafka-cluster"
"""The name of the only resource of type Cluster."""

RESOURCE_TYPES: Final[Mapping[str, int]] = {
    "Topic": 2,
    "Group": 3,
    "Cluster": CLUSTER_TYPE,
    "TransactionalId": 5,
    "DelegationToken": 6,
    "User": 7,
}
OPERATIONS: Final[Mapping[str, int]] = {
    "All": ALL,
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
    "CreateTokens": 13,
    "DescribeTokens": 14,
    "TwoPhaseCommit": 15,
}
OPERATIONS_OF: Final[Mapping[str, Sequence[str]]] = {
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
    "TransactionalId": ("Write", "Describe", "TwoPhaseCommit"),
    "DelegationToken": ("Describe",),
    "User": ("CreateTokens", "DescribeTokens"),
}
"""The operations, beside ``All``, that exist for each type of resource."""


class Acl(NamedTuple):
    """One ACL, with its fields in the order of the metadata record."""

    resource_type: int
    resource_name: str
    pattern_type: int
    principal: str
    host: str
    operation: int
    permission_type: int
