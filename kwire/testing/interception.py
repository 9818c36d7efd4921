"""The seam between a test broker's listener for clients and its node.

It records every request and makes those go wrong that the test wants. The node's own code has
nothing of it: its listeners get other objects that answer the requests of a connection.
"""

from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING

import attrs
import trio

from kwire.codec.apis import BY_KEY
from kwire.codec.frame import read_header
from kwire.codec.primitives import MalformedError
from kwire.net.framing import Disconnect, Framer
from kwire.net.limits import Limits
from kwire.net.listener import (
    Address,
    Answer,
    ConnectionRequests,
    ForConnection,
    FrameLimiter,
)
from kwire.net.send import Part
from kwire.net.waiting_answers import Unfinished
from kwire.node.environment import Listeners
from kwire.raftmeta.metadata.image import MetadataImage
from kwire.raftmeta.metadata.quota_lookup import Quotas
from kwire.testing.faults import Fault, Faults, Subjects
from kwire.testing.request_bodies import read_request, refuse, subjects_of
from kwire.testing.request_log import ReceivedRequest, RequestLog
from kwire.testing.settings import CLIENTS, SECURE_CLIENTS
from kwire.waits import Slow

if TYPE_CHECKING:
    from kwire.net.tls.server_tls import ServerTls


@attrs.frozen(eq=False, repr=False)
class Interception:
    """The record and the faults of the requests to one node."""

    node: int
    faults: Faults
    log: RequestLog
    image: Callable[[], MetadataImage]
    now_ms: Callable[[], int]

    def fault_for(self, frame: memoryview) -> Fault | None:
        """Record a request; return the fault that applies to it, if any."""
        try:
            head, body = read_header(frame)
        except MalformedError:
            return None  # The node will close the connection.
        api = BY_KEY[head.api_key]
        client_id = head.client_id or ""
        self.log.add(
            ReceivedRequest(api.name, head.api_version, client_id, self.now_ms(), self.node)
        )
        subjects: Subjects | None = None
        for fault in self.faults.faults:
            if not fault.names(api.name, client_id, self.node):
                continue
            if fault.needs_subjects:
                if subjects is None:
                    subjects = subjects_of(read_request(frame, head, body), self.image())
                if not fault.concerns(subjects):
                    continue
            if fault.take():
                return fault
        return None


@attrs.define(eq=False, repr=False)
class InterceptedRequests(FrameLimiter):
    """The requests of one connection of a client, some of which go wrong."""

    interception: Interception
    requests: ConnectionRequests
    """Answers the requests that do not go wrong."""

    def limit_frames(self, framer: Framer) -> None:
        if isinstance(self.requests, FrameLimiter):
            self.requests.limit_frames(framer)

    @property
    def muted_s(self) -> float:
        return self.requests.muted_s

    @muted_s.setter
    def muted_s(self, seconds: float) -> None:
        self.requests.muted_s = seconds

    def answer_now(self, frame: memoryview) -> Answer:
        """Answer a request, unless a fault applies to it."""
        fault = self.interception.fault_for(frame)
        if fault is None:
            return self.requests.answer_now(frame)
        if fault.error is not None:
            return refuse(frame, fault.error())
        return Slow(partial(self._fail, fault, frame))

    async def _fail(
        self, fault: Fault, frame: memoryview
    ) -> Unfinished[Sequence[Part]] | Sequence[Part] | None:
        if not fault.drops:
            await trio.sleep(fault.delay_s)
            return await self._begin(frame)
        if fault.drops == "after" and not self.only_reads(frame):
            answer = await self._begin(frame)
            if isinstance(answer, Unfinished):
                await answer.finish()
        raise Disconnect("a fault that the test has arranged")

    async def _begin(self, frame: memoryview) -> Unfinished[Sequence[Part]] | Sequence[Part] | None:
        answer = self.requests.answer_now(frame)
        if isinstance(answer, Slow) and not isinstance(answer, Unfinished):
            return await answer.finish()
        return answer

    def identify(self, user: str) -> None:
        self.requests.identify(user)

    def only_reads(self, frame: memoryview) -> bool:
        return self.requests.only_reads(frame)

    def may_begin_early(self, frame: memoryview) -> bool:
        return self.requests.may_begin_early(frame)


@attrs.define(eq=False, repr=False)
class InterceptingListeners:
    """The listeners of a node, of which that for clients is intercepted."""

    interception: Interception
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
        if name not in (CLIENTS, SECURE_CLIENTS):
            self.listeners.accept(name, for_connection)
            return
        self.listeners.accept(
            name,
            lambda listener, host: InterceptedRequests(
                self.interception, for_connection(listener, host)
            ),
        )

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
