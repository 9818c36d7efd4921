"""Turns a frame into a response: lookup, decode, handler, error mapping, encode.

A frame that cannot be answered raises :class:`Disconnect`.
"""

import struct
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from importlib import import_module
from typing import Final, NamedTuple, TypeAlias

import attrs

from kwire.codec.apis import BY_KEY, BY_NAME, Api, ListenerType
from kwire.codec.compile import Decoder, Encoder, Part, decoder, decoder_in_steps, encoder
from kwire.codec.element_count import has_more_elements
from kwire.codec.emit_flat import FlatDecoder, FlatEncoder, Values, flat_decoder, flat_encoder
from kwire.codec.frame import (
    Body,
    encode_response,
    leading_int32,
    read_header,
    request_header_version,
    response_head,
    response_parts,
    response_parts_in_steps,
)
from kwire.codec.primitives import MalformedError
from kwire.drive import give_way, run_in_slices
from kwire.errors import KafkaError
from kwire.handlers import handler_name, served_on
from kwire.handlers.shared.busy_time import count_steps, count_time, throttle_after
from kwire.handlers.shared.client_quotas import PRODUCED, REQUEST_TIME
from kwire.handlers.shared.context import (
    ANONYMOUS,
    ClientConnection,
    Context,
    Principal,
    Services,
)
from kwire.handlers.shared.forwarding import answer_by_controller
from kwire.handlers.shared.handler import Flat, Handler
from kwire.handlers.shared.shared_response import BYTES_MAX, SharedResponse
from kwire.metrics import (
    REQUEST_SECONDS,
    REQUESTS,
    Cell,
    Histogram,
    Metrics,
)
from kwire.net.framing import Disconnect
from kwire.net.listener import finish_answer
from kwire.net.waiting_answers import Unfinished
from kwire.replica.throttles import RateLimit
from kwire.waits import Parked, Slow

_API_VERSIONS: Final = BY_NAME["ApiVersions"]
_LONG_POLLS: Final = (BY_NAME["Fetch"].key,)
"""The API keys of long polls, which do not change anything."""
_PRODUCE: Final = BY_NAME["Produce"].key
_FETCH: Final = BY_NAME["Fetch"].key
_WRITE_MARKERS: Final = BY_NAME["WriteTxnMarkers"].key
LARGE_FRAME_BYTES: Final = 64 << 10
"""The frame size from which a request is decoded in slices; a smaller one takes at most 4 ms."""
QUICK_ANSWER_S: Final = 0.0005
"""A handler that took less time cannot have built a large response, so counting is skipped."""
LARGE_COUNT: Final = 256
"""The number of array elements above which a response is encoded in slices."""
_HEAD: Final = struct.Struct(">hhi")
_NO_CLIENT: Final = b"\xff\xff"
"""The encoded length of a null client id."""
_NO_TAGS: Final[bytes] = b"\0"
Finished: TypeAlias = Unfinished[list[Part]] | list[Part] | None
Answer: TypeAlias = Slow[Finished] | list[Part] | None
"""The parts to send, None for no response, or what the request still has to wait for."""


def handler_of(api: Api, listener_type: ListenerType) -> Handler[Body, Body]:
    """Return the handler of an API on one kind of listener, imported on first use."""
    name = handler_name(api, listener_type)
    handler: Handler[Body, Body] = getattr(import_module(f"kwire.handlers.{name}"), name)
    return handler


class FlatRoute(NamedTuple):
    """The functions for the usual shape of a request."""

    function: Callable[..., Values | Slow[Body] | Body]
    decode: FlatDecoder
    encode: FlatEncoder | None
    """None if the function returns responses."""
    needs_request: bool

    @classmethod
    def build(cls, flat: Flat | None, api: Api, version: int) -> "FlatRoute | None":
        """Return None if the handler or the version has no usual shape."""
        if flat is None or version < flat.since:
            return None
        ones, few = flat.request_ones, flat.request_few
        decode = flat_decoder(
            api.request, version, ones, few, flat.request_texts, flat.request_optional
        )
        encode = None
        if flat.response_fields:
            few, names = flat.response_few, flat.response_fields
            encode = flat_encoder(api.response, version, few, names)
        function = partial(flat.function, version=version) if flat.takes_version else flat.function
        return cls(function, decode, encode, flat.needs_request)


@attrs.frozen(eq=False, repr=False)
class Route:
    """The functions and metrics that serve one version of one API, looked up once."""

    handler: Handler[Body, Body]
    decode: Decoder[Body]
    version: int
    widen: Callable[[Body, int], Body] | None
    narrow: Callable[[Body, int, Body], Body] | None
    encode: Encoder[Body]
    head: struct.Struct
    """The layout of the size and the header of the response."""
    count: Cell
    seconds: Histogram
    forwarded: bool
    """True if brokers forward the frames of this API to the active controller."""
    is_fetch: bool
    is_exempt: bool
    """True if only nodes send this request; its time is not counted towards quotas."""
    is_produce: bool
    """True if the request's bytes count towards the quota of a producer."""
    is_flexible: bool
    """True if the header of the request ends with tagged fields."""
    flat: FlatRoute | None
    """The functions for the usual shape; None if it has none."""

    def read(self, frame: memoryview, body: int) -> Body:
        """Return the request in a frame, converted to its newest shape."""
        request, _ = self.decode(frame, body)
        return request if self.widen is None else self.widen(request, self.version)

    async def finish(
        self, context: Context, request: Body, slow: Slow[Body], frame: memoryview
    ) -> Body:
        """Return the response once the handler has finished."""
        try:
            return await slow.finish()
        except Exception as error:  # noqa: BLE001  A bug is logged.
            return self._answer_to(error, context, request, frame)

    def resume(
        self, context: Context, request: Body, parked: Parked[Body], frame: memoryview
    ) -> Body:
        """Return the response to a parked request after its wait, or the next wait."""
        try:
            return parked.resume()
        except Exception as error:  # noqa: BLE001  A bug is logged.
            return self._answer_to(error, context, request, frame)

    def _answer_to(
        self, error: Exception, context: Context, request: Body, frame: memoryview
    ) -> Body:
        """Return the response to a failed request.

        ``request`` is None for a request in the usual shape, which is decoded only for this
        response.
        """
        if request is None and self.flat is not None and self.flat.needs_request:
            request = self.read(frame, read_header(frame)[1])
        return self.handler.answer_to(error, context, request)

    def encode_values(self, correlation_id: int, values: Values, throttle_ms: int) -> list[Part]:
        """Return the parts of a response in the usual shape."""
        assert self.flat is not None
        assert self.flat.encode is not None
        try:
            return self.flat.encode(correlation_id, *values, throttle_ms)
        except BaseException:
            self.handler.discard(values)
            raise

    @classmethod
    def build(
        cls, api: Api, listener_type: ListenerType, version: int, metrics: Metrics
    ) -> "Route":
        shapes = import_module(f"kwire.codec.messages.{api.module}")
        handler = handler_of(api, listener_type)
        is_forwarded = api.forwarded and ListenerType.BROKER in api.listener_types
        return cls(
            handler=handler,
            decode=decoder(api.request, version),
            version=version,
            widen=getattr(shapes, "widen_request", None),
            narrow=getattr(shapes, "narrow_response", None),
            encode=encoder(api.response, version),
            head=response_head(api.key, version),
            count=metrics.cell(REQUESTS, api.name, str(version)),
            seconds=metrics.histogram(REQUEST_SECONDS, api.name),
            forwarded=is_forwarded and not handler.calls_controller,
            is_fetch=api.key == _FETCH,
            is_exempt=api.key == _WRITE_MARKERS,
            is_produce=api.key == _PRODUCE,
            flat=FlatRoute.build(handler.flat, api, version),
            is_flexible=request_header_version(api.key, version) == 2,
        )


@attrs.define(eq=False, repr=False)
class Dispatcher:
    """Serves the requests of one kind of listener."""

    services: Services
    listener_type: ListenerType
    routes: dict[tuple[int, int], Route] = attrs.field(init=False, factory=dict)
    """The routes of the requests so far, by API key and version."""
    _apis: dict[int, Api] = attrs.field(init=False)

    def __attrs_post_init__(self) -> None:
        self._apis = served_on(self.listener_type, self.services.has_telemetry)

    def for_connection(
        self,
        listener: str,
        client_host: str,
        client_port: int = 0,
        *,
        principal: Principal = ANONYMOUS,
        by_token: bool = False,
        connection: ClientConnection | None = None,
    ) -> "ConnectionRequests":
        """Return the object that answers the requests of a new connection.

        ``connection`` has what was learned about the client before it authenticated.
        """
        context = Context(
            services=self.services,
            listener_type=self.listener_type,
            listener=listener,
            client_host=client_host,
            principal=principal,
            by_token=by_token,
            connection=ClientConnection(client_port) if connection is None else connection,
        )
        return ConnectionRequests(self, context)

    def route(self, key: int, version: int) -> Route:
        """Return the route of an API version; raises Disconnect if it is not served here."""
        route = self.routes.get((key, version))
        if route is None:
            api = self._api(key, version)
            route = Route.build(api, self.listener_type, version, self.services.metrics)
            self.routes[key, version] = route
        return route

    async def prepare(self, key: int, version: int) -> Route:
        """Return the same route as :meth:`route`, but import and compile its parts one by one.

        The first request of an API takes up to 15 ms here; other tasks run in between.
        """
        api = self._api(key, version)
        pieces: tuple[Callable[[], object], ...] = (
            lambda: api.request,
            lambda: handler_of(api, self.listener_type),
            lambda: decoder(api.request, version),
            lambda: encoder(api.response, version),
            lambda: FlatRoute.build(handler_of(api, self.listener_type).flat, api, version),
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


@attrs.define(eq=False, repr=False)
class ConnectionRequests:
    """The requests of one connection, answered one after another."""

    dispatcher: Dispatcher
    context: Context
    _routes: Mapping[tuple[int, int], Route] = attrs.field(init=False)
    _now: Callable[[], float] = attrs.field(init=False)
    muted_s: float = 0.0
    """The seconds for which, because of quotas, the connection is not read after the response."""
    _client: bytes = _NO_CLIENT
    """The context's client id as encoded in a request header: its length, then its bytes."""

    def __attrs_post_init__(self) -> None:
        self._routes = self.dispatcher.routes
        self._now = self.context.services.clock.now

    def identify(self, user: str) -> None:
        """Record the client's user name, before the first request."""
        self.context = attrs.evolve(self.context, principal=Principal("User", user))

    async def answer(self, frame: memoryview) -> Sequence[Part] | None:
        """Return the parts to send, or None if the request expects no response."""
        return await finish_answer(self.answer_now(frame))

    def answer_now(self, frame: memoryview) -> Answer:
        """Return the parts to send, None for no response, or what the request must wait for.

        Raises Disconnect for a frame that cannot be answered.
        """
        if len(frame) < _HEAD.size:
            raise Disconnect("a frame shorter than a request header")
        key, version, correlation_id = _HEAD.unpack_from(frame)
        route = self._routes.get((key, version))
        if route is None:
            if key == _API_VERSIONS.key and not _API_VERSIONS.is_stable(version):
                return _refuse_version(correlation_id)
            return Slow(partial(self._prepare, frame, key, version))
        started = self._now()
        try:
            body = self._read_client(frame, route)
            if route.flat is not None:
                values = route.flat.decode(frame, body)
                if values is not None:
                    answer = self._answer_flat(
                        route, route.flat, values, frame, body, correlation_id, started
                    )
                    if answer is not None:
                        return answer
            if len(frame) >= LARGE_FRAME_BYTES:
                return Slow(partial(self._answer_large, frame, route))
            request, _ = route.decode(frame, body)
        except MalformedError as error:
            raise _disconnect(frame, error) from error
        return self._begin(route, request, frame, started)

    def _answer_flat(
        self,
        route: Route,
        flat: FlatRoute,
        values: Values,
        frame: memoryview,
        body: int,
        correlation_id: int,
        started: float,
    ) -> Answer:
        """Answer a request in the usual shape; return None if the handler has to answer it."""
        try:
            result = flat.function(self.context, *values)
        except KafkaError:  # nothing has been done
            return None
        except Exception as error:  # noqa: BLE001  A bug, perhaps after a write: not repeated.
            request = route.read(frame, body)
            response = route.handler.answer_to(error, self.context, request)
            return self._respond(route, request, response, frame, started)
        if result is None:
            return None
        if isinstance(result, Slow):
            return self._wait(route, None, result, frame, started, started)
        if flat.encode is None or not isinstance(result, tuple):
            return self._respond(route, None, result, frame, started)
        route.count.value += 1
        elapsed_s = self._now() - started
        route.seconds.observe(elapsed_s)
        throttle_ms = 0
        if self.context.services.current.image.quotas:  # Usually there are no quotas.
            if route.is_produce:
                throttle_ms = self._mute(_throttle_produced(self.context, frame))
            throttle_ms = max(throttle_ms, self._count_time(route, None, elapsed_s))
        return route.encode_values(correlation_id, result, throttle_ms)

    async def _prepare(self, frame: memoryview, key: int, version: int) -> Finished:
        """Answer the first request of an API version."""
        await self.dispatcher.prepare(key, version)
        return await _wait_work(self.answer_now(frame))

    async def _answer_large(self, frame: memoryview, route: Route) -> Finished:
        """Answer a request that is decoded in slices."""
        started = self._now()
        try:
            request = await _decode_large(frame, self._read_client(frame, route))
        except MalformedError as error:
            raise _disconnect(frame, error) from error
        return await _wait_work(self._begin(route, request, frame, started))

    def _begin(self, route: Route, request: Body, frame: memoryview, started: float) -> Answer:
        """Call the handler of a decoded request."""
        if route.widen is not None:
            try:
                request = route.widen(request, route.version)
            except MalformedError as error:
                raise _disconnect(frame, error) from error
        if route.forwarded:
            return Slow(partial(self._forward, route, request, frame, started))
        result = route.handler.begin(self.context, request)
        if isinstance(result, Slow):
            return self._wait(route, request, result, frame, started, started)
        return self._respond(route, request, result, frame, started)

    def _wait(
        self,
        route: Route,
        request: Body,
        slow: Slow[Body],
        frame: memoryview,
        started: float,
        since: float,
    ) -> Slow[Finished]:
        """Return the wait of a request, which continues after its handler's wait.

        The request has kept the loop busy since ``since``; earlier time has been counted.
        """
        if isinstance(slow, Parked):
            limit = _time_limit(self.context, route, request)
            if limit is not None:
                count_time(self.context, limit, self._now() - since)
            return slow.then(partial(self._resume, route, request, slow, frame, started))
        if not isinstance(slow, Unfinished):
            return Slow(partial(self._finish_slow, route, request, slow, frame, started, since))
        throttle_ms = self._mute(_throttle_produced(self.context, frame)) if route.is_produce else 0
        now = self._now()
        throttle_ms = max(throttle_ms, self._count_time(route, request, now - since))
        return Unfinished(
            partial(self._finish, route, request, slow, frame, started, throttle_ms, now - started)
        )

    async def _forward(
        self, route: Route, request: Body, frame: memoryview, started: float
    ) -> Finished:
        key, version, _ = _HEAD.unpack_from(frame)
        if version != self.context.api_version:
            self.context = attrs.evolve(self.context, api_version=version)
        response = await answer_by_controller(self.context, frame, request, route.handler)
        if isinstance(response, list):
            self._mute(throttle_ms_of(key, version, response))
            return response
        answer = self._respond(route, request, response, frame, started, has_waited=True)
        return await _wait_work(answer)

    def _resume(
        self, route: Route, request: Body, parked: Parked[Body], frame: memoryview, started: float
    ) -> Answer:
        """Continue a parked request after its wait."""
        resumed = self._now()
        result = route.resume(self.context, request, parked, frame)
        if isinstance(result, Slow):
            return self._wait(route, request, result, frame, started, resumed)
        busy_s = self._now() - resumed
        throttle_ms = self._count_time(route, request, busy_s)
        return self._respond(route, request, result, frame, started, throttle_ms, busy_s)

    async def _finish_slow(
        self,
        route: Route,
        request: Body,
        slow: Slow[Body],
        frame: memoryview,
        started: float,
        since: float,
    ) -> Finished:
        """Continue a request that has kept the loop busy since ``since``."""
        limit = _time_limit(self.context, route, request)
        work = route.finish(self.context, request, slow, frame)
        if limit is not None:
            work = count_steps(self.context, limit, work, self._now, since)
        result = await work
        if isinstance(result, Unfinished):
            return await _wait_work(self._wait(route, request, result, frame, started, self._now()))
        answer = self._respond(route, request, result, frame, started, has_waited=True)
        return await _wait_work(answer)

    def _read_client(self, frame: memoryview, route: Route) -> int:
        """Return the position of the body, and store the frame's client id in the context.

        Clients seldom change their id, so its bytes are first compared with the previous ones.
        """
        end = _HEAD.size + len(self._client)
        if frame[_HEAD.size : end] == self._client:
            if not route.is_flexible:
                return end
            if frame[end : end + 1] == _NO_TAGS:
                return end + 1
        head, body = read_header(frame)
        self._client = _NO_CLIENT
        if head.client_id is not None:
            name = head.client_id.encode()
            self._client = len(name).to_bytes(2, "big") + name
        client_id = head.client_id or ""
        if client_id != self.context.client_id:
            self.context = attrs.evolve(self.context, client_id=client_id)
        return body

    async def _finish(
        self,
        route: Route,
        request: Body,
        unfinished: Unfinished[Body],
        frame: memoryview,
        started: float,
        throttle_ms: int,
        made_s: float,
    ) -> list[Part]:
        response = await route.finish(self.context, request, unfinished, frame)
        answer = self._respond(route, request, response, frame, started, throttle_ms, made_s)
        assert answer is not None, "a request that is waited for has a response"
        return await answer.finish() if isinstance(answer, Slow) else answer

    def _respond(
        self,
        route: Route,
        request: Body,
        response: Body | None,
        frame: memoryview,
        started: float,
        throttle_ms: int = 0,
        made_s: float | None = None,
        has_waited: bool = False,
    ) -> Slow[list[Part]] | list[Part] | None:
        """Return the parts of a handler's response; a large one is encoded in slices.

        ``throttle_ms``: the throttle time, if it is known already. ``made_s``: the seconds of work,
        None if it did not wait. ``has_waited``: the quota on request time has counted it already.
        """
        work_s = elapsed_s = self._now() - started
        route.count.value += 1
        route.seconds.observe(elapsed_s)
        if made_s is not None:
            work_s = made_s
        else:
            if route.is_produce:
                throttle_ms = self._mute(_throttle_produced(self.context, frame))
            busy_s = 0.0 if has_waited else elapsed_s
            throttle_ms = max(throttle_ms, self._count_time(route, request, busy_s))
        if response is None:
            return None
        _, _, correlation_id = _HEAD.unpack_from(frame)
        shared = None
        if isinstance(response, SharedResponse):
            parts = response.parts(route.head, route.version, correlation_id)
            if parts is not None:
                return parts
            shared, response = response, response.build()
        if isinstance(response, tuple):
            return route.encode_values(correlation_id, response, throttle_ms)
        try:
            if wait_ms := getattr(response, "throttle_time_ms", 0):
                self._mute(wait_ms)
            if throttle_ms > wait_ms and hasattr(response, "throttle_time_ms"):
                response.throttle_time_ms = throttle_ms
            if route.narrow is not None:
                response = route.narrow(response, route.version, request)
            if work_s >= QUICK_ANSWER_S and has_more_elements(response, LARGE_COUNT):
                return Slow(partial(_encode_large, route, frame, response, shared))
            parts = encode_response(route.encode, route.head, correlation_id, response)
            return parts if shared is None else shared.keep(parts, route.head, route.version)
        except BaseException:
            route.handler.discard(response)
            raise

    def only_reads(self, frame: memoryview) -> bool:
        """Return whether a request changes nothing, so that a lost connection may cancel it."""
        return len(frame) >= _HEAD.size and _HEAD.unpack_from(frame)[0] in _LONG_POLLS

    def on_closed(self) -> None:
        """End everything that belongs to the connection, which is closed."""
        self.context.connection.close()

    def may_begin_early(self, frame: memoryview) -> bool:
        """Return whether a request may start while responses to earlier requests are pending."""
        return len(frame) >= _HEAD.size and _HEAD.unpack_from(frame)[0] == _PRODUCE

    def _count_time(self, route: Route, request: Body, busy_s: float) -> int:
        """Count the time that a request kept the loop busy; return the throttle time, if any."""
        limit = _time_limit(self.context, route, request)
        return 0 if limit is None else self._mute(throttle_after(self.context, limit, busy_s))

    def _mute(self, wait_ms: int) -> int:
        """Mute the connection for the throttle time, because old clients would not wait."""
        if wait_ms > 0:
            self.muted_s = max(self.muted_s, wait_ms / 1000)
        return wait_ms


async def _decode_large(frame: memoryview, body: int) -> Body:
    """Return the request in a frame, decoded in slices."""
    key, version, _ = _HEAD.unpack_from(frame)
    decode = decoder_in_steps(BY_KEY[key].request, version)
    request, _ = await run_in_slices(decode(frame, body))
    return request


async def _encode_large(
    route: Route, frame: memoryview, response: Body, shared: SharedResponse | None
) -> list[Part]:
    """Return the parts of a response, encoded in slices."""
    try:
        key, version, correlation_id = _HEAD.unpack_from(frame)
        steps = response_parts_in_steps(key, version, correlation_id, response)
        parts = await run_in_slices(steps)
        if shared is None or sum(map(len, parts)) > BYTES_MAX:
            return parts
        return shared.keep(parts, route.head, version)
    except BaseException:
        route.handler.discard(response)
        raise


def _throttle_produced(context: Context, frame: memoryview) -> int:
    """Count the bytes of a Produce request; return the throttle time of its client, if any.

    The connection is muted at once, because producers send more requests before they get the
    response.
    """
    limit = context.byte_limit(PRODUCED)
    if limit is None:
        return 0
    now = context.clock.now()
    limit.record(len(frame), now)
    return context.count_throttle(PRODUCED, limit.excess_ms(now))


def _time_limit(context: Context, route: Route, request: Body) -> RateLimit | None:
    """Return the quota on the request time of a client; None for requests of nodes."""
    if not context.image.quotas or context.listener_type is not ListenerType.BROKER:
        return None
    if route.is_exempt or (route.is_fetch and _is_of_a_follower(request)):
        return None
    return context.byte_limit(REQUEST_TIME)


def _is_of_a_follower(request: Body) -> bool:
    """Return whether a Fetch comes from a replica.

    While there are quotas, a Fetch in the usual shape, which is None, never comes from a replica.
    """
    return request is not None and max(request.replica_id, request.replica_state.replica_id) >= 0


async def _wait_work(answer: Answer) -> Finished:
    """Return a response once its request has done its work."""
    if isinstance(answer, Slow) and not isinstance(answer, Unfinished):
        return await answer.finish()
    return answer


def _disconnect(frame: memoryview, error: MalformedError) -> Disconnect:
    key, version, _ = _HEAD.unpack_from(frame)
    return Disconnect(f"malformed {BY_KEY[key].name} v{version}: {error}")


_THROTTLED_SINCE: Final = {19: 2, 20: 1, 37: 0}
"""By API key, the first version whose response starts with the throttle time. These APIs count
towards controller_mutation_rate: CreateTopics, DeleteTopics, CreatePartitions."""


def throttle_ms_of(key: int, version: int, parts: list[Part]) -> int:
    """Return the throttle time in a response from a controller on another node, or 0."""
    if version < _THROTTLED_SINCE.get(key, version + 1):
        return 0
    return leading_int32(key, version, memoryview(parts[0])[4:])


def _refuse_version(correlation_id: int) -> list[Part]:
    """Return the response to an unknown version of ApiVersions, in version 0.

    It lists only the versions of ApiVersions.
    """
    from kwire.handlers.shared.advertised import refuse_version

    return response_parts(_API_VERSIONS.key, 0, correlation_id, refuse_version())
