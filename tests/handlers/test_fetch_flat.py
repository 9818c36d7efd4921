"""Fetch in its usual shape: the answers are those of the general way."""

from collections.abc import Sequence
from random import Random
from typing import Any

import attrs
import pytest
import trio

from kwire.codec.apis import ListenerType
from kwire.codec.frame import request_frame
from kwire.codec.messages import metadata_records as r
from kwire.handlers.dispatch import Dispatcher
from kwire.handlers.shared.client_quotas import FETCHED
from kwire.metrics import BYTES_OUT, REQUESTS
from kwire.net.framing import Disconnect
from simulation.replication.links import join_parts
from tests.support.codec.damage import damage
from tests.support.handlers.broker import Broker, broker, create_topic, write
from tests.support.handlers.fetch import at, request

FETCH = 1
RECORDS = 5


async def answers(requests: Sequence[Any], version: int, subject: Broker, *, flat: bool) -> Any:
    """Return the answers, the bytes and requests counted, and the throttle time."""
    connection = Dispatcher(subject.services, ListenerType.BROKER).for_connection("A", "peer")
    route = await connection.dispatcher.prepare(FETCH, version)
    assert route.flat is not None
    if not flat:
        connection.dispatcher.routes[FETCH, version] = attrs.evolve(route, flat=None)
    received = []
    for each in requests:
        parts = await connection.answer(memoryview(request_frame(FETCH, version, 7, "c", each))[4:])
        assert parts is not None
        received.append(join_parts(parts))
    metrics = subject.services.metrics
    return received, metrics.total(REQUESTS), metrics.total(BYTES_OUT), connection.muted_s


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("version", [15, 18])
async def test_damaged_fetch_has_the_answer_of_the_general_way(
    version: int, seed: int, autojump_clock: trio.testing.MockClock
) -> None:
    """Odd but valid requests are among them: other sizes, tagged fields, any session."""
    rng = Random(seed)
    whole = [
        request_frame(FETCH, version, 7, "c", each)[4:]
        for each in (request(at("t")), request(at("t", 2), **session(1, 100)))
    ]
    frames = [damage(rng, rng.choice(whole)) for _ in range(250)]
    frames = [frame for frame in frames if frame[:4] == whole[0][:4]]
    results = []
    for flat in (True, False):
        subject = broker()
        partition = await create_topic(subject, partitions=2)
        for number in range(RECORDS):
            write(subject, partition, b"%d" % number)
        connection = Dispatcher(subject.services, ListenerType.BROKER).for_connection("A", "peer")
        route = await connection.dispatcher.prepare(FETCH, version)
        if not flat:
            connection.dispatcher.routes[FETCH, version] = attrs.evolve(route, flat=None)
        received: list[bytes | str | None] = []
        for frame in frames:
            try:
                with trio.move_on_after(1):
                    parts = await connection.answer(memoryview(frame))
                    received.append(None if parts is None else join_parts(parts))
            except Disconnect as reason:
                received.append(str(reason))
        metrics = subject.services.metrics
        results.append((received, metrics.total(REQUESTS), metrics.total(BYTES_OUT)))
    assert results[0] == results[1]
    assert len(set(results[0][0])) > 10


def session(epoch: int, session_id: int = 0) -> dict[str, int]:
    return {"session_epoch": epoch, "session_id": session_id}


CASES: dict[str, list[Any]] = {
    "records": [request(at("t", offset)) for offset in (0, 3, 4)],
    "few bytes": [request(at("t", 0, max_bytes=1)), request(at("t"), max_bytes=1)],
    "no records": [request(at("t", RECORDS))],
    "wait": [request(at("t", RECORDS), max_wait_ms=50)],
    "out of range": [request(at("t", RECORDS + 1)), request(at("t", -5))],
    "unknown topic": [request(at("other"))],
    "unknown partition": [request(at("t", partition=9))],
    "epochs": [
        request(at("t", current_leader_epoch=0, last_fetched_epoch=0)),
        request(at("t", current_leader_epoch=3)),
        request(at("t", RECORDS, last_fetched_epoch=7)),
    ],
    "read_committed": [request(at("t"), isolation_level=1)],
    "rack": [request(at("t"), rack_id="r")],
    "session": [
        request(at("t"), **session(0)),
        request(at("t", 2), **session(1, 100)),
        request(**session(2, 100)),
        request(at("t", RECORDS), **session(3, 100)),
        request(at("t", 1), **session(7, 100)),
        request(at("t", 1), **session(1, 4711)),
    ],
    "two partitions": [request(at("t"), at("t", partition=1))],
}


@pytest.mark.parametrize("throttled", [False, True])
@pytest.mark.parametrize("version", [15, 17, 18])
@pytest.mark.parametrize("case", CASES)
async def test_usual_fetch_has_the_answer_of_the_general_way(
    case: str, version: int, throttled: bool, autojump_clock: trio.testing.MockClock
) -> None:
    results = []
    for flat in (True, False):
        subject = broker()
        partition = await create_topic(subject, partitions=2)
        for number in range(RECORDS):
            write(subject, partition, b"%d" % number)
        if throttled:
            entity = r.ClientQuotaRecord.EntityData(entity_type="client-id", entity_name="c")
            await subject.publish(
                r.ClientQuotaRecord(entity=[entity], key=FETCHED, value=10, remove=False)
            )
        results.append(await answers(CASES[case], version, subject, flat=flat))
    assert results[0] == results[1]
