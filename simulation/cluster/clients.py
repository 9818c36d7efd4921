"""Clients of a simulated cluster: each owns one topic name; creates, alters and deletes that topic.

A client repeats a request at another broker until one answers, so the request may be carried out
more than once. When the answer comes, the books' committed log must contain the requested change.
"""

from collections.abc import Callable, Sequence
from contextlib import suppress
from random import Random
from typing import Final, Protocol, TypeVar

import trio

from kwire import attrs, errors
from kwire.codec.messages.create_partitions import CreatePartitionsRequest
from kwire.codec.messages.create_topics import CreateTopicsRequest
from kwire.codec.messages.delete_topics import DeleteTopicsRequest
from kwire.codec.messages.incremental_alter_configs import IncrementalAlterConfigsRequest
from kwire.configs.resource_types import TOPIC
from kwire.net.connection_pool import OutOfReach
from kwire.raftmeta.controller.configs import decide_incremental_alter
from kwire.raftmeta.controller.service import Decide
from kwire.raftmeta.controller.topics import (
    decide_create_partitions,
    decide_create_topics,
    decide_delete_topics,
)
from simulation.cluster.checks import Books, setting
from simulation.cluster.node import Process

SETTING: Final = "retention.ms"
PATIENCE_S: Final = (1.0, 15.0)
"""The minimum and maximum time that a client waits before it asks another broker."""
_AGAIN: Final = frozenset(
    (
        errors.NotController.code,
        errors.InvalidReplicationFactor.code,  # No broker is unfenced at the moment.
        errors.RequestTimedOut.code,
    )
)


class Result(Protocol):
    """The result of one topic or setting in a response."""

    error_code: int


Q = TypeVar("Q")
R = TypeVar("R")
ResultT = TypeVar("ResultT", bound=Result)


@attrs.define(eq=False)
class Client:
    """One client, with one request at a time."""

    name: str
    random: Random
    books: Books
    brokers: Callable[[], list[Process]]
    """Returns the brokers that take requests at the moment."""
    acknowledged: int = 0
    _value: int = 1000

    async def run(self) -> None:
        """Create, alter and delete the topic repeatedly until cancelled."""
        while True:
            await self._create()
            for _ in range(self.random.randrange(3)):
                await self._alter()
            if self.random.random() < 0.5:
                await self._grow()
            if self.random.random() < 0.7:
                await self._delete()
            await trio.sleep(self.random.random())

    async def _insist(
        self,
        decide: "Decide[Q, R]",
        request: Q,
        results: Callable[[R], Sequence[ResultT]],
    ) -> ResultT:
        """Repeat a request with one item until a broker answers; return the item's result."""
        while True:
            brokers = self.brokers()
            if brokers:
                with trio.move_on_after(self.random.uniform(*PATIENCE_S)):
                    broker = self.random.choice(brokers)
                    with suppress(OutOfReach, errors.KafkaError):
                        reply = await broker.ask_for_client(decide, request)
                        (result,) = results(reply)
                        if result.error_code not in _AGAIN:
                            self.acknowledged += 1
                            return result
            await trio.sleep(0.05 + 0.2 * self.random.random())

    def _demand(self, what: object, text: str) -> None:
        if not what:
            self.books.fail(f"{self.name}: {text}, though the log says otherwise")

    async def _create(self) -> None:
        if self.books.image.topic(self.name) is not None:
            return
        creatable = CreateTopicsRequest.CreatableTopic
        topic = creatable(name=self.name, num_partitions=2, replication_factor=1)
        request = CreateTopicsRequest(topics=[topic], timeout_ms=1000)
        result = await self._insist(decide_create_topics, request, lambda r: r.topics)
        created, code = self.books.image.topic(self.name), result.error_code
        if code == errors.NONE:
            has_id = created is not None and created.id == result.topic_id
            self._demand(has_id, "created is the answer")
        else:
            self._demand(code == errors.TopicAlreadyExists.code, f"creation fails with {code}")
            self._demand(created is not None, "there already is the answer")

    async def _alter(self) -> None:
        self._value += 1
        resource = IncrementalAlterConfigsRequest.AlterConfigsResource
        change = resource.AlterableConfig(name=SETTING, config_operation=0, value=str(self._value))
        request = IncrementalAlterConfigsRequest(
            resources=[resource(resource_type=TOPIC, resource_name=self.name, configs=[change])],
            validate_only=False,
        )
        result = await self._insist(decide_incremental_alter, request, lambda r: r.responses)
        code = result.error_code
        self._demand(code == errors.NONE, f"altering fails with {code}")
        is_set = setting(self.books.image, self.name, SETTING) == str(self._value)
        self._demand(is_set, "altered is the answer")

    async def _grow(self) -> None:
        topic = self.books.image.topic(self.name)
        count = 1 + len(topic.partitions) if topic is not None else 3
        growth = CreatePartitionsRequest.CreatePartitionsTopic(
            name=self.name, count=count, assignments=None
        )
        request = CreatePartitionsRequest(topics=[growth], timeout_ms=1000, validate_only=False)
        result = await self._insist(decide_create_partitions, request, lambda r: r.results)
        code = result.error_code
        self._demand(
            code in (errors.NONE, errors.InvalidPartitions.code), f"growing fails with {code}"
        )
        topic = self.books.image.topic(self.name)
        has_grown = topic is not None and len(topic.partitions) == count
        self._demand(has_grown, "grown is the answer")

    async def _delete(self) -> None:
        state = DeleteTopicsRequest.DeleteTopicState(name=self.name)
        request = DeleteTopicsRequest(topics=[state], timeout_ms=1000)
        result = await self._insist(decide_delete_topics, request, lambda r: r.responses)
        code = result.error_code
        expected_codes = (errors.NONE, errors.UnknownTopicOrPartition.code)
        self._demand(code in expected_codes, f"deletion fails with {code}")
        self._demand(self.books.image.topic(self.name) is None, "deleted is the answer")
