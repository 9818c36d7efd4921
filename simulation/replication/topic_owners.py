"""Administrators of the simulated cluster: each creates, alters, expands and deletes its own topic.

A client retries a request at another broker until a broker answers, so the request may be executed
more than once, or late by a broker that was paused. Every response is checked (invariant 48): the
change that it confirms, or the state that it reports, was committed at some time after the first
attempt began.
"""

from collections.abc import Callable, Sequence
from typing import Final, Protocol, TypeVar

import attrs
import trio

from kwire import errors
from kwire.codec.frame import Body
from kwire.codec.messages.create_partitions import CreatePartitionsRequest
from kwire.codec.messages.create_topics import CreateTopicsRequest
from kwire.codec.messages.delete_topics import DeleteTopicsRequest
from kwire.codec.messages.incremental_alter_configs import IncrementalAlterConfigsRequest
from kwire.configs.resource_types import TOPIC
from simulation.replication.clients import SimClient
from simulation.replication.history import demand
from simulation.replication.metadata_checks import Change, Created, Expanded, Removed, Set
from simulation.replication.settings import REPLICAS

SETTING: Final = "retention.ms"
PACE: Final = 0.7
"""The approximate number of changes per second."""
_SET: Final = 0
_TIMEOUT_MS: Final = 3_000
_AGAIN: Final = frozenset(
    error.code
    for error in (
        errors.NotController,
        errors.RequestTimedOut,
        errors.InvalidReplicationFactor,  # Too few brokers are unfenced now.
    )
)
"""The error codes after which an administrator retries."""


class Result(Protocol):
    """The result of one topic or setting in a response."""

    error_code: int


ResultT = TypeVar("ResultT", bound=Result)


@attrs.define(eq=False)
class TopicOwner(SimClient):
    """One administrator, who sends one request at a time."""

    name: str
    answer_count: int = 0
    _value: int = 1_000

    async def run(self) -> None:
        """Create, alter and delete the topic repeatedly until cancelled."""
        while True:
            await self._create()
            for _ in range(self.random.randrange(8)):
                await self._alter()
                await trio.sleep(self.random.expovariate(PACE))
            if self.random.random() < 0.3:
                await self._expand()
            if self.random.random() < 0.5:
                await self._delete()
            await trio.sleep(self.random.expovariate(PACE))

    async def _insist(
        self, request: Body, results: Callable[[Body], Sequence[ResultT]]
    ) -> tuple[ResultT, "_Since"]:
        """Retry a request with one item until a broker answers.

        Return the item's result, and the changes committed since the first attempt.
        """
        since = _Since(self)
        while True:
            answer = await self.call(self.any_broker(), request)
            if answer is not None:
                (result,) = results(answer)
                if result.error_code not in _AGAIN:
                    self.answer_count += 1
                    self.world.note(self.name, type(answer).__name__, result.error_code)
                    return result, since
            await self.pause()

    def _demand(self, condition: bool, answer: str) -> None:
        demand(condition, f"{self.name}: the answer is {answer}, but that was never committed")

    async def _create(self) -> None:
        topic = CreateTopicsRequest.CreatableTopic
        creatable = topic(name=self.name, num_partitions=1, replication_factor=REPLICAS)
        request = CreateTopicsRequest(topics=[creatable], timeout_ms=_TIMEOUT_MS)
        result, since = await self._insist(request, lambda answer: answer.topics)
        if result.error_code == errors.NONE:
            created = Created(self.name, result.topic_id)
            self._demand(created in since.changes(), "that the topic is created")
        else:
            self._demand(
                result.error_code == errors.TopicAlreadyExists.code and since.was_present(),
                f"{result.error_code} to the creation",
            )

    async def _alter(self) -> None:
        self._value += 1
        resource = IncrementalAlterConfigsRequest.AlterConfigsResource
        value = str(self._value)
        change = resource.AlterableConfig(name=SETTING, config_operation=_SET, value=value)
        request = IncrementalAlterConfigsRequest(
            resources=[resource(resource_type=TOPIC, resource_name=self.name, configs=[change])],
            validate_only=False,
        )
        result, since = await self._insist(request, lambda answer: answer.responses)
        if result.error_code == errors.NONE:
            is_set = Set(self.name, SETTING, value) in since.changes()
            self._demand(is_set, "that the setting is altered")
        else:
            self._demand_absent(result.error_code, since, "an alteration")

    async def _expand(self) -> None:
        topic = self.world.books.image.topic(self.name)
        count = 2 if topic is None else 1 + len(topic.partitions)
        expansion = CreatePartitionsRequest.CreatePartitionsTopic(
            name=self.name, count=count, assignments=None
        )
        request = CreatePartitionsRequest(
            topics=[expansion], timeout_ms=_TIMEOUT_MS, validate_only=False
        )
        result, since = await self._insist(request, lambda answer: answer.results)
        if result.error_code in (errors.NONE, errors.InvalidPartitions.code):
            is_expanded = Expanded(self.name, count) in since.changes()
            self._demand(is_expanded, f"{result.error_code} to {count} partitions")
        else:
            self._demand_absent(result.error_code, since, "an expansion")

    async def _delete(self) -> None:
        state = DeleteTopicsRequest.DeleteTopicState(name=self.name)
        request = DeleteTopicsRequest(topics=[state], timeout_ms=_TIMEOUT_MS)
        result, since = await self._insist(request, lambda answer: answer.responses)
        if result.error_code == errors.NONE:
            self._demand(Removed(self.name) in since.changes(), "that the topic is deleted")
        else:
            self._demand_absent(result.error_code, since, "a deletion")

    def _demand_absent(self, code: int, since: "_Since", what: str) -> None:
        is_true = code == errors.UnknownTopicOrPartition.code and since.was_absent()
        self._demand(is_true, f"{code} to {what}")


class _Since:
    """The committed changes of an administrator's topic since a given moment."""

    def __init__(self, owner: TopicOwner) -> None:
        self._books, self._name = owner.world.books, owner.name
        self._first = len(self._books.changes)
        self._was_present = self._books.image.topic(owner.name) is not None

    def changes(self) -> Sequence[Change]:
        return self._books.changes[self._first :]

    def was_present(self) -> bool:
        """Return whether the topic existed at some time since then."""
        created = (c for c in self.changes() if isinstance(c, Created))
        return self._was_present or any(change.topic == self._name for change in created)

    def was_absent(self) -> bool:
        """Return whether the topic was missing at some time since then."""
        return not self._was_present or Removed(self._name) in self.changes()
