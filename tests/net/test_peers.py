"""Connections to other nodes: kept, given up, left alone for a while."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from random import Random

import attrs
import pytest
import trio
import trio.testing

from kwire.clock import SystemClock
from kwire.codec.frame import read_header, response_parts
from kwire.codec.messages.api_versions import ApiVersionsResponse
from kwire.codec.messages.heartbeat import HeartbeatRequest, HeartbeatResponse
from kwire.net.connection_pool import ConnectionPool, Network, NobodyListens, OutOfReach
from kwire.net.framing import Disconnect
from kwire.net.service import NetService

TOLD = [
    ApiVersionsResponse.ApiVersion(api_key=12, min_version=0, max_version=3),
    ApiVersionsResponse.ApiVersion(api_key=18, min_version=0, max_version=4),
]


@attrs.define
class Other:
    """A node that answers a heartbeat, or not, as the group decides."""

    service: NetService = attrs.field(factory=NetService)
    made: int = 0

    def only_reads(self, frame: memoryview) -> bool:
        return True

    async def answer(self, frame: memoryview) -> list[bytes]:
        head, position = read_header(frame)
        if head.api_key == 18:
            self.made += 1
            told = ApiVersionsResponse(api_keys=TOLD)
            return response_parts(18, head.api_version, head.correlation_id, told)
        from kwire.codec.compile import decoder

        request, _ = decoder(HeartbeatRequest, head.api_version)(frame, position)
        if request.group_id == "silent":
            await trio.sleep_forever()
        if request.group_id == "close":
            raise Disconnect("as asked")
        answer = HeartbeatResponse(error_code=request.generation_id)
        return response_parts(12, head.api_version, head.correlation_id, answer)

    muted_s: float = 0.0

    @property
    def port(self) -> int:
        return self.service.listeners["L"].address.port


def asked(group: str, generation: int = 7) -> HeartbeatRequest:
    return HeartbeatRequest(group_id=group, generation_id=generation, member_id="m")


@asynccontextmanager
async def network() -> AsyncIterator[tuple[ConnectionPool, Other]]:
    other = Other()
    node = Network(SystemClock(), Random(1))
    links = ConnectionPool(node, "raft-client-1")
    async with trio.open_nursery() as nursery:
        await nursery.start(other.service.run)
        other.service.bind("L", "127.0.0.1", 0, lambda name, host: other)
        other.service.accept("L")
        await nursery.start(node.run)
        yield links, other
        nursery.cancel_scope.cancel()


async def test_calls_share_a_connection() -> None:
    async with network() as (links, other):
        answers: list[int] = []

        async def call(generation: int) -> None:
            response = await links.call("127.0.0.1", other.port, asked("g", generation))
            answers.append(response.error_code)

        async with trio.open_nursery() as nursery:
            for generation in (1, 2, 3):
                nursery.start_soon(call, generation)
        assert sorted(answers) == [1, 2, 3]
        assert other.made == 1


async def test_what_is_not_answered_takes_its_connection_along() -> None:
    async with network() as (links, other):
        links.timeout_s = 0.02
        with pytest.raises(OutOfReach, match="no answer"):
            await links.call("127.0.0.1", other.port, asked("silent"))
        links.timeout_s = 5.0
        response = await links.call("127.0.0.1", other.port, asked("g"))
        assert response.error_code == 7
        assert other.made == 2


async def test_a_connection_that_ends_is_made_again() -> None:
    async with network() as (links, other):
        with pytest.raises(OutOfReach):
            await links.call("127.0.0.1", other.port, asked("close"))
        response = await links.call("127.0.0.1", other.port, asked("g"))
        assert response.error_code == 7


async def test_a_process_that_is_gone_is_told_from_a_connection_that_ended() -> None:
    async with network() as (links, other):
        with pytest.raises(OutOfReach) as ended:
            await links.call("127.0.0.1", other.port, asked("close"))
        assert not isinstance(ended.value, NobodyListens)
        port = other.port
        other.service.stop_accepting()
        with pytest.raises(NobodyListens):
            await links.call("127.0.0.1", port, asked("close"))


async def test_a_node_out_of_reach_is_left_alone_for_a_while() -> None:
    async with network() as (links, other):
        port = other.port
        other.service.stop_accepting()
        with pytest.raises(NobodyListens, match="127"):
            await links.call("127.0.0.1", port, asked("g"))
        links.backoff_s = 60.0
        await trio.sleep(0.03)
        with pytest.raises(OutOfReach):
            await links.call("127.0.0.1", port, asked("g"))
        with pytest.raises(OutOfReach, match="left alone"):
            await links.call("127.0.0.1", port, asked("g"))
