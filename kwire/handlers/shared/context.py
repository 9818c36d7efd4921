"""The context in which a request is answered: the parts of the node, the client, its listener.

The server fills in the parts as it creates them; a listener does not serve an API that needs a part
which its node lacks.
"""

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, Final, NamedTuple, TypeAlias, TypeVar

from kwire import attrs
from kwire.clock import Clock, SystemClock
from kwire.codec.apis import ListenerType
from kwire.configs.broker import BrokerConfig
from kwire.errors import (
    ClusterAuthorizationFailed,
    GroupAuthorizationFailed,
    KafkaError,
    TopicAuthorizationFailed,
    TransactionalIdAuthorizationFailed,
)
from kwire.group.coordinator import GroupCoordinator
from kwire.log.manager import LogManager
from kwire.metrics import Metrics
from kwire.net.controller_channel import ControllerChannel
from kwire.raftmeta.controller.auto_topic_creation import AutoTopicCreation
from kwire.raftmeta.controller.controller import Controller, Decide
from kwire.raftmeta.controller.mutation_quota import Permit, Requester
from kwire.raftmeta.metadata.image import MetadataImage
from kwire.raftmeta.quorum import RaftService
from kwire.replica.producer_ids import ProducerIds
from kwire.replica.replicas import ReplicaService
from kwire.replica.transaction_ports import MarkerWriter, TransactionVerifier

if TYPE_CHECKING:
    from kwire.transaction.coordinator import TransactionCoordinator

Req = TypeVar("Req")
Resp = TypeVar("Resp")

CLUSTER: Final = "kafka-cluster"
"""The name of the only resource of type Cluster."""
_AUTHORIZATION_ERRORS: Final[Mapping[str, type[KafkaError]]] = {
    "Cluster": ClusterAuthorizationFailed,
    "Group": GroupAuthorizationFailed,
    "Topic": TopicAuthorizationFailed,
    "TransactionalId": TransactionalIdAuthorizationFailed,
}


class Principal(NamedTuple):
    """The identity of a client; in Kafka's form User:ANONYMOUS."""

    kind: str
    name: str


ANONYMOUS: Final = Principal("User", "ANONYMOUS")


# Any: handlers never see the None, because an API whose part the node lacks is not served.
Absent: TypeAlias = Any


def _absent() -> Absent:
    """Return None for a part that this node lacks, or that the server has not created yet."""
    return None


@attrs.define(kw_only=True)
class Services:
    """The parts of one node that requests may use; one object per node, filled in by the server."""

    config: BrokerConfig = attrs.field(factory=_absent)
    """The current snapshot of the settings; replaced when they change."""
    clock: Clock = attrs.field(factory=SystemClock)
    metrics: Metrics = attrs.field(factory=Metrics)
    image: MetadataImage = attrs.field(factory=_absent)
    """The published metadata; replaced by each publication."""
    replicas: ReplicaService = attrs.field(factory=_absent)
    groups: GroupCoordinator = attrs.field(factory=_absent)
    controller: Controller = attrs.field(factory=_absent)
    topic_creation: AutoTopicCreation = attrs.field(factory=_absent)
    quorum: RaftService = attrs.field(factory=_absent)
    logs: LogManager = attrs.field(factory=_absent)
    producer_ids: ProducerIds = attrs.field(factory=_absent)
    markers: MarkerWriter = attrs.field(factory=_absent)
    """Writes transaction markers to the partitions that this broker leads."""
    verifier: TransactionVerifier = attrs.field(factory=_absent)
    """Asks transaction coordinators, on this node and on others."""
    transactions: "Callable[[], TransactionCoordinator]" = attrs.field(factory=_absent)
    """Returns this node's transaction coordinator, which is created when it is first needed."""
    channel: ControllerChannel | None = None
    """The channel over which requests are forwarded to an active controller on another node."""
    cluster_id: str = ""
    supported_features: Mapping[str, tuple[int, int]] = attrs.field(factory=dict)
    """The smallest and largest level that this node supports, by feature name."""


@attrs.frozen(kw_only=True)
class Context:
    """The context of one request: the parts of the node, the client and its listener."""

    services: Services
    listener_type: ListenerType = ListenerType.BROKER
    listener: str = "PLAINTEXT"
    client_id: str = ""
    api_version: int = 0
    """The request's version for APIs that the controller answers; may be 0 for others."""
    client_host: str = "127.0.0.1"
    principal: Principal = ANONYMOUS
    may_forward: bool = False
    """True if NotController is raised to the caller, which forwards the request."""

    @property
    def config(self) -> BrokerConfig:
        return self.services.config

    @property
    def clock(self) -> Clock:
        return self.services.clock

    @property
    def image(self) -> MetadataImage:
        """The current metadata; read it once per request, because it may change at an await."""
        return self.services.image

    @property
    def replicas(self) -> ReplicaService:
        return self.services.replicas

    @property
    def groups(self) -> GroupCoordinator:
        return self.services.groups

    @property
    def transactions(self) -> "TransactionCoordinator":
        return self.services.transactions()

    @property
    def controller(self) -> Controller:
        return self.services.controller

    @property
    def topic_creation(self) -> AutoTopicCreation:
        return self.services.topic_creation

    @property
    def quorum(self) -> RaftService:
        return self.services.quorum

    @property
    def logs(self) -> LogManager:
        return self.services.logs

    async def decide(self, decide: "Decide[Req, Resp]", request: Req) -> Resp:
        """Have the active controller decide on a request.

        On a broker's listener the response waits until this broker has applied the decision; on a
        controller's listener it waits until the decision is committed.
        """
        return await self.controller.call(
            decide, request, in_force=self.listener_type is ListenerType.BROKER
        )

    def mutation_permit(self, strict_since: int) -> Permit:
        """Return the client's permit to create and delete topics and partitions.

        A client that exceeds its quota is rejected from version ``strict_since`` onwards; before
        that it is slowed down.
        """
        strict = self.api_version >= strict_since
        return self.controller.permit(self.requester, strict=strict)

    @property
    def requester(self) -> Requester:
        """The client, as the controller's mutation quota identifies it."""
        return Requester(self.principal, self.client_id, self.client_host)

    def is_allowed(self, operation: str, resource_type: str, name: str) -> bool:
        """Return whether the principal may perform ``operation`` on a resource.

        Examples: "Read" is an operation, "Topic" a resource type.
        """
        del operation, resource_type, name
        return True

    def check_allowed(self, operation: str, resource_type: str, name: str) -> None:
        """Raise the resource type's error unless the principal may perform ``operation``."""
        if not self.is_allowed(operation, resource_type, name):
            raise _AUTHORIZATION_ERRORS[resource_type]
