"""Requests that are refused because of a change that is written, but not committed.

The leader may fail and the change be lost: a client must not have ended by then because of it.
"""

from collections.abc import Awaitable, Callable

import attrs
import pytest
import trio
import trio.testing

from kwire.codec.messages.heartbeat import HeartbeatRequest
from kwire.codec.messages.join_group import JoinGroupRequest
from kwire.codec.messages.sync_group import SyncGroupRequest
from kwire.errors import (
    ConcurrentTransactions,
    FencedInstanceId,
    GroupIdNotFound,
    KafkaError,
    NotCoordinator,
    ProducerFenced,
)
from kwire.group.deletion import delete_groups
from kwire.transaction.model import TransactionState
from kwire.transaction.transitions import Producer
from tests.support.coordinator.node import (
    CLIENT,
    Node,
    commit_request,
    join_request,
    make_node,
    wait_result,
)
from tests.support.transaction.world import INDEX, NAME, T0, T1, World

Request = Callable[[], Awaitable[object]]


@attrs.define
class Answer:
    """The answer to a request, once there is one."""

    has_come: bool = False
    error: KafkaError | None = None

    async def take(self, request: Request) -> None:
        try:
            await request()
        except KafkaError as error:
            self.error = error
        self.has_come = True


async def send(nursery: trio.Nursery, request: Request) -> Answer:
    """Send a request, and let all happen that needs neither time nor replicas."""
    answer = Answer()
    nursery.start_soon(answer.take, request)
    await trio.testing.wait_all_tasks_blocked()
    return answer


def static_join() -> JoinGroupRequest:
    request = join_request()
    request.group_instance_id = "instance"
    return request


async def start_static_member(node: Node) -> HeartbeatRequest:
    """Bring a group with one static member to its first generation; return its heartbeat."""
    joined = await node.groups.join(static_join(), CLIENT)
    assignment = SyncGroupRequest.SyncGroupRequestAssignment(
        member_id=joined.member_id, assignment=b"everything"
    )
    await node.groups.sync(
        SyncGroupRequest(
            group_id="g",
            generation_id=joined.generation_id,
            member_id=joined.member_id,
            group_instance_id="instance",
            must_name_protocol=False,
            assignments=[assignment],
        )
    )
    return HeartbeatRequest(
        group_id="g",
        generation_id=joined.generation_id,
        member_id=joined.member_id,
        group_instance_id="instance",
    )


@pytest.mark.parametrize(
    ("is_committed", "error"), [(True, FencedInstanceId), (False, NotCoordinator)]
)
async def test_static_member_is_fenced_once_its_successor_is_committed(
    is_committed: bool, error: type[KafkaError], autojump_clock: object
) -> None:
    """Invariants 68 and 72: if the coordinator fails before, the old member is not fenced."""
    node = make_node()
    index = node.groups.partition_of("g")
    node.service.on_elected(index, 0)
    async with trio.open_nursery() as nursery:
        await nursery.start(node.service.run)
        heartbeat = await start_static_member(node)
        node.log.replicas_lag = True
        restarted = await send(nursery, lambda: node.groups.join(static_join(), CLIENT))
        former = await send(nursery, lambda: wait_result(node.groups.heartbeat(heartbeat)))
        assert (restarted.has_come, former.has_come) == (False, False)
        if is_committed:
            node.log.catch_up()
        else:
            node.service.on_resigned(index, 1)
            node.log.resign()
        await trio.testing.wait_all_tasks_blocked()
        assert type(former.error) is error
        nursery.cancel_scope.cancel()


async def test_group_is_unknown_once_its_deletion_is_committed(autojump_clock: object) -> None:
    """Invariant 72: a reader of the group is refused no earlier either."""
    node = make_node()
    node.service.on_elected(node.groups.partition_of("g"), 0)
    await wait_result(node.groups.commit(commit_request(1)))
    node.log.replicas_lag = True
    async with trio.open_nursery() as nursery:
        await send(nursery, lambda: delete_groups(node.groups, ["g"]))
        described = await send(nursery, lambda: node.groups.describe("g"))
        assert not described.has_come
        node.log.catch_up()
        await trio.testing.wait_all_tasks_blocked()
        assert type(described.error) is GroupIdNotFound


async def start_and_fence(subject: World, nursery: trio.Nursery) -> tuple[Producer, Answer]:
    """Return a producer, and the answer to its successor, whose record is not committed."""
    await subject.start()
    former = await subject.init()
    subject.log.replicas_lag = True
    return former, await send(nursery, subject.init)


@pytest.mark.parametrize("name", ["end", "add", "start", "verify"])
@pytest.mark.parametrize(
    ("is_committed", "error"), [(True, ProducerFenced), (False, NotCoordinator)]
)
async def test_producer_is_fenced_once_its_successor_is_committed(
    name: str, is_committed: bool, error: type[KafkaError], autojump_clock: object
) -> None:
    """Invariants 54 and 72."""
    async with trio.open_nursery() as nursery:
        subject = World(nursery)
        former, successor = await start_and_fence(subject, nursery)
        requests: dict[str, Request] = {
            "end": lambda: subject.end(former, commit=True),
            "add": lambda: subject.add(former, T0),
            "start": lambda: subject.init(producer=Producer(former.id, former.epoch + 5)),
            "verify": lambda: subject.coordinator.verify(NAME, former, [T0]),
        }
        refused = await send(nursery, requests[name])
        assert (successor.has_come, refused.has_come) == (False, False)
        if is_committed:
            subject.log.catch_up()
        else:
            subject.coordinator.service.on_resigned(INDEX, subject.epoch + 1)
            subject.log.resign()
        await trio.testing.wait_all_tasks_blocked()
        assert type(refused.error) is error
        nursery.cancel_scope.cancel()


async def test_producer_goes_on_if_its_successor_is_lost_with_the_leader(
    autojump_clock: object,
) -> None:
    """Invariant 54: nothing is left of the successor, so no request fences the producer."""
    async with trio.open_nursery() as nursery:
        subject = World(nursery)
        former, _ = await start_and_fence(subject, nursery)
        await send(nursery, lambda: subject.add(former, T0))
        subject.coordinator.service.on_resigned(INDEX, subject.epoch + 1)
        committed = subject.log.high_watermarks[INDEX]
        subject.log.data[INDEX][committed:] = []
        subject.log.ends[INDEX] = committed
        subject.log.catch_up()
        await subject.start()
        await subject.add(former, T0, T1)
        await subject.end(former, commit=True)
        await subject.settle()
        assert (await subject.state()).state is TransactionState.COMPLETE_COMMIT
        nursery.cancel_scope.cancel()


async def test_request_that_may_be_retried_is_refused_at_once(autojump_clock: object) -> None:
    """CONCURRENT_TRANSACTIONS ends no producer: it is Kafka's answer before an end is committed."""
    async with trio.open_nursery() as nursery:
        subject = World(nursery)
        await subject.start()
        producer = await subject.init()
        await subject.add(producer, T0)
        subject.log.replicas_lag = True
        ended = await send(nursery, lambda: subject.end(producer, commit=True))
        started = await send(nursery, subject.init)
        assert not ended.has_come
        assert type(started.error) is ConcurrentTransactions
        nursery.cancel_scope.cancel()
