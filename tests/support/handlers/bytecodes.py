"""Counts the bytecodes that a node executes for a request which arrives over a real socket.

Unlike a time, the count is the same in every run, on every machine, however busy it is. Only the
code of kwire and the code that it generates are counted: not the client's, trio's or the standard
library's.
"""

import statistics
import sys
from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from types import FrameType
from typing import Any, Final

import attrs
import trio.testing

import kwire
from kwire.codec.apis import ListenerType
from kwire.codec.frame import read_response, request_frame
from kwire.handlers.dispatch import Dispatcher
from kwire.handlers.shared.context import Services
from kwire.testing.wire import TrioWireClient, key_of
from tests.support.handlers.broker import Wall
from tests.support.net.node import running

KWIRE: Final = str(Path(kwire.__file__).parent)
COUNTED: Final = (KWIRE, "<kwire ", "<attrs generated methods kwire.", "<string>")
"""The files of kwire, its generated code, and the constructors of its named tuples."""
NOT_SERVING: Final = tuple(
    f"{KWIRE}/{name}" for name in ("testing/", "simulation/", "_fallbacks.py")
)
"""The client, the disk in memory, and the walk over records, which usually runs in C."""
REQUESTS: Final = 21

Make = Callable[[int], Any]
"""Returns the request with a number, from 0 onwards."""


class Stopped(Wall):
    """A clock by which no answer takes long, so that none of them is made in slices."""

    def now(self) -> float:
        return 0.0


class Tracer:
    """Counts the bytecodes of each function of kwire while it is traced."""

    def __init__(self) -> None:
        self.functions: Counter[str] = Counter()

    @property
    def count(self) -> int:
        return self.functions.total()

    def share(self, count: int) -> None:
        """Keep the share of one of ``count`` requests that were counted together."""
        self.functions = Counter({name: n // count for name, n in self.functions.items()})

    @contextmanager
    def counting(self) -> Iterator[None]:
        before = sys.gettrace()
        sys.settrace(self._trace)
        try:
            yield
        finally:
            sys.settrace(before)

    def _trace(self, frame: FrameType, event: str, argument: object) -> Callable[..., Any] | None:
        name = frame.f_code.co_filename
        if not name.startswith(COUNTED) or name.startswith(NOT_SERVING):
            return None
        frame.f_trace_opcodes, frame.f_trace_lines = True, False
        function = f"{name.removeprefix(KWIRE)}:{frame.f_code.co_qualname}"
        functions = self.functions

        def on_event(frame: FrameType, event: str, argument: object) -> Callable[..., Any]:
            if event == "opcode":
                functions[function] += 1
            return on_event

        return on_event


def median(counts: list[Tracer]) -> Tracer:
    """Return the usual count: a few requests also write an index entry or enlarge a list."""
    usual = statistics.median_low(tracer.count for tracer in counts)
    return next(tracer for tracer in counts if tracer.count == usual)


def frame_of(request: Any, version: int) -> bytes:
    """Return the bytes of a request, made outside the count."""
    return request_frame(key_of(request), version, 1, "client", request)


def response_of(request: Any, version: int, frame: bytes) -> Any:
    """Return the response in a frame, decoded outside the count."""
    return read_response(key_of(request), version, memoryview(frame))[1]


async def ask(client: TrioWireClient, request: Any, version: int) -> tuple[Any, Tracer]:
    """Return the response, and what the node has executed for it."""
    frame, tracer = frame_of(request, version), Tracer()
    with tracer.counting():
        await client.send_bytes(frame)
        answer = await client.read_frame()
        await trio.testing.wait_all_tasks_blocked()
    return response_of(request, version, answer), tracer


async def cost(client: TrioWireClient, make: Make, version: int) -> tuple[Any, Tracer]:
    """Return the last response to a repeated request, and the usual count."""
    answers = [await ask(client, make(number), version) for number in range(REQUESTS)]
    return answers[-1][0], median([tracer for _, tracer in answers])


@asynccontextmanager
async def serve(services: Services) -> AsyncIterator[TrioWireClient]:
    """Serve requests over a loopback socket; yield a connection to it."""
    dispatcher = Dispatcher(attrs.evolve(services, clock=Stopped()), ListenerType.BROKER)
    async with running() as node:
        service = node.service
        node.port = service.bind("PLAINTEXT", "127.0.0.1", 0).port
        service.accept("PLAINTEXT", dispatcher.for_connection)
        async with await node.connect() as client:
            yield client
