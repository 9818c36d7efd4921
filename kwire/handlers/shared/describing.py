"""What several handlers say of the cluster: partitions as clients see them, permitted operations.

Listener-dependent: a broker without an address on the client's listener cannot be reached, so
its partitions have no leader there and its replicas are offline.
"""

from typing import TYPE_CHECKING, Final, NamedTuple

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
from kwire.handlers import ListenerType
from kwire.raftmeta.metadata.image import BROKER, GROUP, TOPIC
from kwire.raftmeta.metadata.topic_names import check_topic_name
from kwire.types import METADATA_TOPIC_ID, ZERO_UUID

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
    """The operations the asker may do on a resource, as a bit field."""
    bits = 0
    for operation in _BY_RESOURCE[resource_type]:
        if context.authorize(operation, resource_type, name):
            bits |= 1 << _OPERATIONS[operation]
    return bits


class Seen(NamedTuple):
    """A partition as it is seen from a listener."""

    error_code: int
    leader: int
    offline: list[int]


class View:
    """An image as it is seen from a listener; made once per request, asked per partition."""

    def __init__(self, image: "MetadataImage", listener: str) -> None:
        brokers = image.brokers.values()
        self._registered = frozenset(broker.id for broker in brokers)
        self._reachable = frozenset(b.id for b in brokers if b.endpoint(listener) is not None)
        self._directories = {
            broker.id: frozenset((*broker.log_dirs, *_ANY_DIRECTORY)) if broker.log_dirs else None
            for broker in brokers
            if broker.id in self._reachable and not broker.fenced
        }
        """Where replicas may lie, of brokers that serve; None is anywhere."""
        self._seen: dict[tuple[object, ...], Seen] = {}
        """Most partitions of a cluster lie like many others."""

    def seen(self, partition: "PartitionImage") -> Seen:
        """Who leads that can be reached, and which replicas cannot."""
        place = partition.leader, partition.replicas, partition.directories
        found = self._seen.get(place)
        if found is None:
            found = self._seen[place] = self._look(partition)
        return found

    def _look(self, partition: "PartitionImage") -> Seen:
        directories = partition.directories or (ZERO_UUID,) * len(partition.replicas)
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


_ANY_DIRECTORY: Final = (ZERO_UUID, METADATA_TOPIC_ID)
"""Directory ids that say nothing."""
_NOWHERE: Final[frozenset[bytes]] = frozenset()


def why_unknown(name: str) -> int:
    """The error code for a topic that is not there: some names none could have."""
    try:
        check_topic_name(name)
    except InvalidTopicException as error:
        return error.code
    return UnknownTopicOrPartition.code


def some_controller(context: "Context", image: "MetadataImage") -> int:
    """A live broker to send admin requests to: this one, for any passes them on."""
    own = context.config.node_id
    live = [broker.id for broker in image.live_brokers()]
    return own if own in live else live[0] if live else -1


def check_alter(context: "Context", resource_type: int, name: str) -> None:
    """Whether the asker may change a resource's settings, here; KafkaError if not."""
    if context.side is ListenerType.BROKER:
        check_broker(context, resource_type, name)
    if resource_type == TOPIC and not context.authorize("AlterConfigs", "Topic", name):
        raise TopicAuthorizationFailed
    if resource_type == GROUP and not context.authorize("AlterConfigs", "Group", name):
        raise GroupAuthorizationFailed
    cluster = resource_type not in (TOPIC, GROUP)
    if cluster and not context.authorize("AlterConfigs", "Cluster", CLUSTER):
        raise ClusterAuthorizationFailed


def check_broker(context: "Context", resource_type: int, name: str) -> None:
    """Whether a resource is no other broker; one without a name stands for all brokers."""
    if resource_type == BROKER and name:
        check_own_id(context, name)


def check_own_id(context: "Context", name: str) -> None:
    """A broker's settings are changed through that broker, which judges them."""
    own = context.config.node_id
    try:
        broker = int(name)
    except ValueError:
        raise InvalidRequest(f"Node id must be an integer, but it is: {name}") from None
    if broker != own:
        raise InvalidRequest(f"Unexpected broker id, expected {own}, but received {name}")
