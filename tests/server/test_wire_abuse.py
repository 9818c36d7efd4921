"""Every request that a node's two listeners advertise, well-formed and damaged."""

import gc
import logging
import os
import random
import resource
from pathlib import Path
from struct import pack
from typing import Annotated, Any, Final, get_args, get_origin

import attrs
import pytest
import trio

from kwire.codec.apis import BY_KEY
from kwire.codec.frame import read_response, request_frame
from kwire.codec.messages.api_versions import ApiVersionsRequest
from kwire.codec.schema import Attribute, fields
from kwire.node.server import Server
from kwire.testing.wire import Closed, TrioWireClient
from tests.support.codec.message_json import to_json
from tests.support.server.nodes import running

pytestmark = pytest.mark.slow

UNKNOWN_SERVER_ERROR: Final = -1
WITHOUT_TABLE: Final = {(0, version) for version in range(3)}
"""Produce 0 to 2: advertised for old clients, as by Apache Kafka, but the connection is closed."""
CODES_OF_ACLS: Final = {
    *("resource_type_filter", "pattern_type_filter", "resource_type", "resource_pattern_type"),
    *("operation", "permission_type"),
}
WAITING: Final = {
    "Produce",
    "Fetch",
    "JoinGroup",
    "SyncGroup",
    "FetchSnapshot",
    "ConsumerGroupHeartbeat",
}
"""Requests that may wait for as long as they say, or that with acks=0 get no answer."""
PATIENCE_S: Final = 20.0
"""The time limit for an answer of a broken node; a working one is far below it."""
ROOM_BYTES: Final = 150 << 20
TRIES: Final = int(os.environ.get("KWIRE_WIRE_TRIES", "4"))
"""Damaged requests of each version."""


def listeners(server: Server) -> dict[str, tuple[str, int]]:
    return {each.name: server.core.net.address(each.name) for each in server.config.endpoints}


async def advertised_apis(address: tuple[str, int]) -> list[tuple[int, int]]:
    """Return every key and version that the listener advertises."""
    async with await TrioWireClient.connect(*address) as client:
        answer = await client.call(ApiVersionsRequest(), 0)
    return [
        (api.api_key, version)
        for api in answer.api_keys
        for version in range(api.min_version, api.max_version + 1)
    ]


def plain(key: int, version: int) -> Any:
    """Return a request with the defaults, and one element in each array."""
    request = blank(BY_KEY[key].request, version)
    if BY_KEY[key].name == "Produce":
        request.acks = 1  # with 0 there is no answer
    for part in (request, *getattr(request, "filters", ()), *getattr(request, "creations", ())):
        for code in CODES_OF_ACLS & {field.name for field in fields(type(part))}:
            setattr(part, code, 1)  # with 0, which means unknown, there is no answer
    return request


def blank(cls: type[Any], version: int) -> Any:
    return cls(**{field.name: content(field, version) for field in fields(cls)})


def content(field: Attribute, version: int) -> Any:
    """Return the value of a field of :func:`blank`."""
    kind, wire = field.type, None
    if get_origin(kind) is Annotated:
        kind, wire = get_args(kind)
    if wire is not None and wire.name == "array":
        elements = [element for part in (kind, *get_args(kind)) for element in get_args(part)]
        structures = [element for element in elements if hasattr(element, "__declared__")]
        is_carried = version in field.spec.versions and version not in field.spec.tagged
        if structures and is_carried:
            return [blank(structures[0], version)]
    if field.default is not attrs.NOTHING:
        return field.default
    if field.factory is not None:
        return field.factory()
    if wire is not None and wire.name == "array":
        return []
    if wire is not None:
        return wire.default
    assert isinstance(kind, type)
    return blank(kind, version)


def codes(value: Any) -> set[int]:
    """Return all error codes in an answer."""
    if isinstance(value, dict):
        inner = set().union(*(codes(item) for item in value.values()), set())
        return inner | ({value["errorCode"]} if "errorCode" in value else set())
    if isinstance(value, list):
        return set().union(*(codes(item) for item in value), set())
    return set()


@pytest.mark.parametrize("listener", ["PLAINTEXT", "CONTROLLER"])
async def test_every_advertised_version_is_answered_in_its_own_shape(
    tmp_path: Path, listener: str
) -> None:
    """Invariant 97: each key and version decodes and answers."""
    async with running(tmp_path) as server:
        address = listeners(server)[listener]
        apis = await advertised_apis(address)
        assert len(apis) > 50
        for key, version in apis:
            if (key, version) in WITHOUT_TABLE:
                continue
            with trio.fail_after(PATIENCE_S):
                async with await TrioWireClient.connect(*address) as client:
                    answer = await client.call(plain(key, version), version)
            assert isinstance(answer, BY_KEY[key].response), (key, version)
            assert UNKNOWN_SERVER_ERROR not in codes(to_json(answer, version)), (key, version)


@pytest.mark.parametrize("listener", ["PLAINTEXT", "CONTROLLER"])
async def test_request_that_is_not_advertised_ends_the_connection(
    tmp_path: Path, listener: str
) -> None:
    """Invariant 97: keys of the other listener and versions before and after those served."""
    async with running(tmp_path) as server:
        address = listeners(server)[listener]
        served = set(await advertised_apis(address))
        keys = {key for key, _ in served}
        unserved = [(key, 0) for key in range(100) if key not in keys]
        for key in keys - {18}:  # too new a version of ApiVersions is answered
            versions = [version for served_key, version in served if served_key == key]
            unserved += [(key, min(versions) - 1), (key, max(versions) + 1)]
        for key, version in [*unserved, *(WITHOUT_TABLE & served)]:
            body = pack(">hhih", key, version, 1, -1) + bytes(64)
            with trio.fail_after(PATIENCE_S):
                assert await reply(address, pack(">i", len(body)) + body) is None, (key, version)


async def reply(address: tuple[str, int], frame: bytes) -> bytes | None:
    """Return the answer to a frame on a new connection; None if it is closed instead."""
    async with await TrioWireClient.connect(*address) as client:
        await client.send_bytes(frame)
        try:
            return await client.read_frame()
        except Closed:
            return None


def damage_frame(frame: bytes, chance: random.Random) -> bytes:
    """Change some bytes of a frame's body to absurd lengths, or cut the frame."""
    body = bytearray(frame[4:])
    start = 8  # key, version and correlation id stay
    for _ in range(chance.randint(1, 3)):
        if len(body) > start:
            at = chance.randrange(start, len(body))
            width = chance.choice((1, 2, 4, 5))
            filler = chance.choice((b"\x7f\xff\xff\xff\xff", b"\xff" * 5, b"\x80" * 5, bytes(5)))
            body[at : at + width] = filler[:width]
    if chance.random() < 0.3:
        body = body[: chance.randint(start, len(body))]
    return pack(">i", len(body)) + bytes(body)


@pytest.mark.parametrize("listener", ["PLAINTEXT", "CONTROLLER"])
async def test_damaged_requests_are_answered_or_end_their_own_connection(
    tmp_path: Path, listener: str, caplog: pytest.LogCaptureFixture
) -> None:
    """Absurd lengths in every key and version: no allocation of them, no other client is disturbed.

    Invariants 96, 97 and 100.
    """
    chance = random.Random(97)
    async with running(tmp_path) as server:
        address = listeners(server)[listener]
        apis = await advertised_apis(address)
        gc.collect()
        before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
        async with await TrioWireClient.connect(*address) as witness:
            for key, version in apis:
                if (key, version) in WITHOUT_TABLE:
                    continue
                for _ in range(TRIES):
                    frame = damage_frame(
                        request_frame(key, version, 7, "x", plain(key, version)), chance
                    )
                    await judge(address, key, version, frame)
                answer = await witness.call(ApiVersionsRequest(), 0)
                assert answer.error_code == 0, (key, version)
        grown = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024 - before
        assert grown < ROOM_BYTES
    assert [r for r in caplog.records if r.exc_info or r.levelno >= logging.ERROR] == []


async def judge(address: tuple[str, int], key: int, version: int, frame: bytes) -> None:
    """Send a damaged frame: it is answered in its shape or its connection ends."""
    may_wait = BY_KEY[key].name in WAITING
    with trio.move_on_after(0.05 if may_wait else PATIENCE_S) as scope:
        answer = await reply(address, frame)
        if answer is not None:
            correlation_id, response = read_response(key, version, answer)
            assert correlation_id == 7
            assert isinstance(response, BY_KEY[key].response)
    assert may_wait or not scope.cancelled_caught, (key, version, frame.hex())
