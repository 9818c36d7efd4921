"""Fetches of a client whose right to read is taken away meanwhile."""

from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from typing import Any

import attrs
import pytest
import trio
import trio.testing

from kwire.codec.apis import ListenerType
from kwire.codec.frame import read_response, request_frame
from kwire.handlers.dispatch import ConnectionRequests, Dispatcher
from kwire.handlers.shared.context import Principal
from kwire.replica.partition import Partition
from kwire.security.acls import ALLOW, LITERAL, OPERATIONS, RESOURCE_TYPES, Acl
from kwire.security.authorizer import AclIndex, Authorizer, IndexChange
from simulation.replication.links import join_parts
from tests.support.handlers.broker import Broker, broker, create_topic, write
from tests.support.handlers.fetch import at, request

FETCH, VERSION = 1, 17
TOPIC_AUTHORIZATION_FAILED, UNKNOWN_TOPIC_ID = 29, 100
MAY_READ = Acl(RESOURCE_TYPES["Topic"], "t", LITERAL, "User:alice", "*", OPERATIONS["Read"], ALLOW)


@attrs.define
class Scene:
    """A broker with a topic that alice may read, and her connection."""

    broker: Broker
    partition: Partition
    authorizer: Authorizer
    requests: ConnectionRequests

    @contextmanager
    def change(self) -> Iterator[IndexChange]:
        change = IndexChange(self.authorizer.index)
        yield change
        self.authorizer.replace_index(change.finish())

    async def fetch(self, *partitions: Any, version: int = VERSION, **fields: Any) -> Any:
        frame = request_frame(FETCH, version, 7, "c", request(*partitions, **fields))
        parts = await self.requests.answer(memoryview(frame)[4:])
        assert parts is not None
        return read_response(FETCH, version, join_parts(parts)[4:])[1]


@asynccontextmanager
async def scene() -> AsyncIterator[Scene]:
    subject = broker()
    partition = await create_topic(subject)
    authorizer = Authorizer(frozenset(), allows_uncovered=False)
    authorizer.replace_index(AclIndex())
    services = attrs.evolve(subject.services, authorizer=authorizer)
    dispatcher = Dispatcher(services, ListenerType.BROKER)
    requests = dispatcher.for_connection("A", "peer", principal=Principal("User", "alice"))
    running = Scene(subject, partition, authorizer, requests)
    with running.change() as change:
        change.add(MAY_READ)
    async with trio.open_nursery() as nursery:
        await nursery.start(subject.replicas.run)
        yield running
        nursery.cancel_scope.cancel()


async def test_waiting_fetch_gets_no_record_written_after_its_right_was_taken(
    autojump_clock: trio.testing.MockClock,
) -> None:
    """Invariant 105: Kafka checks the right only when the request arrives."""
    answers = []
    async with scene() as running, trio.open_nursery() as nursery:

        async def wait() -> None:
            answers.append(await running.fetch(at("t"), max_wait_ms=1000))

        nursery.start_soon(wait)
        await trio.testing.wait_all_tasks_blocked()
        with running.change() as change:
            change.remove(MAY_READ)
        write(running.broker, running.partition, b"secret")
    (fetched,) = answers[0].responses[0].partitions
    assert fetched.error_code == TOPIC_AUTHORIZATION_FAILED
    assert not fetched.records


async def test_session_notices_a_right_that_is_taken_or_given_without_new_records(
    autojump_clock: trio.testing.MockClock,
) -> None:
    async with scene() as running:
        answer = await running.fetch(at("t"), session_epoch=0)
        session = {"session_id": answer.session_id}
        assert (await running.fetch(session_epoch=1, **session)).responses == []
        with running.change() as change:
            change.remove(MAY_READ)
        await trio.sleep(0.1)  # A session asks again for settled partitions ten times a second.
        answer = await running.fetch(session_epoch=2, **session)
        assert answer.responses[0].partitions[0].error_code == TOPIC_AUTHORIZATION_FAILED
        with running.change() as change:
            change.add(MAY_READ)
        write(running.broker, running.partition, b"public")
        answer = await running.fetch(session_epoch=3, **session)
        assert answer.responses[0].partitions[0].error_code == 0
        assert answer.responses[0].partitions[0].records


@pytest.mark.parametrize(
    ("version", "error"), [(12, TOPIC_AUTHORIZATION_FAILED), (13, UNKNOWN_TOPIC_ID)]
)
async def test_empty_name_is_a_topic_that_the_client_may_not_read(
    version: int, error: int, autojump_clock: trio.testing.MockClock
) -> None:
    async with scene() as running:
        answer = await running.fetch(at(""), version=version)
        assert answer.responses[0].partitions[0].error_code == error
