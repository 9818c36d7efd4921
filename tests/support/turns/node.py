"""A whole node for metered operations; requests reach its dispatcher as frames."""

import tempfile
from collections.abc import AsyncIterator, Iterable, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from random import Random
from typing import Any, Final

import attrs
import trio

from kwire.codec.apis import BY_KEY, ListenerType
from kwire.codec.compile import Part
from kwire.codec.frame import read_response, request_frame
from kwire.codec.messages.create_topics import CreateTopicsRequest
from kwire.codec.schema import spec_of
from kwire.handlers.dispatch import ConnectionRequests, Dispatcher
from kwire.handlers.shared.context import BrokerServices
from kwire.node.environment import this_computer
from kwire.node.server import Server, make_node
from simulation.raft.quorums import TestClock
from simulation.replication.links import join_parts
from tests.support.server.nodes import config, parts_of
from tests.support.turns.meter import TurnMeter

SIZE_BYTES: Final = 4
IN_MEMORY: Final = "/dev/shm" if Path("/dev/shm").is_dir() else None
"""The place of the node's files: no disk's speed decides about the path of a write."""


def _api_of(request: Any, version: int | None) -> tuple[int, int]:
    """Return the API key of a request, and the newest version unless another is given."""
    key = spec_of(type(request)).api_key
    assert key is not None
    return key, BY_KEY[key].stable if version is None else version


def _frame(key: int, version: int, request: Any) -> memoryview:
    return memoryview(request_frame(key, version, 0, "client", request)[SIZE_BYTES:])


def _response(key: int, version: int, parts: Sequence[Part] | None) -> Any:
    return None if parts is None else read_response(key, version, join_parts(parts)[4:])[1]


@attrs.frozen
class MeteredNode:
    """The only node of a cluster, and the meter of its process."""

    server: Server
    meter: TurnMeter
    dispatcher: Dispatcher

    @property
    def parts(self) -> BrokerServices:
        """The parts of the node's broker."""
        return parts_of(self.server)

    async def call(self, request: Any, version: int | None = None) -> Any:
        """Return the response to a request that is not measured."""
        return await self._answer(request, version, is_measured=False)

    async def measure(self, *requests: Any, version: int | None = None) -> list[Any]:
        """Measure the answering of requests, one after the other, from frame to frame."""
        return [await self._answer(request, version, is_measured=True) for request in requests]

    async def measure_together(self, *groups: Sequence[Any]) -> list[list[Any]]:
        """Measure the answering of groups of requests, each request of another connection.

        A group begins a second after the one before it, whose requests may still wait.
        """
        answers: list[list[Sequence[Part] | None]] = [[None] * len(group) for group in groups]

        async def answer(number: int, position: int, frame: memoryview) -> None:
            answers[number][position] = await self._connection().answer(frame)

        apis = [_api_of(requests[0], None) for requests in groups]
        frames = [
            [_frame(*api, request) for request in requests]
            for api, requests in zip(apis, groups, strict=True)
        ]
        for api in apis:
            await self.dispatcher.prepare(*api)
        await trio.lowlevel.checkpoint()
        with self.meter.measuring():
            async with trio.open_nursery() as nursery:
                for number, together in enumerate(frames):
                    for position, frame in enumerate(together):
                        nursery.start_soon(answer, number, position, frame)
                        await trio.lowlevel.checkpoint()
                    await trio.sleep(1)
        return [
            [_response(*api, parts) for parts in together]
            for api, together in zip(apis, answers, strict=True)
        ]

    async def _answer(self, request: Any, version: int | None, *, is_measured: bool) -> Any:
        key, version = _api_of(request, version)
        frame, connection = _frame(key, version, request), self._connection()
        await self.dispatcher.prepare(key, version)  # Compiling is not part of the operation.
        await trio.lowlevel.checkpoint()
        if is_measured:
            with self.meter.measuring():
                parts = await connection.answer(frame)
        else:
            parts = await connection.answer(frame)
        return _response(key, version, parts)

    def _connection(self) -> ConnectionRequests:
        return self.dispatcher.for_connection("PLAINTEXT", "127.0.0.1")

    async def create(self, name: str, partitions: int = 1, **settings: str) -> None:
        """Create a topic and wait until its partitions are served."""
        await self.create_all([name], partitions, **settings)

    async def create_all(self, names: Iterable[str], partitions: int, **settings: str) -> None:
        """Create topics of the same shape and wait until their partitions are served.

        The wait is the longer part: whatever is periodic looks at all partitions meanwhile.
        """
        shape = CreateTopicsRequest.CreatableTopic
        configs = [
            shape.CreatableTopicConfig(name=key.replace("_", "."), value=value)
            for key, value in settings.items()
        ]
        for name in names:
            topic = shape(
                name=name, num_partitions=partitions, replication_factor=1, configs=configs
            )
            answer = await self.call(CreateTopicsRequest(topics=[topic], timeout_ms=60_000))
            assert not answer.topics[0].error_code, answer
        await trio.sleep(10)


@asynccontextmanager
async def metered_node(meter: TurnMeter, **settings: str) -> AsyncIterator[MeteredNode]:
    """Run a combined node on a real disk until the block ends."""
    with tempfile.TemporaryDirectory(dir=IN_MEMORY) as folder:
        environment = this_computer(clock=TestClock(), random=Random(1))
        server = make_node(config(Path(folder), **settings), environment)
        async with trio.open_nursery() as nursery:
            await nursery.start(server.run)
            yield MeteredNode(server, meter, Dispatcher(server.services, ListenerType.BROKER))
            nursery.cancel_scope.cancel()
