"""The context in which a request is answered: the parts of the node, the client, its listener.

A listener does not serve an API that needs a part that the node does not have.
"""

from collections.abc import Awaitable, Callable, Collection, Mapping
from typing import TYPE_CHECKING, Final, NamedTuple, TypeAlias, TypeVar

import attrs

from kwire.clock import Clock
from kwire.codec.apis import ListenerType
from kwire.configs.broker import BrokerConfig
from kwire.drive import run_in_slices
from kwire.errors import (
    ClusterAuthorizationFailed,
    GroupAuthorizationFailed,
    KafkaError,
    TopicAuthorizationFailed,
    TransactionalIdAuthorizationFailed,
)
from kwire.handlers.shared.client_quotas import ClientQuotas
from kwire.handlers.shared.shared_response import MetadataFrames
from kwire.log.manager import LogManager
from kwire.metrics import Metrics, count_throttle
from kwire.raftmeta.controller.active_controller import ActiveController
from kwire.raftmeta.controller.auto_topic_creation import AutoTopicCreation
from kwire.raftmeta.controller.controller import Controller, Decide
from kwire.raftmeta.controller.mutation_quota import Permit, Requester
from kwire.raftmeta.metadata.image import MetadataImage
from kwire.raftmeta.quorum import RaftService
from kwire.replica.producer_ids import ProducerIds
from kwire.replica.replicas import ReplicaService
from kwire.replica.throttles import RateLimit
from kwire.replica.transaction_ports import MarkerWriter, TransactionVerifier

if TYPE_CHECKING:
    from kwire.group.coordinator import GroupCoordinator
    from kwire.security.authorizer import Authorizer
    from kwire.share.share_partitions import ShareService
    from kwire.share.state.coordinator import ShareCoordinator
    from kwire.telemetry.receiver import TelemetryReceiver
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


@attrs.define(eq=False, repr=False)
class ClientConnection:
    """A client's connection, with the actions to take when it closes."""

    client_port: int = 0
    """The client's port; 0 if the requests do not have their own connection."""
    on_closed: "dict[object, Callable[[], None]]" = attrs.field(factory=dict)
    """The callbacks for the end of the connection, by any key."""
    software_name: str = "unknown"
    """The name of the client's library, from its ApiVersions request."""
    software_version: str = "unknown"

    def close(self) -> None:
        """Take the actions that are due when the connection closes."""
        while self.on_closed:
            self.on_closed.popitem()[1]()


@attrs.define(kw_only=True, eq=False, repr=False)
class Current:
    """The current settings and metadata of a node; both are replaced when they change."""

    config: BrokerConfig
    """The settings, including those that were changed while the node runs."""
    image: MetadataImage
    """The published metadata."""


@attrs.frozen(kw_only=True, eq=False, repr=False)
class BrokerServices:
    """The parts of a node's broker that requests may use."""

    replicas: ReplicaService
    groups: "Callable[[], GroupCoordinator]"
    """Returns this node's group coordinator, which is created when it is first needed."""
    producer_ids: ProducerIds
    markers: MarkerWriter
    """Writes transaction markers to the partitions that this broker leads."""
    verifier: TransactionVerifier
    """Asks transaction coordinators, on this node and on others."""
    transactions: "Callable[[], TransactionCoordinator]"
    """Returns this node's transaction coordinator, which is created when it is first needed."""
    share_states: "Callable[[], ShareCoordinator]"
    """Returns this node's share coordinator, which is created when it is first needed."""
    client_quotas: ClientQuotas
    """Limits the bytes that clients produce and fetch."""
    share: "Callable[[], ShareService] | None" = None
    """Returns this broker's share partitions, which are created when first needed; None if nothing
    stores their states."""
    telemetry: "TelemetryReceiver | None" = None
    """Takes the metrics that clients push; None if clients are not asked for metrics."""


CheckCertificates: TypeAlias = Callable[[BrokerConfig, Collection[str]], Awaitable[None]]
"""Raises ConfigError if the node cannot use the settings; the names are those that change."""


@attrs.frozen(kw_only=True, eq=False, repr=False)
class Services:
    """The parts of one node that requests may use; one object per node."""

    current: Current
    clock: Clock
    metrics: Metrics
    cluster_id: str
    supported_features: Mapping[str, tuple[int, int]]
    """The smallest and largest level that this node supports, by feature name."""
    active_controller: ActiveController
    topic_creation: AutoTopicCreation
    quorum: RaftService
    logs: LogManager
    broker: BrokerServices | None
    """None on a node that is only a controller."""
    metadata_frames: MetadataFrames = attrs.field(factory=MetadataFrames)
    authorizer: "Authorizer | None" = None
    """Decides what clients may do; without it, they may do everything."""
    check_certificates: "CheckCertificates | None" = None
    """Checks changed settings of TLS; None on a node without TLS."""

    @property
    def has_telemetry(self) -> bool:
        """True if this node collects clients' metrics."""
        return self.broker is not None and self.broker.telemetry is not None


@attrs.frozen(kw_only=True, eq=False, repr=False)
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
    by_token: bool = False
    """True if the client has logged in with a delegation token."""
    connection: ClientConnection = attrs.field(factory=ClientConnection)
    may_forward: bool = False
    """True if NotController is raised to the caller, which forwards the request."""

    @property
    def config(self) -> BrokerConfig:
        return self.services.current.config

    @property
    def clock(self) -> Clock:
        return self.services.clock

    @property
    def image(self) -> MetadataImage:
        """The current metadata; read it once per request, because it may change at an await."""
        return self.services.current.image

    @property
    def broker(self) -> BrokerServices:
        """The parts of this node's broker, for an API that only the listeners of brokers serve."""
        broker = self.services.broker
        assert broker is not None
        return broker

    @property
    def replicas(self) -> ReplicaService:
        # Like `broker`, but without a call, because requests often read this.
        broker = self.services.broker
        assert broker is not None
        return broker.replicas

    @property
    def groups(self) -> "GroupCoordinator":
        return self.broker.groups()

    @property
    def transactions(self) -> "TransactionCoordinator":
        return self.broker.transactions()

    @property
    def share_states(self) -> "ShareCoordinator":
        return self.broker.share_states()

    @property
    def controller(self) -> Controller:
        """This node's controller, whether or not it is active."""
        return self.services.active_controller.local

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
        """Have this node's controller decide on a request; raise NotController if not active.

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

    def byte_limit(self, quota: str) -> RateLimit | None:
        """Return the limit that a quota sets on this client's bytes, or None without the quota."""
        quotas = self.image.quotas
        if not quotas:
            return None
        user = self.principal.name
        return self.broker.client_quotas.limit(quotas, quota, user, self.client_id)

    def count_throttle(self, quota: str, throttle_ms: int) -> int:
        """Count the throttle time of a response, if any, in the metrics; return it."""
        if throttle_ms:
            count_throttle(self.services.metrics, quota, throttle_ms / 1000)
        return throttle_ms

    @property
    def requester(self) -> Requester:
        """The client, as the controller's mutation quota identifies it."""
        return Requester(self.principal, self.client_id, self.client_host)

    def is_allowed(self, operation: str, resource_type: str, name: str) -> bool:
        """Return whether the principal may perform ``operation`` on a resource.

        Examples: "Read" is an operation, "Topic" a resource type.
        """
        authorizer = self.services.authorizer
        return authorizer is None or authorizer.allows(
            self.principal, self.client_host, operation, resource_type, name
        )

    async def is_some_allowed(self, operation: str, resource_type: str) -> bool:
        """Return whether the principal may perform ``operation`` on some resource of a type."""
        authorizer = self.services.authorizer
        return authorizer is None or await run_in_slices(
            authorizer.allowing_some(self.principal, self.client_host, operation, resource_type)
        )

    def check_allowed(self, operation: str, resource_type: str, name: str) -> None:
        """Raise the resource type's error unless the principal may perform ``operation``."""
        if not self.is_allowed(operation, resource_type, name):
            raise _AUTHORIZATION_ERRORS[resource_type]
