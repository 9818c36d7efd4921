"""The cluster's metadata as clients of one listener see it.

Clients cannot reach a broker that has no address on their listener. So, for them, partitions led by
such a broker have no leader, and its replicas are offline.
"""

from collections.abc import Iterable, Iterator
from typing import Final, NamedTuple, Protocol, TypeVar

from kwire.errors import (
    NONE,
    InvalidTopicException,
    LeaderNotAvailable,
    ListenerNotFound,
    UnknownTopicOrPartition,
)
from kwire.handlers.shared.context import Context
from kwire.raftmeta.metadata.image import (
    BrokerImage,
    ControllerImage,
    MetadataImage,
    NodeEndpoint,
    PartitionImage,
)
from kwire.raftmeta.metadata.topic_names import check_topic_name
from kwire.types import DirectoryId

Node = TypeVar("Node", BrokerImage, ControllerImage)
Described_co = TypeVar("Described_co", covariant=True)

_ANY_DIRECTORY: Final = (DirectoryId.MIGRATING, DirectoryId.UNASSIGNED)
"""Values for directories that are not assigned yet."""
_NO_DIRECTORY: Final[frozenset[bytes]] = frozenset()


class Leadership(NamedTuple):
    """A partition's leader and its offline replicas."""

    error_code: int
    leader: int
    """-1 if the leader cannot be reached on the listener."""
    offline_replicas: list[int]


class PartitionType(Protocol[Described_co]):
    """The class of a partition in a response; these fields are common to all such classes."""

    def __call__(
        self,
        *,
        error_code: int,
        partition_index: int,
        leader_id: int,
        leader_epoch: int,
        replica_nodes: list[int],
        isr_nodes: list[int],
        offline_replicas: list[int],
    ) -> Described_co: ...


class ClientView:
    """An image as clients of one listener see it; created once per request."""

    def __init__(self, image: MetadataImage, listener: str) -> None:
        brokers = image.brokers.values()
        self._registered = frozenset(broker.id for broker in brokers)
        self._reachable = frozenset(b.id for b in brokers if b.endpoint(listener) is not None)
        self._directories = {
            broker.id: frozenset((*broker.log_dirs, *_ANY_DIRECTORY)) if broker.log_dirs else None
            for broker in brokers
            if broker.id in self._reachable and not broker.fenced
        }
        """The online log directories of reachable unfenced brokers; None means any directory."""
        self._leaderships: dict[tuple[object, ...], Leadership] = {}
        """Results by leader, replicas and directories, which many partitions have in common."""

    @property
    def has_errors(self) -> bool:
        """True if a partition that was described cannot be reached."""
        return any(each.error_code for each in self._leaderships.values())

    def describe(
        self, partition_type: PartitionType[Described_co], index: int, partition: PartitionImage
    ) -> Described_co:
        """Return a partition for a response, without its leader if the leader cannot be reached."""
        key = partition.leader, partition.replicas, partition.directories
        leadership = self._leaderships.get(key)
        if leadership is None:
            leadership = self._leaderships[key] = self._leadership(partition)
        error_code, leader, offline_replicas = leadership
        return partition_type(
            error_code=error_code,
            partition_index=index,
            leader_id=leader,
            leader_epoch=partition.leader_epoch,
            replica_nodes=list(partition.replicas),
            isr_nodes=list(partition.isr),
            offline_replicas=offline_replicas,
        )

    def _leadership(self, partition: PartitionImage) -> Leadership:
        directories = partition.directories or (DirectoryId.MIGRATING,) * len(partition.replicas)
        offline_replicas = [
            replica
            for replica, directory in zip(partition.replicas, directories, strict=False)
            if (online := self._directories.get(replica, _NO_DIRECTORY)) is not None
            and directory not in online
        ]
        if partition.leader in self._reachable:
            return Leadership(NONE, partition.leader, offline_replicas)
        if partition.leader in self._registered:
            return Leadership(ListenerNotFound.code, -1, offline_replicas)
        return Leadership(LeaderNotAvailable.code, -1, offline_replicas)


def with_endpoints(nodes: Iterable[Node], listener: str) -> Iterator[tuple[Node, NodeEndpoint]]:
    """Yield the nodes that have an address on a listener, together with that address."""
    for node in nodes:
        endpoint = node.endpoint(listener)
        if endpoint is not None:
            yield node, endpoint


def unknown_topic_code(name: str) -> int:
    """Return the error code for a topic that does not exist: its name is invalid or unknown."""
    try:
        check_topic_name(name)
    except InvalidTopicException as error:
        return error.code
    return UnknownTopicOrPartition.code


def any_controller_id(context: Context, image: MetadataImage) -> int:
    """Return a live broker for admin requests, preferably this one; any broker can forward them."""
    own = context.config.node_id
    live = [broker.id for broker in image.live_brokers()]
    return own if own in live else live[0] if live else -1
