"""Turns a frame into an answer: lookup, decode, handler, error mapping, encode.

A handler sees only the newest shape of a request, raises :class:`~kwire.errors.KafkaError` for
errors that the protocol has a code for, and returns ``None`` when no answer is to be sent.  Any
other exception is a bug: logged once with its traceback, answered as UnknownServerError.
Cancellation is never caught.  A frame that cannot be answered at all raises :class:`Disconnect`.
"""

import logging
import struct
from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress
from importlib import import_module
from typing import TYPE_CHECKING, Any, Final, Generic, NamedTuple, TypeVar

import attrs

from kwire.clock import Clock, SystemClock
from kwire.codec.apis import BY_KEY, BY_NAME, Api, ListenerType
from kwire.codec.compile import decoder, encoder
from kwire.codec.frame import leading_int32, read_header, response_parts
from kwire.codec.primitives import MalformedError
from kwire.drive import give_way
from kwire.errors import KafkaError, NotController, UnknownServerError
from kwire.handlers import handler_name, served_on
from kwire.metrics import REQUEST_SECONDS, REQUESTS, Cell, Histogram, Metrics
from kwire.net.framing import Disconnect
from kwire.raftmeta.controller.mutation_quota import THROTTLE_MS_MAX, Requester

if TYPE_CHECKING:
    from kwire.codec.compile import Part
    from kwire.configs.broker import BrokerConfig
    from kwire.group.service import GroupCoordinator
    from kwire.handlers.shared.forwarding import Forwarding
    from kwire.log.service import LogManager
    from kwire.raftmeta.controller.auto_topic_creation import AutoTopicCreation
    from kwire.raftmeta.controller.mutation_quota import Permit
    from kwire.raftmeta.controller.service import Controller, Decide
    from kwire.raftmeta.metadata.image import MetadataImage
    from kwire.raftmeta.service import RaftService
    from kwire.replica.producer_ids import ProducerIds
    from kwire.replica.service import ReplicaService

__all__ = [
    "ANONYMOUS",
    "Context",
    "Disconnect",
    "Dispatcher",
    "Handler",
    "Principal",
    "Services",
    "Session",
    "handles",
]

log = logging.getLogger(__name__)

Req = TypeVar("Req")
Resp = TypeVar("Resp")

_API_VERSIONS: Final = BY_NAME["ApiVersions"]
_LONG_POLLS: Final = (BY_NAME["Fetch"].key,)
"""The API keys of long polls that change nothing."""
_HEAD: Final = struct.Struct(">hhi")


class Principal(NamedTuple):
    """The identity of a client, as in Kafka: User:ANONYMOUS."""

    kind: str
    name: str


ANONYMOUS: Final = Principal("User", "ANONYMOUS")


def _absent() -> Any:
    """Return None for a part that this node lacks; the listeners serve no API that needs it."""
    return None


@attrs.define(kw_only=True)
class Services:
    """The parts of one node that requests may use; one per node, filled by the server."""

    config: "BrokerConfig" = attrs.field(factory=_absent)
    """The current snapshot of the settings; replaced when they change."""
    clock: Clock = attrs.field(factory=SystemClock)
    metrics: Metrics = attrs.field(factory=Metrics)
    image: "MetadataImage" = attrs.field(factory=_absent)
    """The published metadata; replaced on each publication."""
    replicas: "ReplicaService" = attrs.field(factory=_absent)
    groups: "GroupCoordinator" = attrs.field(factory=_absent)
    controller: "Controller" = attrs.field(factory=_absent)
    topic_creation: "AutoTopicCreation" = attrs.field(factory=_absent)
    quorum: "RaftService" = attrs.field(factory=_absent)
    logs: "LogManager" = attrs.field(factory=_absent)
    producer_ids: "ProducerIds" = attrs.field(factory=_absent)
    forwarding: "Forwarding | None" = None
    """The forwarding of requests to an active controller on another node."""
    cluster_id: str = ""
    supported_features: Mapping[str, tuple[int, int]] = attrs.field(factory=dict)
    """Feature name to the smallest and largest level this node can work at."""


@attrs.frozen(kw_only=True)
class Context:
    """The context of one request: the parts of the node, the client and its listener."""

    services: Services
    listener_type: ListenerType = ListenerType.BROKER
    listener: str = "PLAINTEXT"
    client_id: str = ""
    api_version: int = 0
    """The version of a request that the controller answers; may be 0 for others."""
    client_host: str = "127.0.0.1"
    principal: Principal = ANONYMOUS
    may_forward: bool = False
    """Whether NotController is raised to the caller, which forwards the request, not answered."""

    @property
    def config(self) -> "BrokerConfig":
        return self.services.config

    @property
    def clock(self) -> Clock:
        return self.services.clock

    @property
    def image(self) -> "MetadataImage":
        """The current metadata; read it once per request, for it may change at an await."""
        return self.services.image

    @property
    def replicas(self) -> "ReplicaService":
        return self.services.replicas

    @property
    def groups(self) -> "GroupCoordinator":
        return self.services.groups

    @property
    def controller(self) -> "Controller":
        return self.services.controller

    @property
    def topic_creation(self) -> "AutoTopicCreation":
        return self.services.topic_creation

    @property
    def quorum(self) -> "RaftService":
        return self.services.quorum

    @property
    def logs(self) -> "LogManager":
        return self.services.logs

    async def decide(self, decide: "Decide[Req, Resp]", request: Req) -> Resp:
        """Have the active controller decide on a request.

        On a broker's listener the answer waits until this broker has applied the decision; on a
        controller's listener until the decision is committed.
        """
        return await self.controller.call(
            decide, request, in_force=self.listener_type is ListenerType.BROKER
        )

    def mutation_permit(self, strict_since: int) -> "Permit":
        """Return the client's permit to create and delete topics and partitions.

        From version ``strict_since`` on a client over its quota is refused, before that slowed.
        """
        strict = self.api_version >= strict_since
        return self.controller.permit(self.requester, strict=strict)

    @property
    def requester(self) -> Requester:
        """The client, as the controller's mutation quota counts it."""
        return Requester(self.principal, self.client_id, self.client_host)

    def authorize(self, operation: str, resource_type: str, name: str) -> bool:
        """Whether the principal may do ``operation`` (as "Read") on a resource (as "Topic")."""
        del operation, resource_type, name
        return True


def _holds_nothing(response: Any) -> None:
    """Do nothing: most answers hold only memory."""


@attrs.frozen
class Handler(Generic[Req, Resp]):
    """One API: its request type, its function, and its answer to errors."""

    request_type: type[Req]
    function: Callable[[Context, Req], Awaitable[Resp | None]]
    failed: Callable[[Req, KafkaError], Resp | None]
    refused: Callable[[Context, Req], list[Any]] | None = None
    """Removes from a request the resources that a broker refuses itself before it forwards the
    rest; returns the results for them."""
    discard: Callable[[Resp], None] = _holds_nothing
    """Releases the resources of an answer that will not be sent."""

    async def __call__(self, context: Context, request: Req) -> Resp | None:
        try:
            return await self.function(context, request)
        except KafkaError as error:
            if context.may_forward and isinstance(error, NotController):
                raise
            return self.failed(request, error)
        except Disconnect:
            raise
        except Exception:
            log.exception("request failed api=%s", self.request_type.__name__)
            return self.failed(request, UnknownServerError())


def handles(
    request_type: type[Req],
    *,
    failed: Callable[[Req, KafkaError], Resp | None],
    refused: Callable[[Context, Req], list[Any]] | None = None,
    discard: Callable[[Resp], None] = _holds_nothing,
) -> Callable[[Callable[[Context, Req], Awaitable[Resp | None]]], Handler[Req, Resp]]:
    """Make an ``async def`` the handler of one API; ``failed`` makes its answer to an error."""

    def decorate(function: Callable[[Context, Req], Awaitable[Resp | None]]) -> Handler[Req, Resp]:
        return Handler(request_type, function, failed, refused, discard)

    return decorate


def handler_of(api: Api, listener_type: ListenerType) -> Handler[Any, Any]:
    """Return the handler of an API on one kind of listener, imported on first use."""
    name = handler_name(api, listener_type)
    handler: Handler[Any, Any] = getattr(import_module(f"kwire.handlers.{name}"), name)
    return handler


@attrs.frozen
class Route:
    """The functions and metrics that serve one version of one API, looked up once."""

    serve: Handler[Any, Any]
    decode: Callable[[Any, int], tuple[Any, int]]
    widen: Callable[[Any, int], Any] | None
    narrow: Callable[[Any, int, Any], Any] | None
    count: Cell
    seconds: Histogram
    forwarded: bool
    """Whether brokers forward this API to the active controller."""

    @classmethod
    def build(
        cls, api: Api, listener_type: ListenerType, version: int, metrics: Metrics
    ) -> "Route":
        shapes = import_module(f"kwire.codec.messages.{api.module}")
        return cls(
            serve=handler_of(api, listener_type),
            decode=decoder(api.request, version),
            widen=getattr(shapes, "widen_request", None),
            narrow=getattr(shapes, "narrow_response", None),
            count=metrics.cell(REQUESTS, api.name, str(version)),
            seconds=metrics.histogram(REQUEST_SECONDS, api.name),
            forwarded=api.forwarded and ListenerType.BROKER in api.listener_types,
        )


def _unthrottled(context: Context, api_key: int, frame_bytes: int) -> int:
    """Return 0: there are no quotas of requests and bytes yet."""
    del context, api_key, frame_bytes
    return 0


@attrs.define
class Dispatcher:
    """Serves the requests of one kind of listener."""

    services: Services
    listener_type: ListenerType
    throttle_ms: Callable[[Context, int, int], int] = _unthrottled
    _apis: dict[int, Api] = attrs.field(init=False)
    _routes: dict[tuple[int, int], Route] = attrs.field(init=False, factory=dict)

    def __attrs_post_init__(self) -> None:
        self._apis = served_on(self.listener_type)

    def session(self, listener: str, client_host: str) -> "Session":
        """Return the session that answers the frames of one new connection."""
        context = Context(
            services=self.services,
            listener_type=self.listener_type,
            listener=listener,
            client_host=client_host,
        )
        return Session(self, context)

    def route(self, key: int, version: int) -> Route:
        """Return the route of a version of an API; Disconnect if it is not served here."""
        route = self._routes.get((key, version))
        if route is None:
            api = self._api(key, version)
            route = Route.build(api, self.listener_type, version, self.services.metrics)
            self._routes[key, version] = route
        return route

    async def prepared(self, key: int, version: int) -> Route:
        """Return the route as :meth:`route` does, but import and compile it piece by piece.

        For the first request of an API all pieces take up to 15 ms; other tasks run in between.
        """
        if (key, version) not in self._routes:
            api = self._api(key, version)
            pieces: tuple[Callable[[], object], ...] = (
                lambda: api.request,
                lambda: handler_of(api, self.listener_type),
                lambda: decoder(api.request, version),
                lambda: encoder(api.response, version),
            )
            for piece in pieces:
                piece()
                await give_way()
        return self.route(key, version)

    def _api(self, key: int, version: int) -> Api:
        api = self._apis.get(key)
        if api is None:
            raise Disconnect(f"API key {key} is not served on this listener")
        if not api.is_stable(version):
            raise Disconnect(f"{api.name} has no version {version}")
        return api


@attrs.define
class Session:
    """Answers one connection's frames, one after the other."""

    dispatcher: Dispatcher
    context: Context
    muted_s: float = 0.0
    """The seconds for which the connection is not read after the answer (quotas)."""

    async def answer(self, frame: memoryview) -> "list[Part] | None":
        """Return the pieces to send, or None if the request asks for no answer.

        Raises Disconnect for a frame that has no answer.
        """
        if len(frame) < _HEAD.size:
            raise Disconnect("a frame shorter than a request header")
        key, version, correlation_id = _HEAD.unpack_from(frame)
        if key == _API_VERSIONS.key and not _API_VERSIONS.is_stable(version):
            return _version_refused(correlation_id)
        route = await self.dispatcher.prepared(key, version)
        now = self.context.services.clock.now
        started = now()
        try:
            head, body = read_header(frame)
            request, _ = route.decode(frame, body)
            if route.widen is not None:
                request = route.widen(request, version)
        except MalformedError as error:
            raise Disconnect(f"malformed {BY_KEY[key].name} v{version}: {error}") from error
        client_id = head.client_id or ""
        if client_id != self.context.client_id:
            self.context = attrs.evolve(self.context, client_id=client_id)
        if route.forwarded and version != self.context.api_version:
            self.context = attrs.evolve(self.context, api_version=version)
        if route.forwarded and self.context.services.forwarding is not None:
            response = await self._by_controller(route, request, frame)
            if isinstance(response, list):
                self._mute(throttle_ms_of(key, version, response))
                return response
        else:
            response = await route.serve(self.context, request)
        route.count.value += 1
        route.seconds.observe(now() - started)
        if response is None:
            return None
        try:
            self._throttle(key, response, len(frame))
            if route.narrow is not None:
                response = route.narrow(response, version, request)
            return response_parts(key, version, correlation_id, response)
        except BaseException:
            route.serve.discard(response)
            raise

    async def _by_controller(self, route: Route, request: Any, frame: memoryview) -> Any:
        """Return the answer of this node's controller, or another node's as a list of parts."""
        context, forwarding = self.context, self.context.services.forwarding
        assert forwarding is not None
        if self.dispatcher.listener_type is not ListenerType.BROKER:
            return await route.serve(context, request)
        try:
            if not forwarding.is_needed:
                with suppress(NotController):
                    return await route.serve(attrs.evolve(context, may_forward=True), request)
            return await forwarding.pass_on(context, frame, request, route.serve)
        except KafkaError as error:
            return route.serve.failed(request, error)

    def only_reads(self, frame: memoryview) -> bool:
        """Whether a request changes nothing and may be cancelled when its client is gone."""
        return len(frame) >= _HEAD.size and _HEAD.unpack_from(frame)[0] in _LONG_POLLS

    def _throttle(self, key: int, response: Any, frame_bytes: int) -> None:
        """Set the throttle time of an answer, and mute the connection; every answer passes here."""
        wait_ms = self.dispatcher.throttle_ms(self.context, key, frame_bytes)
        told_ms = getattr(response, "throttle_time_ms", None)
        wait_ms = min(max(wait_ms, told_ms or 0), THROTTLE_MS_MAX)
        if told_ms is not None:
            response.throttle_time_ms = wait_ms
        self._mute(wait_ms)

    def _mute(self, wait_ms: int) -> None:
        """Mute the connection for the throttle time, since old clients would not wait."""
        if wait_ms > 0:
            self.muted_s = wait_ms / 1000


_THROTTLED_SINCE: Final = {19: 2, 20: 1, 37: 0}
"""The first version in which the answer begins with the throttle time, by API key, for the APIs
that count for controller_mutation_rate: CreateTopics, DeleteTopics, CreatePartitions."""


def throttle_ms_of(key: int, version: int, parts: "list[Part]") -> int:
    """Return the throttle time in an answer of another node's controller, or 0."""
    if version < _THROTTLED_SINCE.get(key, version + 1):
        return 0
    return leading_int32(key, version, memoryview(parts[0])[4:])


def _version_refused(correlation_id: int) -> "list[Part]":
    """Return the answer to a newer ApiVersions, in version 0: the versions that are served."""
    from kwire.handlers.shared.advertised import version_refused

    return response_parts(_API_VERSIONS.key, 0, correlation_id, version_refused())
