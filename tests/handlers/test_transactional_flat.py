"""Produce of transactions in its usual shape: the outcome is that of the general way."""

from collections.abc import Awaitable, Callable
from functools import partial
from typing import Any, Final, TypeAlias

import attrs
import hypothesis.strategies as st
import trio
import trio.testing
from hypothesis import given, settings

from kwire import errors
from kwire.codec.apis import ListenerType
from kwire.codec.frame import read_response, request_frame
from kwire.configs.broker import BrokerConfig
from kwire.handlers.dispatch import ConnectionRequests, Dispatcher
from kwire.metrics import REQUESTS
from kwire.net.framing import Disconnect
from kwire.security.authorizer import AclIndex, Authorizer
from kwire.types import TopicPartition
from kwire.waits import Slow
from simulation.replication.links import join_parts
from tests.support.handlers.broker import (
    Broker,
    broker,
    create_topic,
    one_batch,
    read_log,
    topic_id,
)
from tests.support.handlers.produce import request as produce_request
from tests.support.handlers.transactions import ScriptedVerifier, markers_request

PRODUCE: Final = 0
VERSIONS: Final = (9, 11, 12, 13)
"""Versions of producers that add partitions first, of those that know TRANSACTION_ABORTABLE, and of
those that let their records add partitions."""
PRODUCER: Final = 5


@attrs.define
class Subject:
    """A broker with two partitions, and a producer's connection to it."""

    broker: Broker
    requests: ConnectionRequests
    version: int
    answers: list[Any] = attrs.field(factory=list)


Step: TypeAlias = Callable[[Subject], Awaitable[None]]


def verifier_of(subject: Broker) -> ScriptedVerifier:
    verifier = subject.parts.verifier
    assert isinstance(verifier, ScriptedVerifier)
    return verifier


def frame_of(
    version: int, parts: list[tuple[int, bytes | None]], transactional_id: str | None = "tx"
) -> memoryview:
    """Return a request with batches for partitions of ``t``."""
    message = produce_request(
        *[("t", index, records) for index, records in parts],
        acks=-1,
        transactional_id=transactional_id,
    )
    for topic in message.topic_data:
        topic.topic_id = topic_id("t")
    return memoryview(request_frame(PRODUCE, version, 7, "c", message))[4:]


def send(parts: list[tuple[int, bytes | None]], transactional_id: str | None) -> Step:
    async def take(subject: Subject) -> None:
        try:
            frame = frame_of(subject.version, parts, transactional_id)
            answer = await subject.requests.answer(frame)
            subject.answers.append(None if answer is None else join_parts(answer))
        except Disconnect as reason:
            subject.answers.append(str(reason))

    return take


def end(partition: int, epoch: int) -> Step:
    """Write the marker of a transaction."""

    async def take(subject: Subject) -> None:
        marker = markers_request(("t", [partition]), producer_id=PRODUCER, epoch=epoch)
        subject.answers.append(await subject.broker.call(marker, 1))

    return take


def answer_verifications(code: int) -> Step:
    async def take(subject: Subject) -> None:
        verifier_of(subject.broker).default = code

    return take


def transactional(sequence: int, **changes: Any) -> bytes:
    fields = {"producer_id": PRODUCER, "producer_epoch": 0, "transactional": True}
    return one_batch(base_sequence=sequence, **(fields | changes))


async def outcome(
    steps: list[Step], version: int, *, flat: bool, allowed: bool, verified: bool
) -> tuple[Any, ...]:
    """Take steps on a new broker; return what clients and operators can notice."""
    subject = broker()
    setting = str(verified).lower()
    subject.current.config = BrokerConfig({"transaction.partition.verification.enable": setting})
    verifier = verifier_of(subject)
    verifier.default = errors.NONE
    partition = await create_topic(subject, partitions=2)
    authorizer = Authorizer(frozenset(), allows_uncovered=allowed)
    authorizer.replace_index(AclIndex())
    services = attrs.evolve(subject.services, authorizer=authorizer)
    dispatcher = Dispatcher(services, ListenerType.BROKER)
    route = await dispatcher.prepare(PRODUCE, version)
    if not flat:
        dispatcher.routes[PRODUCE, version] = attrs.evolve(route, flat=None)
    running = Subject(subject, dispatcher.for_connection("A", "peer"), version)
    for step in steps:
        await step(running)
    partitions = [partition, subject.replicas.partitions.get("t", 1)]
    return (
        running.answers,
        verifier.questions,
        [read_log(each) for each in partitions],
        [(each.last_stable_offset, len(each.verifications)) for each in partitions],
        services.metrics.total(REQUESTS),
    )


BATCHES: Final = st.builds(
    transactional,
    st.integers(0, 3),
    producer_epoch=st.sampled_from([0, 0, 0, 1]),
    producer_id=st.sampled_from([PRODUCER, PRODUCER, PRODUCER, 6]),
    transactional=st.sampled_from([True, True, True, False]),
)
PARTS: Final = st.tuples(
    st.sampled_from([0, 0, 0, 1, 7]), BATCHES | st.sampled_from([None, b"", bytes(100)])
)
"""Partition 7 does not exist."""
STEPS: Final = st.lists(
    st.builds(send, st.lists(PARTS, min_size=1, max_size=2), st.sampled_from(["tx", "tx", None]))
    | st.builds(send, st.tuples(st.just(0), BATCHES).map(lambda part: [part]), st.just("tx"))
    | st.builds(end, st.integers(0, 1), st.integers(0, 1))
    | st.builds(
        answer_verifications,
        st.sampled_from([errors.NONE, errors.NONE, errors.InvalidTxnState.code]),
    ),
    max_size=8,
)


@given(STEPS, st.sampled_from(VERSIONS), st.sampled_from([True, True, False]), st.booleans())
@settings(max_examples=60)
def test_usual_request_has_the_outcome_of_the_general_way(
    steps: list[Step], version: int, allowed: bool, verified: bool
) -> None:
    flat, general = [
        trio.run(
            partial(outcome, steps, version, flat=flat, allowed=allowed, verified=verified),
            clock=trio.testing.MockClock(autojump_threshold=0),
        )
        for flat in (True, False)
    ]
    assert flat == general


async def test_only_the_first_batch_of_a_transaction_waits_for_its_verification() -> None:
    subject = broker()
    verifier_of(subject).default = errors.NONE
    await create_topic(subject, partitions=2)
    dispatcher = Dispatcher(subject.services, ListenerType.BROKER)
    await dispatcher.prepare(PRODUCE, 12)
    requests = dispatcher.for_connection("A", "peer")
    first = [frame_of(12, [(index, transactional(0))]) for index in range(2)]
    for frame in first:
        assert isinstance(requests.answer_now(frame), Slow)
        await requests.answer(frame)
    both = frame_of(12, [(index, transactional(1)) for index in range(2)])
    parts = requests.answer_now(both)
    assert isinstance(parts, list)
    _, response = read_response(PRODUCE, 12, join_parts(parts)[4:])
    answers = response.responses[0].partition_responses
    assert [(each.error_code, each.base_offset) for each in answers] == [(0, 1), (0, 1)]
    await subject.call(markers_request(("t", [0]), producer_id=PRODUCER), 1)
    after_the_marker = frame_of(12, [(0, transactional(2))])
    assert isinstance(requests.answer_now(after_the_marker), Slow)


@attrs.define
class DeniesTransactions:
    """An authorizer that allows everything but the use of transactional ids."""

    def allows(self, principal: object, host: str, operation: str, kind: str, name: str) -> bool:
        return kind != "TransactionalId"


async def test_open_transaction_takes_no_batch_of_a_client_without_the_right() -> None:
    subject = broker()
    verifier_of(subject).default = errors.NONE
    partition = await create_topic(subject)
    authorizers: tuple[Any, ...] = (None, DeniesTransactions())
    for sequence, authorizer in enumerate(authorizers):
        services = attrs.evolve(subject.services, authorizer=authorizer)
        dispatcher = Dispatcher(services, ListenerType.BROKER)
        requests = dispatcher.for_connection("A", "peer")
        parts = await requests.answer(frame_of(12, [(0, transactional(sequence))]))
        assert parts is not None
        _, response = read_response(PRODUCE, 12, join_parts(parts)[4:])
        (answer,) = response.responses[0].partition_responses
        is_denied = authorizer is not None
        assert answer.error_code == is_denied * errors.TransactionalIdAuthorizationFailed.code
        assert partition.log.end_offset == 1


@attrs.define
class DeniesTopic:
    """An authorizer that allows everything but writes to one topic."""

    topic: str

    def allows(self, principal: object, host: str, operation: str, kind: str, name: str) -> bool:
        return (operation, kind, name) != ("Write", "Topic", self.topic)


async def test_transaction_takes_no_partition_to_which_its_client_may_not_write() -> None:
    """The end of the transaction would write a marker there."""
    subject = broker()
    verifier = verifier_of(subject)
    verifier.default = errors.NONE
    for topic in ("mine", "theirs", "__consumer_offsets"):
        await create_topic(subject, topic)
    authorizer: Any = DeniesTopic("theirs")
    services = attrs.evolve(subject.services, authorizer=authorizer)
    requests = Dispatcher(services, ListenerType.BROKER).for_connection("A", "peer")
    names = ("theirs", "__consumer_offsets", "mine")
    parts = [(name, 0, transactional(0)) for name in names]
    message = produce_request(*parts, transactional_id="tx")
    answer = await requests.answer(memoryview(request_frame(PRODUCE, 12, 7, "c", message))[4:])
    assert answer is not None
    _, response = read_response(PRODUCE, 12, join_parts(answer)[4:])
    refusals = errors.TopicAuthorizationFailed.code, errors.InvalidTopicException.code
    codes = [each.partition_responses[0].error_code for each in response.responses]
    assert codes == [*refusals, errors.NONE]
    assert verifier.questions == [("tx", PRODUCER, 0, [TopicPartition("mine", 0)], True)]
