"""One connection of a client, passed on to a broker of the target.

Rules: requests and responses are passed on as bytes, except those that a fault changes and those
that name brokers. Each direction has one task and holds at most one frame, so a slow reader slows
down the other side. Responses keep their order: instead of a request that a fault holds back, the
broker gets an ApiVersions request with the same correlation id, and its response is replaced.
During a login no broker accepts ApiVersions, but a login has only one request at a time, so the
response is sent from here.
"""

import logging
from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import Final

import attrs
import trio
from trio.abc import Stream

from kwire.codec.apis import BY_NAME
from kwire.codec.frame import RequestHead, read_header, request_frame
from kwire.codec.messages.api_versions import ApiVersionsRequest
from kwire.codec.primitives import MalformedError
from kwire.net.framing import Disconnect
from kwire.testing.alterations import Alteration
from kwire.testing.fetch_sessions import FetchedPartitions
from kwire.testing.interception import Interception
from kwire.testing.proxy.frames import SIZE, FrameReader
from kwire.testing.proxy.rewriting import API_VERSIONS, expects_answer, is_rewritten

logger = logging.getLogger(__name__)

WHOLE_BYTES_MAX: Final = 64 << 10
"""The size up to which a request is read whole even if no fault needs its body."""
_LOGIN: Final = (BY_NAME["SaslHandshake"].key, BY_NAME["SaslAuthenticate"].key)
_HEAD_BYTES_MAX: Final = 36 << 10
"""An upper bound of the header of a request with the longest client id."""
Rewrite = Callable[[RequestHead, memoryview], Awaitable[bytes]]
"""Returns a response with the proxy's addresses, starting with its size."""


@attrs.frozen(eq=False, repr=False)
class _Expected:
    """A response that must not be passed on unchanged."""

    head: RequestHead
    alteration: Alteration | None
    skip: bool = False
    """True for the first of the two responses to a request that is sent twice."""


@attrs.define(eq=False, repr=False)
class Relay:
    """The two directions of one connection."""

    client: Stream
    target: Stream
    interception: Interception
    rewrite: Rewrite
    _expected: dict[int, list[_Expected]] = attrs.field(factory=dict)
    """The responses that must not simply be passed on, by correlation id, oldest first."""
    _fetched: FetchedPartitions = attrs.field(factory=FetchedPartitions)
    _muted_until: float = 0.0
    """The time until which nothing is read from the client."""

    async def run(self) -> None:
        """Pass requests and responses on until either side ends the connection."""
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._pass_responses, nursery.cancel_scope)
            try:
                await self._pass_requests()
            except (Disconnect, MalformedError, trio.BrokenResourceError) as reason:
                logger.debug("connection ends reason=%s", reason)
                nursery.cancel_scope.cancel()
            else:
                await self._end_requests()

    async def _end_requests(self) -> None:
        """Tell the broker that no more requests follow; it may still answer earlier ones."""
        if isinstance(self.target, trio.SocketStream):
            with suppress(trio.BrokenResourceError):
                await self.target.send_eof()

    # Requests -------------------------------------------------------------------------------
    async def _pass_requests(self) -> None:
        reader = FrameReader(self.client)
        while (size := await reader.begin()) is not None:
            await self.interception.pause.wait_end()
            await trio.sleep_until(self._muted_until)
            start = memoryview(await reader.peek(min(size, _HEAD_BYTES_MAX)))
            try:
                head, _ = read_header(start)
            except MalformedError:  # An API that the codec does not have, or bytes of a login.
                await reader.pass_on(size, self.target)
                continue
            if size > WHOLE_BYTES_MAX and not self.interception.needs_body(head):
                self.interception.begin(start, self._fetched)
                self._expect(head, start, None)
                await reader.pass_on(size, self.target)
                continue
            frame = await reader.read(size)
            alteration = self.interception.begin(frame, self._fetched)
            if alteration is None:
                self._expect(head, frame, None)
                await self._send(frame)
            else:
                await self._carry_out(head, alteration)

    def _expect(
        self,
        head: RequestHead,
        frame: memoryview,
        alteration: Alteration | None,
        *,
        skip: bool = False,
    ) -> None:
        """Remember how to treat the response to a request that is about to be sent."""
        if (alteration is not None or skip or is_rewritten(head)) and expects_answer(frame):
            expected = _Expected(head, alteration, skip)
            self._expected.setdefault(head.correlation_id, []).append(expected)

    async def _carry_out(self, head: RequestHead, alteration: Alteration) -> None:
        await trio.sleep(alteration.delay_s)
        if not alteration.frames and head.api_key in _LOGIN:
            await self._end(alteration, None)
            return
        frames = alteration.frames or (_placeholder(head),)
        *repeated, last = frames
        for frame in repeated:
            self._expect(head, frame, None, skip=True)
            await self._send(frame)
        self._expect(head, last, alteration)
        await self._send(last)
        if not expects_answer(last):
            await self._end(alteration, None)

    async def _send(self, frame: memoryview) -> None:
        await self.target.send_all(SIZE.pack(len(frame)) + bytes(frame))

    # Responses ------------------------------------------------------------------------------
    async def _pass_responses(self, scope: trio.CancelScope) -> None:
        reader = FrameReader(self.target)
        try:
            while (size := await reader.begin()) is not None:
                if size < SIZE.size:  # The end of a login with bare tokens is an empty frame.
                    await reader.pass_on(size, self.client)
                    continue
                (correlation_id,) = SIZE.unpack(await reader.peek(SIZE.size))
                expected = self._take(correlation_id)
                if expected is None:
                    await reader.pass_on(size, self.client)
                else:
                    await self._answer(expected, await reader.read(size))
        except (Disconnect, MalformedError, trio.BrokenResourceError) as reason:
            logger.debug("connection ends reason=%s", reason)
        scope.cancel()

    def _take(self, correlation_id: int) -> _Expected | None:
        waiting = self._expected.get(correlation_id)
        if waiting is None:
            return None
        if len(waiting) == 1:
            del self._expected[correlation_id]
        return waiting.pop(0)

    async def _answer(self, expected: _Expected, answer: memoryview) -> None:
        """Send a response to the client, unless it is the first of two."""
        if expected.skip:
            return
        alteration = expected.alteration
        if alteration is None:
            await self.client.send_all(await self.rewrite(expected.head, answer))
        elif not alteration.frames:
            await self._end(alteration, None)
        else:
            if is_rewritten(expected.head):
                answer = memoryview(await self.rewrite(expected.head, answer))[SIZE.size :]
            await self._end(alteration, answer)

    async def _end(self, alteration: Alteration, answer: memoryview | None) -> None:
        """Send the response as the fault left it; raise Disconnect if the connection then ends."""
        data, closes = alteration.end(answer)
        self._muted_until = trio.current_time() + alteration.muted_s
        if data is not None:
            await self.client.send_all(data)
        if closes:
            raise Disconnect("a fault that the test injected")


def _placeholder(head: RequestHead) -> memoryview:
    """Return a request that every broker answers, with another request's correlation id."""
    data = request_frame(API_VERSIONS, 0, head.correlation_id, None, ApiVersionsRequest())
    return memoryview(data)[SIZE.size :]
