"""Fetch in its usual shape: the answers are those of the general way."""

from collections import Counter
from collections.abc import Sequence
from random import Random
from typing import Any, cast

import attrs
import pytest
import trio
import trio.testing
from hypothesis import example, given, settings
from hypothesis import strategies as st

from kwire.codec.apis import ListenerType
from kwire.codec.frame import read_response, request_frame
from kwire.codec.messages import metadata_records as r
from kwire.codec.messages.fetch import FetchRequest
from kwire.handlers.dispatch import ConnectionRequests, Dispatcher
from kwire.handlers.shared.client_quotas import FETCHED
from kwire.metrics import BYTES_OUT, REQUESTS
from kwire.net.framing import Disconnect
from kwire.replica.partition import Partition
from simulation.replication.links import join_parts
from tests.support.codec.damage import damage
from tests.support.handlers.broker import NODE, Broker, broker, create_topic, topic_id, write
from tests.support.handlers.fetch import Topic, at, request
from tests.support.handlers.transactions import markers_request

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
@pytest.mark.parametrize("version", [7, 11, 13, 15, 18])
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


FETCHED_EPOCHS = "fetched epochs"
"""A case that versions before 12 cannot express."""
CASES: dict[str, list[Any]] = {
    "records": [request(at("t", offset)) for offset in (0, 3, 4)],
    "few bytes": [request(at("t", 0, max_bytes=1)), request(at("t"), max_bytes=1)],
    "no records": [request(at("t", RECORDS))],
    "wait": [request(at("t", RECORDS), max_wait_ms=50)],
    "out of range": [request(at("t", RECORDS + 1)), request(at("t", -5))],
    "unknown topic": [request(at("other"))],
    "unknown partition": [request(at("t", partition=9))],
    "leader epochs": [
        request(at("t", current_leader_epoch=0)),
        request(at("t", current_leader_epoch=3)),
    ],
    FETCHED_EPOCHS: [
        request(at("t", current_leader_epoch=0, last_fetched_epoch=0)),
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
    "two topics": [request(at("t"), at("other"), at("t", partition=1)), request(max_bytes=1)],
    "a topic without partitions": [request(Topic(topic="t", topic_id=topic_id("t")), at("t"))],
    "nothing": [request(), request(**session(1, 100))],
    "a session for two": [
        request(at("t"), at("t", partition=1), **session(0)),
        request(at("t", RECORDS), **session(1, 100)),
        request(**session(2, 100)),
        request(max_wait_ms=50, **session(3, 100)),
        request(at("t", RECORDS + 1), at("t", 1), **session(4, 100)),
        request(**session(5, 100)),
        request(
            at("t", 1),
            forgotten_topics_data=[
                FetchRequest.ForgottenTopic(topic="t", topic_id=topic_id("t"), partitions=[1])
            ],
            **session(6, 100),
        ),
    ],
}


@pytest.mark.parametrize("throttled", [False, True])
@pytest.mark.parametrize("version", [7, 10, 11, 12, 13, 15, 17, 18])
@pytest.mark.parametrize("case", CASES)
async def test_usual_fetch_has_the_answer_of_the_general_way(
    case: str, version: int, throttled: bool, autojump_clock: trio.testing.MockClock
) -> None:
    if case == FETCHED_EPOCHS and version < 12:
        return
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


FOLLOWER = 2
"""The broker that follows the topic ``u``."""
PLACES = [("t", 0), ("t", 1), ("u", 0), ("u", 1), ("t", 7), ("missing", 0)]
"""Topics and partitions; the last two do not exist."""
places = st.sampled_from(PLACES[:4])
fetches = st.fixed_dictionaries(
    {
        "named": st.lists(
            st.tuples(
                st.sampled_from(PLACES),
                st.integers(-1, 6),
                st.sampled_from([1 << 20, 100, 0]),
                st.sampled_from([-1, 0, 1]),
            ),
            max_size=4,
        ),
        "session": st.sampled_from(["none", "new", "same", "same", "same", "same", "wrong"]),
        "removed": st.lists(places, max_size=1),
        "isolation_level": st.sampled_from([0, 1]),
        "max_bytes": st.sampled_from([1 << 20, 150]),
        "min_bytes": st.sampled_from([1, 200]),
        "max_wait_ms": st.sampled_from([0, 20]),
        "replica_id": st.sampled_from([-1, -1, FOLLOWER, 3]),
    }
)
events = st.one_of(
    st.tuples(st.just("write"), places),
    st.tuples(st.just("write later"), places),
    st.tuples(st.just("write in a transaction"), places),
    st.tuples(st.just("end the transaction"), st.booleans()),
    st.tuples(st.just("lead again"), st.sampled_from([NODE, 2])),
    st.tuples(st.just("delete"), places),
    st.tuples(st.just("fetch"), fetches),
    st.tuples(st.just("fetch"), fetches),
    st.tuples(st.just("fetch"), fetches),
)


class World:
    """A broker to which events happen, and a client that fetches from it in one way."""

    def __init__(self, subject: Broker, nursery: trio.Nursery) -> None:
        self.subject, self.nursery = subject, nursery
        self.session_id = self.epoch = 0
        self.sequences: Counter[tuple[str, int]] = Counter()
        self.received: list[bytes] = []

    def partition(self, place: tuple[str, int]) -> Partition:
        return self.subject.replicas.partitions.get(*place)

    def write(self, place: tuple[str, int], **batch: Any) -> bool:
        """Write a record if the broker leads the partition."""
        is_led = self.partition(place).leader is not None
        if is_led:
            write(self.subject, self.partition(place), b"value", **batch)
        return is_led

    async def write_later(self, place: tuple[str, int]) -> None:
        await trio.sleep(0.01)
        self.write(place)

    async def step(self, connection: ConnectionRequests, version: int, event: Any) -> None:
        kind, argument = event
        if kind == "write":
            self.write(argument)
        elif kind == "write later":
            self.nursery.start_soon(self.write_later, argument)
        elif kind == "write in a transaction":
            producer = {"producer_id": 5, "producer_epoch": 0, "transactional": True}
            sequence = self.sequences[argument]
            if self.write(argument, base_sequence=sequence, **producer):
                self.sequences[argument] += 1
        elif kind == "end the transaction":
            topics = [("t", [0, 1]), ("u", [0, 1])]
            await self.subject.call(markers_request(*topics, commit=argument), 1)
        elif kind == "lead again":
            await self.subject.lead_again("t", argument)
        elif kind == "delete":
            partition = self.partition(argument)
            if partition.leader is not None:
                partition.delete_before(-1)
        else:
            await self.fetch(connection, version, dict(argument))

    async def fetch(
        self, connection: ConnectionRequests, version: int, fields: dict[str, Any]
    ) -> None:
        session, removed = fields.pop("session"), fields.pop("removed")
        replica_id = fields.pop("replica_id")
        replica = FetchRequest.ReplicaState(replica_id=replica_id)
        if session == "none":
            fields |= {"session_epoch": -1}
        elif session == "new" or not self.session_id:
            fields |= {"session_epoch": 0}
        else:
            epoch = self.epoch + (session == "wrong")
            fields |= {"session_id": self.session_id, "session_epoch": epoch}
        offsets = {"high_watermark": 0} if version >= 18 and replica_id >= 0 else {}
        topics = [
            at(name, offset, index, size, current_leader_epoch=epoch, **offsets)
            for (name, index), offset, size, epoch in fields.pop("named")
        ]
        forgotten = [
            FetchRequest.ForgottenTopic(topic=name, topic_id=topic_id(name), partitions=[index])
            for name, index in removed
        ]
        fields |= {"forgotten_topics_data": forgotten}
        fields |= {"replica_state": replica} if version >= 15 else {"replica_id": replica_id}
        message = request(*topics, **fields)
        frame = request_frame(FETCH, version, 7, "c", message)
        parts = await connection.answer(memoryview(frame)[4:])
        assert parts is not None
        self.received.append(join_parts(parts))
        _, answer = read_response(FETCH, version, memoryview(self.received[-1])[4:])
        if session != "none" and answer.error_code == 0:
            self.epoch = self.epoch + 1 if answer.session_id == self.session_id else 1
            self.session_id = answer.session_id


async def history(events: list[Any], version: int, *, flat: bool) -> Any:
    """Return the answers, what was counted, and the files that are still open for reads."""
    subject = broker()
    await create_topic(subject, "t", partitions=2)
    await create_topic(subject, "u", partitions=2, replicas=(NODE, FOLLOWER))
    connection = Dispatcher(subject.services, ListenerType.BROKER).for_connection("A", "peer")
    route = await connection.dispatcher.prepare(FETCH, version)
    if not flat:
        connection.dispatcher.routes[FETCH, version] = attrs.evolve(route, flat=None)
    async with trio.open_nursery() as nursery:
        await nursery.start(subject.replicas.fetch_waits.run)
        world = World(subject, nursery)
        for event in events:
            await world.step(connection, version, event)
        nursery.cancel_scope.cancel()
    metrics = subject.services.metrics
    pins = [cast("Any", p.log.segments.active.file).pins for p in subject.replicas.partitions]
    return world.received, metrics.total(REQUESTS), metrics.total(BYTES_OUT), pins


ABORTED: list[Any] = [
    ("write in a transaction", ("t", 0)),
    ("end the transaction", False),
    ("write", ("t", 1)),
    (
        "fetch",
        {
            "named": [(("t", 0), 0, 1 << 20, -1), (("t", 1), 0, 1 << 20, -1)],
            "session": "none",
            "removed": [],
            "isolation_level": 1,
            "max_bytes": 1 << 20,
            "min_bytes": 1,
            "max_wait_ms": 0,
            "replica_id": -1,
        },
    ),
]
"""A read_committed fetch, whose answer lists a transaction."""


@example(ABORTED, 17)
@given(st.lists(events, max_size=14), st.sampled_from([7, 10, 11, 12, 13, 15, 17, 18]))
@settings(max_examples=60)
def test_usual_fetches_of_any_history_have_the_answers_of_the_general_way(
    events: list[Any], version: int
) -> None:
    """Followers and consumers fetch several partitions, in sessions and without, with errors."""

    async def histories() -> Any:
        return [await history(events, version, flat=flat) for flat in (True, False)]

    clock = trio.testing.MockClock(autojump_threshold=0)
    flat, general = trio.run(histories, clock=clock)
    assert flat == general
    assert not any(flat[-1])
