"""Answers that several handlers share: partitions as clients see them, permitted operations.

They depend on the listener: a broker without an address on the client's listener cannot be reached,
so its partitions have no leader there and its replicas are offline.
"""

from typing import TYPE_CHECKING, Final, NamedTuple

from kwire.codec.apis import ListenerType
from kwire.configs.resource_types import BROKER, GROUP, TOPIC
from kwire.errors import (
    NONE,
    ClusterAuthorizationFailed,
    GroupAuthorizationFailed,
    InvalidRequest,
    InvalidTopicException,
    LeaderNotAvailable,
    ListenerNotFound,
    TopicAuthorizationFailed,
    UnknownTopicOrPartition,
)
from kwire.raftmeta.metadata.topic_names import check_topic_name
from kwire.types import DirectoryId

if TYPE_CHECKING:
    from kwire.handlers.dispatch import Context
    from kwire.raftmeta.metadata.image import MetadataImage, PartitionImage

_OPERATIONS: Final = {
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
_BY_RESOURCE: Final = {
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
CLUSTER: Final = "kafka-cluster"


def authorized_operations(context: "Context", resource_type: str, name: str) -> int:
    """Return the operations that the client may do on a resource, as a bit field."""
    bits = 0
    for operation in _BY_RESOURCE[resource_type]:
        if context.authorize(operation, resource_type, name):
            bits |= 1 << _OPERATIONS[operation]
    return bits


class Seen(NamedTuple):
    """A partition as clients of a listener see it."""

    error_code: int
    leader: int
    offline: list[int]


class View:
    """An image as clients of a listener see it; made once per request."""

    def __init__(self, image: "MetadataImage", listener: str) -> None:
        brokers = image.brokers.values()
        self._registered = frozenset(broker.id for broker in brokers)
        self._reachable = frozenset(b.id for b in brokers if b.endpoint(listener) is not None)
        self._directories = {
            broker.id: frozenset((*broker.log_dirs, *_ANY_DIRECTORY)) if broker.log_dirs else None
            for broker in brokers
            if broker.id in self._reachable and not broker.fenced
        }
        """The online log directories of reachable unfenced brokers; None means any directory."""
        self._seen: dict[tuple[object, ...], Seen] = {}
        """Results by leader, replicas and directories, since many partitions have the same."""

    def seen(self, partition: "PartitionImage") -> Seen:
        """Return the leader if it can be reached, and the replicas that are offline."""
        place = partition.leader, partition.replicas, partition.directories
        found = self._seen.get(place)
        if found is None:
            found = self._seen[place] = self._look(partition)
        return found

    def _look(self, partition: "PartitionImage") -> Seen:
        directories = partition.directories or (DirectoryId.MIGRATING,) * len(partition.replicas)
        offline = [
            replica
            for replica, directory in zip(partition.replicas, directories, strict=False)
            if (known := self._directories.get(replica, _NOWHERE)) is not None
            and directory not in known
        ]
        if partition.leader in self._reachable:
            return Seen(NONE, partition.leader, offline)
        if partition.leader in self._registered:
            return Seen(ListenerNotFound.code, -1, offline)
        return Seen(LeaderNotAvailable.code, -1, offline)


_ANY_DIRECTORY: Final = (DirectoryId.MIGRATING, DirectoryId.UNASSIGNED)
"""The ids of directories that are not decided yet."""
_NOWHERE: Final[frozenset[bytes]] = frozenset()


def why_unknown(name: str) -> int:
    """Return the error code for a topic that does not exist: invalid name, or unknown."""
    try:
        check_topic_name(name)
    except InvalidTopicException as error:
        return error.code
    return UnknownTopicOrPartition.code


def some_controller(context: "Context", image: "MetadataImage") -> int:
    """Return a live broker for admin requests: this one if it is live, for any forwards them."""
    own = context.config.node_id
    live = [broker.id for broker in image.live_brokers()]
    return own if own in live else live[0] if live else -1


def check_alter(context: "Context", resource_type: int, name: str) -> None:
    """Raise a KafkaError unless the client may change a resource's settings on this node."""
    if context.listener_type is ListenerType.BROKER:
        check_broker(context, resource_type, name)
    if resource_type == TOPIC and not context.authorize("AlterConfigs", "Topic", name):
        raise TopicAuthorizationFailed
    if resource_type == GROUP and not context.authorize("AlterConfigs", "Group", name):
        raise GroupAuthorizationFailed
    cluster = resource_type not in (TOPIC, GROUP)
    if cluster and not context.authorize("AlterConfigs", "Cluster", CLUSTER):
        raise ClusterAuthorizationFailed


def check_broker(context: "Context", resource_type: int, name: str) -> None:
    """Raise InvalidRequest if a resource is another broker; an empty name means all brokers."""
    if resource_type == BROKER and name:
        check_own_id(context, name)


def check_own_id(context: "Context", name: str) -> None:
    """Raise InvalidRequest unless ``name`` is this node's id: each broker checks its own."""
    own = context.config.node_id
    try:
        broker = int(name)
    except ValueError:
        raise InvalidRequest(f"Node id must be an integer, but it is: {name}") from None
    if broker != own:
        raise InvalidRequest(f"Unexpected broker id, expected {own}, but received {name}")
