"""The persister that a server uses: it sends requests to the cluster's share coordinators.

The coordinator of a share partition is the broker that leads its partition of
`__share_group_state`. This node's own coordinator is called directly, others over connections
between brokers. A request is retried while the coordinator moves, loads or cannot be reached, with
a delay that doubles; the number of attempts is limited. Kafka begins with a second; kwire retries
sooner, because a new coordinator has usually loaded its partition by then. A retried write may be
applied twice, which changes nothing.
"""

from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, Final, Generic, NamedTuple, Protocol, TypeAlias, TypeVar

import attrs

from kwire.drive import run_together, wait_seconds
from kwire.errors import (
    NONE,
    CoordinatorLoadInProgress,
    CoordinatorNotAvailable,
    KafkaError,
    NetworkException,
    NotCoordinator,
    RequestTimedOut,
    UnknownTopicOrPartition,
)
from kwire.share.keys import SharePartition
from kwire.share.persister import InitialState, ReadState, StateBatch, Summary
from kwire.share.state import messages
from kwire.share.state.coordinator import ShareCoordinator
from kwire.share.state.messages import Items, Results
from kwire.share.state.model import StateWrite
from kwire.share.state.requests import Nursery, StateRequests

if TYPE_CHECKING:
    from kwire.codec.schema import Request

Req = TypeVar("Req")
R = TypeVar("R")
Resp = TypeVar("Resp")
# Any: each operation has its own types of requests and responses.
Message: TypeAlias = Any

_ATTEMPTS: Final = 10
_RETRY_SECONDS: Final = 0.1
_RETRY_MAX_SECONDS: Final = 5.0
_RETRIABLE: Final = (
    CoordinatorLoadInProgress,
    CoordinatorNotAvailable,
    NetworkException,
    NotCoordinator,
    RequestTimedOut,
    UnknownTopicOrPartition,  # The coordinator's metadata may be behind.
)


class Cluster(Protocol):
    """The brokers of the cluster, through which a persister reaches the share coordinators."""

    @property
    def node(self) -> int:
        """This broker's id."""

    def coordinator(self) -> ShareCoordinator:
        """Return this node's share coordinator."""

    def coordinator_of(self, of: SharePartition) -> int | None:
        """Return the broker that coordinates a share partition; None if there is none now."""

    async def create_topic(self) -> None:
        """Create `__share_group_state` unless it exists; raises KafkaError."""

    async def call(self, broker: int, request: "Request[Resp]") -> Resp:
        """Return another broker's answer; raises KafkaError if there is none."""


class _Operation(NamedTuple, Generic[Req, R]):
    """One of the five operations, as a call of this node's coordinator, or as messages."""

    perform: Callable[[ShareCoordinator, Items[Req]], Awaitable[Results[R]]]
    request: Callable[[str, Mapping[SharePartition, Req]], "Request[Message]"]
    results: Callable[[str, Message], Results[R]]


_INITIALIZE: Final = _Operation[InitialState, None](
    ShareCoordinator.initialize, messages.initialize_request, messages.failures
)
_READ: Final = _Operation[int, ReadState](
    ShareCoordinator.read, messages.read_request, messages.read_results
)
_WRITE: Final = _Operation[StateWrite, None](
    ShareCoordinator.write, messages.write_request, messages.failures
)
_DELETE: Final = _Operation[None, None](
    ShareCoordinator.delete, messages.delete_request, messages.failures
)
_SUMMARIES: Final = _Operation[None, Summary](
    ShareCoordinator.summaries, messages.summary_request, messages.summary_results
)


class CoordinatorPersister:
    """Stores the states of share partitions with the share coordinators."""

    def __init__(self, cluster: Cluster, nursery: Nursery) -> None:
        self._initialize = _Asker(_INITIALIZE, cluster, nursery)
        self._read = _Asker(_READ, cluster, nursery)
        self._write = _Asker(_WRITE, cluster, nursery)
        self._delete = _Asker(_DELETE, cluster, nursery)
        self._summaries = _Asker(_SUMMARIES, cluster, nursery)

    async def initialize(
        self, group_id: str, topic_id: bytes, states: Mapping[int, InitialState]
    ) -> dict[int, int]:
        results = await self._initialize.ask(group_id, topic_id, states)
        return {partition: _code(result) for partition, result in results.items()}

    async def read(
        self, group_id: str, topic_id: bytes, partition: int, leader_epoch: int
    ) -> ReadState:
        results = await self._read.ask(group_id, topic_id, {partition: leader_epoch})
        result = results[partition]
        return result if isinstance(result, ReadState) else ReadState(_code(result))

    async def write(
        self,
        group_id: str,
        topic_id: bytes,
        partition: int,
        state_epoch: int,
        leader_epoch: int,
        start_offset: int,
        delivery_complete_count: int,
        batches: Sequence[StateBatch],
    ) -> int:
        write = StateWrite(
            state_epoch, leader_epoch, start_offset, delivery_complete_count, batches
        )
        results = await self._write.ask(group_id, topic_id, {partition: write})
        return _code(results[partition])

    async def delete(
        self, group_id: str, topic_id: bytes, partitions: Collection[int]
    ) -> dict[int, int]:
        results = await self._delete.ask(group_id, topic_id, dict.fromkeys(partitions))
        return {partition: _code(result) for partition, result in results.items()}

    async def summaries(
        self, group_id: str, topic_id: bytes, partitions: Collection[int]
    ) -> dict[int, Summary]:
        results = await self._summaries.ask(group_id, topic_id, dict.fromkeys(partitions))
        return {
            partition: result if isinstance(result, Summary) else Summary(_code(result))
            for partition, result in results.items()
        }


def _code(result: object) -> int:
    return result.code if isinstance(result, KafkaError) else NONE


@attrs.define(eq=False, repr=False)
class _Asker(Generic[Req, R]):
    """The requests of one operation: finds the coordinators, sends requests and retries."""

    operation: _Operation[Req, R]
    cluster: Cluster
    nursery: Nursery
    _requests: StateRequests[Req, R] = attrs.field(init=False)

    def __attrs_post_init__(self) -> None:
        self._requests = StateRequests(self._send, self.nursery)

    async def ask(
        self, group_id: str, topic_id: bytes, requests: Mapping[int, Req]
    ) -> dict[int, R | KafkaError]:
        """Return the result of each partition, or its error if retries do not help."""
        remaining = {SharePartition(group_id, topic_id, p): requests[p] for p in requests}
        results: dict[SharePartition, R | KafkaError] = {}
        for attempt in range(_ATTEMPTS):
            if attempt:
                await wait_seconds(min(_RETRY_SECONDS * 2 ** (attempt - 1), _RETRY_MAX_SECONDS))
            results |= await self._ask_once(group_id, remaining)
            remaining = {
                of: request
                for of, request in remaining.items()
                if isinstance(results[of], _RETRIABLE)
            }
            if not remaining:
                break
        return {of.partition: result for of, result in results.items()}

    async def _ask_once(
        self, group_id: str, requests: Mapping[SharePartition, Req]
    ) -> dict[SharePartition, R | KafkaError]:
        by_broker: dict[int | None, dict[SharePartition, Req]] = {}
        for of, request in requests.items():
            by_broker.setdefault(self.cluster.coordinator_of(of), {})[of] = request
        answers = await run_together(
            [partial(self._ask_broker, broker, group_id, of) for broker, of in by_broker.items()]
        )
        return {of: result for answer in answers for of, result in answer.items()}

    async def _ask_broker(
        self, broker: int | None, group_id: str, requests: Mapping[SharePartition, Req]
    ) -> Results[R]:
        if broker is None:
            return dict.fromkeys(requests, await self._create_topic())
        if broker == self.cluster.node:
            return await self.operation.perform(self.cluster.coordinator(), iter(requests.items()))
        return await self._requests.ask(broker, group_id, requests)

    async def _create_topic(self) -> KafkaError:
        """Create the topic on first use; return the error with which to retry."""
        try:
            await self.cluster.create_topic()
        except KafkaError as error:
            return CoordinatorNotAvailable(error.text)
        return CoordinatorNotAvailable()

    async def _send(
        self, broker: int, group_id: str, requests: Mapping[SharePartition, Req]
    ) -> Results[R]:
        request = self.operation.request(group_id, requests)
        return self.operation.results(group_id, await self.cluster.call(broker, request))
