"""The seam between a test broker's listener for clients and its node.

It records every request and applies the test's faults. The node's own code is unaware of it: its
listeners get different objects to answer a connection's requests.
"""

from collections.abc import Callable, Sequence, Set
from functools import partial
from typing import TYPE_CHECKING, Final

import attrs
import trio

from kwire.codec.apis import BY_KEY
from kwire.codec.frame import RequestHead, read_header
from kwire.codec.primitives import MalformedError
from kwire.net.framing import Disconnect, Framer
from kwire.net.limits import Limits
from kwire.net.listener import (
    Address,
    Answer,
    ConnectionRequests,
    ForConnection,
    LoginRequired,
    finish_answer,
)
from kwire.net.pending_logins import Guests
from kwire.net.send import Part
from kwire.node.environment import Listeners
from kwire.raftmeta.metadata.quota_lookup import Quotas
from kwire.testing.alterations import Alteration, alter
from kwire.testing.faults import Faults, Subjects
from kwire.testing.fetch_sessions import FetchedPartitions
from kwire.testing.releases import Release
from kwire.testing.request_bodies import TopicName, read_request, subjects_of
from kwire.testing.request_log import ReceivedRequest, RequestLog
from kwire.waits import Signal, Slow

if TYPE_CHECKING:
    from kwire.net.tls.server_tls import ServerTls

_SIZE_BYTES: Final = 4


@attrs.define(eq=False, repr=False)
class Pause:
    """A pause during which clients' requests wait, as if the broker hung."""

    is_on: bool = False
    _end: Signal = attrs.field(factory=Signal)

    def end(self) -> None:
        self.is_on = False
        self._end.notify()

    async def wait_end(self) -> None:
        while self.is_on:
            await self._end.wait()


@attrs.frozen(eq=False, repr=False)
class Interception:
    """The record of the requests to one node, and their faults."""

    node: int
    faults: Faults
    log: RequestLog
    topic_name: TopicName
    now_ms: Callable[[], int]
    pause: Pause
    release: Release | None = None
    """The older release that clients see; None for the newest."""

    def needs_body(self, head: RequestHead) -> bool:
        """Return whether :meth:`begin` needs the whole frame of a request, not just its header."""
        api = BY_KEY[head.api_key].name
        return api == "Fetch" or any(f.api == api and not f.is_used_up for f in self.faults.faults)

    def begin(self, frame: memoryview, fetched: FetchedPartitions) -> Alteration | None:
        """Record a request; return how a fault or the release changes it, if at all.

        Raises Disconnect for a request that the release does not have.
        """
        try:
            head, body = read_header(frame)
        except MalformedError:
            return None  # The node will close the connection.
        api = BY_KEY[head.api_key]
        client_id = head.client_id or ""
        self.log.add(
            ReceivedRequest(api.name, head.api_version, client_id, self.now_ms(), self.node)
        )
        if self.release is not None:
            self.release.check(head)
        if api.name == "Fetch":
            fetched.follow(read_request(frame, head, body))

        def subjects() -> Subjects:
            if api.name == "Fetch":
                return fetched.subjects(self.topic_name)
            return subjects_of(read_request(frame, head, body), self.topic_name)

        fault = self.faults.choose(api.name, client_id, self.node, subjects)
        course = None if fault is None else alter(fault, frame, fetched, self.topic_name)
        return course if self.release is None else self.release.alter(head, frame, course)


@attrs.define(eq=False, repr=False)
class InterceptedRequests:
    """The requests of a client's connection, to some of which a fault applies."""

    interception: Interception
    requests: ConnectionRequests
    """Answers the requests to which no fault applies."""
    _fetched: FetchedPartitions = attrs.field(factory=FetchedPartitions)

    @property
    def muted_s(self) -> float:
        return self.requests.muted_s

    @muted_s.setter
    def muted_s(self, seconds: float) -> None:
        self.requests.muted_s = seconds

    def answer_now(self, frame: memoryview) -> Answer:
        """Answer a request, unless a fault applies to it or the node is paused."""
        if self.interception.pause.is_on:
            return Slow(partial(self._wait_resumed, frame))
        return self._begin(frame)

    def _begin(self, frame: memoryview) -> Answer:
        alteration = self.interception.begin(frame, self._fetched)
        if alteration is None:
            return self.requests.answer_now(frame)
        return Slow(partial(self._carry_out, alteration))

    async def _wait_resumed(self, frame: memoryview) -> Sequence[Part] | None:
        await self.interception.pause.wait_end()
        return await finish_answer(self._begin(frame))

    async def _carry_out(self, alteration: Alteration) -> Sequence[Part] | None:
        await trio.sleep(alteration.delay_s)
        answer: memoryview | None = None
        for frame in alteration.frames:
            parts = await finish_answer(self.requests.answer_now(frame))
            answer = None if parts is None else memoryview(_join(parts))[_SIZE_BYTES:]
        data, closes = alteration.end(answer)
        self.requests.muted_s = max(self.requests.muted_s, alteration.muted_s)
        if closes:
            raise Disconnect("a fault that the test injected", [data] if data else [])
        return None if data is None else [data]

    def identify(self, user: str) -> None:
        self.requests.identify(user)

    def only_reads(self, frame: memoryview) -> bool:
        return self.requests.only_reads(frame)

    def may_begin_early(self, frame: memoryview) -> bool:
        return self.requests.may_begin_early(frame)

    def on_closed(self) -> None:
        self.requests.on_closed()


class InterceptedLogin(InterceptedRequests, LoginRequired):
    """The intercepted requests of a client that must log in first."""

    def limit(self, framer: Framer, guests: Guests) -> None:
        assert isinstance(self.requests, LoginRequired)
        self.requests.limit(framer, guests)


def _join(parts: Sequence[Part]) -> bytes:
    """Return a response as bytes; only responses that a fault changes are read into memory."""
    pieces = []
    for part in parts:
        if isinstance(part, bytes | bytearray | memoryview):
            pieces.append(bytes(part))
        else:
            pieces.append(part.file.read(part.position, len(part)) if len(part) else b"")
            part.close()
    return b"".join(pieces)


@attrs.define(eq=False, repr=False)
class InterceptingListeners:
    """The listeners of a node; those for clients are intercepted."""

    interception: Interception
    for_clients: Set[str]
    """The names of the listeners that are intercepted."""
    listeners: Listeners

    def bind(
        self,
        name: str,
        host: str,
        port: int,
        *,
        protected: bool = False,
        tls: "ServerTls | None" = None,
    ) -> Address:
        return self.listeners.bind(name, host, port, protected=protected, tls=tls)

    def address(self, name: str) -> Address:
        return self.listeners.address(name)

    def accept(self, name: str, for_connection: ForConnection) -> None:
        if name not in self.for_clients:
            self.listeners.accept(name, for_connection)
            return

        def intercept(listener: str, host: str, port: int) -> ConnectionRequests:
            requests = for_connection(listener, host, port)
            if isinstance(requests, LoginRequired):
                return InterceptedLogin(self.interception, requests)
            return InterceptedRequests(self.interception, requests)

        self.listeners.accept(name, intercept)

    def relimit(self, limits: Limits) -> None:
        self.listeners.relimit(limits)

    def limit_addresses(self, quotas: Quotas) -> None:
        self.listeners.limit_addresses(quotas)

    async def run(self, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        await self.listeners.run(task_status)

    def stop_accepting(self) -> None:
        self.listeners.stop_accepting()

    def close(self) -> None:
        self.listeners.close()
