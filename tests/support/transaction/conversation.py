"""Conversations with a transaction coordinator, as text that a recording is compared with.

One line is a request and its answer.  Producer ids are written p0, p1 ... in the order in which
they appear; after each request the coordinator's state is shown once no markers are missing.
"""

from collections.abc import Awaitable, Callable, Sequence
from typing import Any

import attrs
import trio

from kwire.codec.messages.add_offsets_to_txn import AddOffsetsToTxnRequest
from kwire.codec.messages.add_partitions_to_txn import (
    AddPartitionsToTxnRequest,
    AddPartitionsToTxnTopic,
)
from kwire.codec.messages.describe_transactions import DescribeTransactionsRequest
from kwire.codec.messages.end_txn import EndTxnRequest
from kwire.codec.messages.init_producer_id import InitProducerIdRequest
from kwire.codec.messages.list_transactions import ListTransactionsRequest
from kwire.errors import BY_CODE, kafka_name

Call = Callable[[Any, int], Awaitable[Any]]
"""Sends a request in a version and returns the answer."""


def error_name(code: int) -> str:
    return "NONE" if code == 0 else kafka_name(BY_CODE[code])


@attrs.define
class Conversation:
    """One client's requests about transactional ids, with their answers as lines."""

    call: Call
    sleep: Callable[[float], Awaitable[None]] = trio.sleep
    bump: Callable[[str, int], Awaitable[tuple[int, int]]] | None = None
    """Moves an id to an epoch; by default InitProducerId does, many times."""
    lines: list[str] = attrs.field(factory=list)
    producers: list[int] = attrs.field(factory=list)

    def comment(self, text: str) -> None:
        self.lines.append(f"# {text}")

    async def init(
        self,
        name: str,
        *,
        version: int = 5,
        timeout_ms: int = 60_000,
        producer: tuple[int, int] | None = None,
    ) -> tuple[int, int]:
        """InitProducerId; return the producer id and epoch."""
        request = InitProducerIdRequest(transactional_id=name, transaction_timeout_ms=timeout_ms)
        text = f"init.{version} {name}"
        if timeout_ms != 60_000:
            text += f" timeout={timeout_ms}"
        if producer is not None:
            request.producer_id, request.producer_epoch = producer
            text += f" as {self._producer(*producer)}"
        reply = await self.call(request, version)
        answer = error_name(reply.error_code)
        self._say(text, f"{answer} {self._producer(reply.producer_id, reply.producer_epoch)}")
        await self.show(name)
        return reply.producer_id, reply.producer_epoch

    async def bump_to(self, name: str, epoch: int) -> tuple[int, int]:
        """Move an id to an epoch; return the producer."""
        self.comment(f"at epoch {epoch}")
        if self.bump is not None:
            return await self.bump(name, epoch)
        request = InitProducerIdRequest(transactional_id=name, transaction_timeout_ms=60_000)
        while (reply := await self.call(request, 5)).producer_epoch < epoch:
            pass
        return reply.producer_id, reply.producer_epoch

    async def add(
        self,
        name: str,
        producer: tuple[int, int],
        partitions: Sequence[tuple[str, int]],
        *,
        version: int = 5,
        verify: bool = False,
    ) -> None:
        """AddPartitionsToTxn, from version 4 on as brokers send it."""
        topics: dict[str, AddPartitionsToTxnTopic] = {}
        for topic, index in partitions:
            topics.setdefault(topic, AddPartitionsToTxnTopic(name=topic)).partitions.append(index)
        request = AddPartitionsToTxnRequest()
        if version < 4:
            request.v3_and_below_transactional_id = name
            request.v3_and_below_producer_id, request.v3_and_below_producer_epoch = producer
            request.v3_and_below_topics = list(topics.values())
        else:
            shape = AddPartitionsToTxnRequest.AddPartitionsToTxnTransaction
            request.transactions = [
                shape(
                    transactional_id=name,
                    producer_id=producer[0],
                    producer_epoch=producer[1],
                    verify_only=verify,
                    topics=list(topics.values()),
                )
            ]
        reply = await self.call(request, version)
        results = list(reply.results_by_topic_v3_and_below)
        for transaction in reply.results_by_transaction:
            results += transaction.topic_results
        answers = sorted(
            f"{topic.name}-{partition.partition_index}={error_name(partition.partition_error_code)}"
            for topic in results
            for partition in topic.results_by_partition
        )
        kind = "verify" if verify else "add"
        targets = ",".join(f"{topic}-{index}" for topic, index in partitions)
        text = f"{kind}.{version} {name} as {self._producer(*producer)} {targets}"
        self._say(text, " ".join([error_name(reply.error_code), *answers]))
        await self.show(name)

    async def add_offsets(
        self, name: str, producer: tuple[int, int], group: str, *, version: int = 4
    ) -> None:
        request = AddOffsetsToTxnRequest(
            transactional_id=name,
            producer_id=producer[0],
            producer_epoch=producer[1],
            group_id=group,
        )
        reply = await self.call(request, version)
        text = f"offsets.{version} {name} as {self._producer(*producer)} {group}"
        self._say(text, error_name(reply.error_code))
        await self.show(name)

    async def end(
        self, name: str, producer: tuple[int, int], *, commit: bool, version: int = 5
    ) -> tuple[int, int]:
        """EndTxn; return the producer id and epoch of the answer."""
        request = EndTxnRequest(
            transactional_id=name,
            producer_id=producer[0],
            producer_epoch=producer[1],
            committed=commit,
        )
        reply = await self.call(request, version)
        kind = "commit" if commit else "abort"
        answer = error_name(reply.error_code)
        if version >= 5:
            answer += f" {self._producer(reply.producer_id, reply.producer_epoch)}"
        self._say(f"{kind}.{version} {name} as {self._producer(*producer)}", answer)
        await self.show(name)
        return reply.producer_id, reply.producer_epoch

    async def list_(self, version: int = 2, **filters: Any) -> None:
        reply = await self.call(ListTransactionsRequest(**filters), version)
        states = sorted(
            f"{state.transactional_id}={state.transaction_state}"
            for state in reply.transaction_states
        )
        settings = " ".join(f"{name}={value}" for name, value in filters.items())
        unknown = sorted(reply.unknown_state_filters)
        answer = [error_name(reply.error_code), *states, *(f"unknown:{name}" for name in unknown)]
        self._say(f"list.{version} {settings}".strip(), " ".join(answer))

    async def show(self, name: str) -> None:
        """Show the state of an id once its markers are written."""
        while True:
            reply = await self.call(DescribeTransactionsRequest(transactional_ids=[name]), 0)
            (state,) = reply.transaction_states
            if not state.transaction_state.startswith("Prepare"):
                break
            await self.sleep(0.02)
        if state.error_code:
            self.lines.append(f"    {error_name(state.error_code)}")
            return
        partitions = sorted(
            f"{topic.topic}-{index}" for topic in state.topics for index in topic.partitions
        )
        started = "" if state.transaction_start_time_ms >= 0 else " not started"
        producer = self._producer(state.producer_id, state.producer_epoch)
        timeout = f"timeout={state.transaction_timeout_ms}{started}"
        words = ["   ", state.transaction_state, producer, timeout, *partitions]
        self.lines.append(" ".join(words))

    def _producer(self, producer_id: int, epoch: int) -> str:
        if producer_id < 0:
            return f"{producer_id}:{epoch}"
        if producer_id not in self.producers:
            self.producers.append(producer_id)
        return f"p{self.producers.index(producer_id)}:{epoch}"

    def _say(self, request: str, answer: str) -> None:
        self.lines.append(f"{request} -> {answer}")
