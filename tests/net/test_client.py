"""The connection to another node."""

import os
import socket
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from functools import partial

import attrs
import pytest
import trio
import trio.testing

from kwire.codec.compile import decoder
from kwire.codec.frame import read_header, response_parts
from kwire.codec.messages.api_versions import ApiVersionsResponse
from kwire.codec.messages.heartbeat import HeartbeatRequest, HeartbeatResponse
from kwire.errors import UnsupportedVersion
from kwire.net.client import ConnectionLost, NodeClient
from kwire.net.framing import Disconnect
from kwire.net.server import NetServer
from kwire.waits import Slow

SUPPORTED = [
    ApiVersionsResponse.ApiVersion(api_key=12, min_version=0, max_version=3),
    ApiVersionsResponse.ApiVersion(api_key=18, min_version=0, max_version=4),
]


@attrs.define
class Other:
    """A node that answers Heartbeat with the generation as error code."""

    muted_s: float = 0.0
    versions: list[int] = attrs.field(factory=list)
    """The versions of the Heartbeat requests that arrived."""
    gate: trio.Event = attrs.field(factory=trio.Event)

    def identify(self, user: str) -> None:
        """Do nothing, because no client shows a certificate."""

    def only_reads(self, frame: memoryview) -> bool:
        return True

    def may_begin_early(self, frame: memoryview) -> bool:
        return False

    def on_closed(self) -> None: ...

    def answer_now(self, frame: memoryview) -> Slow[list[bytes]]:
        return Slow(partial(self._answer, frame))

    async def _answer(self, frame: memoryview) -> list[bytes]:
        head, position = read_header(frame)
        if head.api_key == 18:
            return response_parts(
                18, head.api_version, head.correlation_id, ApiVersionsResponse(api_keys=SUPPORTED)
            )
        request, _ = decoder(HeartbeatRequest, head.api_version)(frame, position)
        self.versions.append(head.api_version)
        if request.group_id == "wait":
            await self.gate.wait()
        if request.group_id == "stop":
            raise Disconnect("stop")
        response = HeartbeatResponse(error_code=request.generation_id)
        return response_parts(12, head.api_version, head.correlation_id, response)


def heartbeat(group: str, generation: int) -> HeartbeatRequest:
    return HeartbeatRequest(group_id=group, generation_id=generation, member_id="m")


@asynccontextmanager
async def connect() -> AsyncIterator[tuple[NodeClient, Other]]:
    other = Other()
    async with trio.open_nursery() as nursery:
        service = NetServer()
        await nursery.start(service.run)
        port = service.bind("A", "127.0.0.1", 0).port
        service.accept("A", lambda *_: other)
        client = NodeClient("127.0.0.1", port, "node-1")

        async def run(task_status: trio.TaskStatus[None]) -> None:
            with suppress(ConnectionLost):
                await client.run(task_status)

        await nursery.start(run)
        yield client, other
        nursery.cancel_scope.cancel()


async def test_call_uses_highest_version_of_both_nodes() -> None:
    async with connect() as (client, other):
        assert (await client.call(heartbeat("g", 7))).error_code == 7
        assert other.versions == [3]


async def test_call_fails_if_the_other_node_has_no_common_version() -> None:
    async with connect() as (client, _):
        client.versions[12] = (5, 6)
        with pytest.raises(UnsupportedVersion):
            await client.call(heartbeat("g", 7))
        del client.versions[12]
        with pytest.raises(UnsupportedVersion):
            await client.call(heartbeat("g", 7))


async def test_call_fails_if_the_other_nodes_version_cannot_carry_the_request() -> None:
    """Heartbeat before version 3 has no static member: the call fails, the connection does not."""
    async with connect() as (client, other):
        client.versions[12] = (0, 2)
        request = heartbeat("g", 7)
        request.group_instance_id = "static"
        with pytest.raises(UnsupportedVersion):
            await client.call(request)
        assert (await client.call(heartbeat("g", 8))).error_code == 8
        assert other.versions == [2]


async def test_pipelined_calls_get_their_own_responses() -> None:
    async with connect() as (client, _):
        answers: dict[int, int] = {}

        async def call(number: int) -> None:
            answers[number] = (await client.call(heartbeat("g", number))).error_code

        async with trio.open_nursery() as nursery:
            for number in range(50):
                nursery.start_soon(call, number)
        assert answers == {number: number for number in range(50)}


async def test_requests_that_the_socket_does_not_take_at_once_arrive_whole_and_in_order() -> None:
    async with connect() as (client, _):

        async def call(number: int) -> None:
            for generation in range(number, number + 5):
                answer = await client.call(heartbeat("g" * 32_000, generation))
                assert answer.error_code == generation

        async with trio.open_nursery() as nursery:
            for number in range(200):
                nursery.start_soon(call, 10 * number)


async def test_call_waits_for_a_request_that_is_half_sent_although_the_socket_has_room_again() -> (
    None
):
    count = 1000
    with trio.socket.socket() as listener:
        await listener.bind(("127.0.0.1", 0))
        listener.listen()
        client = NodeClient("127.0.0.1", listener.getsockname()[1], "node-1")
        async with trio.open_nursery() as nursery:
            nursery.start_soon(nursery.start, client.run)
            peer, _ = await listener.accept()
            with peer:
                request_bytes = await peer.recv(1 << 16)
                for part in await Other()._answer(memoryview(request_bytes)[4:]):
                    await peer.send(part)
                await trio.testing.wait_all_tasks_blocked()
                for number in range(count):
                    client.begin(heartbeat("g" * 32_000, number))
                await trio.testing.wait_all_tasks_blocked()
                received = bytearray()
                with suppress(BlockingIOError):
                    while True:
                        received += os.read(peer.fileno(), 1 << 20)
                assert len(received) < count * 32_000, "the socket took everything at once"
                client.begin(heartbeat("last", count))
                generations, start = list[int](), 0
                while len(generations) <= count:
                    received += await peer.recv(1 << 20)
                    while start + 4 <= len(received):
                        end = start + 4 + int.from_bytes(received[start : start + 4], "big")
                        if end > len(received):
                            break
                        frame, start = memoryview(bytes(received[start + 4 : end])), end
                        _, position = read_header(frame)
                        request, _ = decoder(HeartbeatRequest, 3)(frame, position)
                        generations.append(request.generation_id)
            nursery.cancel_scope.cancel()
    assert generations == list(range(count + 1))


async def test_cancelled_call_does_not_disturb_later_ones() -> None:
    async with connect() as (client, other):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(client.call, heartbeat("wait", 1))
            await trio.testing.wait_all_tasks_blocked()
            nursery.cancel_scope.cancel()
        other.gate.set()
        assert (await client.call(heartbeat("g", 2))).error_code == 2


async def test_calls_fail_when_the_connection_ends() -> None:
    async with connect() as (client, _):
        with pytest.raises(ConnectionLost):
            await client.call(heartbeat("stop", 1))
        assert client.lost
        with pytest.raises(ConnectionLost):
            await client.call(heartbeat("g", 1))


async def test_run_raises_connection_lost_if_no_process_listens() -> None:
    listener = await trio.open_tcp_listeners(0, host="127.0.0.1")
    port = listener[0].socket.getsockname()[1]
    await listener[0].aclose()
    with pytest.raises(ConnectionLost):
        await NodeClient("127.0.0.1", port, "node-1").run()


@pytest.mark.skipif(sys.platform != "linux", reason="no such option")
async def test_connection_without_acknowledgements_ends_within_seconds() -> None:
    """The kernel ends it; else it would send again 25 seconds after the link was cut."""
    listening = socket.create_server(("127.0.0.1", 0))
    with (
        listening,
        await NodeClient("127.0.0.1", listening.getsockname()[1], "c")._connect_plain() as own,
    ):
        limit_ms = own.getsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT)
    assert limit_ms == 5000
