"""Transactional producers of the simulated cluster: begin, produce, commit offsets, commit, abort.

A producer acts as a client of `transaction.version` 2, whose records add partitions, or as an older
client. It may leave a transaction open, and then time out or restart. It may also send late records
and transaction ends of a former incarnation, which must all be rejected (invariants 54, 55 and 57).
"""

from collections.abc import Awaitable, Callable
from functools import partial
from typing import Final, TypeAlias

import attrs
import trio

from kwire import errors
from kwire.codec.messages.add_offsets_to_txn import AddOffsetsToTxnRequest
from kwire.codec.messages.add_partitions_to_txn import (
    AddPartitionsToTxnRequest,
    AddPartitionsToTxnTopic,
)
from kwire.codec.messages.end_txn import EndTxnRequest
from kwire.codec.messages.init_producer_id import InitProducerIdRequest
from kwire.codec.messages.txn_offset_commit import TxnOffsetCommitRequest
from kwire.coordinator.partitioning import partition_for
from kwire.records.build import New, batch
from kwire.storage_format.format import TRANSACTION_VERSION
from kwire.types import TRANSACTION_STATE
from simulation.replication.checks import TOPIC
from simulation.replication.clients import RETRIABLE, TIME_MS, VALUE_BYTES, SimClient
from simulation.replication.consumers import fetch_offset
from simulation.replication.fencing import Beginning, LastBatch, check_refusal
from simulation.replication.history import Outcome, SimTransaction, demand
from simulation.replication.settings import TIMEOUT_MS, TRANSACTION_PARTITIONS

Attempt: TypeAlias = Callable[[], Awaitable[int]]
"""A request that returns an error code."""
_ATTEMPTS: Final = 15
_UNKNOWN: Final = -99
_NEW_LEVEL: Final = 2
"""The `transaction.version` from which clients let brokers add partitions to transactions."""


class GivenUp(Exception):
    """Raised when the transaction cannot continue and its producer must restart."""


@attrs.define(eq=False)
class TransactionalProducer(SimClient):
    """The producer with one transactional id, which runs one transaction at a time."""

    name: str = ""
    done: list[SimTransaction] = attrs.field(factory=list)
    committed_offset: int = -1
    """The group offset of the last transaction that is certainly committed."""
    is_ending: bool = False
    """True once the producer must not start another transaction."""
    has_ended: bool = False
    _producer: tuple[int, int] = (-1, -1)
    _former: dict[tuple[int, int], dict[int, int]] = attrs.field(factory=dict)
    """By fenced producer (id, epoch): the next sequence for each partition."""
    _sequences: dict[int, int] = attrs.field(factory=dict)
    _sent: dict[int, int] = attrs.field(factory=dict)
    """By partition: the sequence after the last sent record, whether acknowledged or not."""
    _offsets: dict[int, int] = attrs.field(factory=dict)
    """By partition: the offset of the producer's last acknowledged batch."""
    _is_new: bool = True
    """True if the producer acts as a client of `transaction.version` 2."""
    _count: int = 0
    _begun: Beginning = attrs.field(factory=lambda: Beginning(0.0, -1))

    @property
    def group(self) -> str:
        return f"group-of-{self.name}"

    async def run(self) -> None:
        """Run transactions, restarting after errors, until the producer must end."""
        while not self.is_ending:
            await self._start()
            try:
                while not self.is_ending:
                    await self._transact()
            except GivenUp:
                await self.pause()
        await self._start()  # Fences and ends what may still be open.
        self.has_ended = True

    # -- requests

    def _coordinator(self) -> int | None:
        index = partition_for(self.name, TRANSACTION_PARTITIONS)
        return self.leader_of(TRANSACTION_STATE, index)

    async def _start(self) -> None:
        """Get a producer id and epoch, which aborts a transaction that was left open."""
        request = InitProducerIdRequest(
            transactional_id=self.name, transaction_timeout_ms=TIMEOUT_MS
        )
        while True:
            answer = await self.call(self._coordinator(), request, version=5)
            if answer is not None and answer.error_code == errors.NONE:
                break
            code = _UNKNOWN if answer is None else answer.error_code
            demand(code in RETRIABLE, f"{self.name}: InitProducerId fails with {code}")
            await self.pause()
        if self._producer[0] >= 0:
            self._remember_producer()
        self._producer = answer.producer_id, answer.producer_epoch
        demand(self._producer not in self._former, f"{self.name}: {self._producer} is given twice")
        image = self.world.image(self.random)
        level = 0 if image is None else image.features.get(TRANSACTION_VERSION, 0)
        self._is_new = level >= _NEW_LEVEL and self.random.random() < 0.6

    async def _transact(self) -> None:
        await trio.sleep(self.random.uniform(0.0, 1.2))
        await self.rest()
        self._count += 1
        transaction = SimTransaction(f"{self.name}-{self._count}")
        self._begun = Beginning.now(self.world, self.name)
        self.done.append(transaction)
        try:
            await self._fill(transaction)
            if self.random.random() < 0.3 and self._former:
                await self._haunt()
            dice = self.random.random()
            if dice < 0.12:
                self.world.note(transaction.name, "is left open")
                if dice < 0.04:
                    await self._time_out(transaction)
                raise GivenUp
            await self._end(transaction, commit=self.random.random() < 0.7)
        finally:
            if transaction.outcome is Outcome.OPEN:
                transaction.outcome = Outcome.ABORTED
        if self.random.random() < 0.3:
            await self.check_offset()

    async def _fill(self, transaction: SimTransaction) -> None:
        count = self.world.partition_count
        indexes = self.random.sample(range(count), self.random.randint(1, min(3, count)))
        for index in indexes:
            if not self._is_new:
                await self._add_partition(index)
            for number in range(self.random.randint(1, 2)):
                value = f"{transaction.name}/{index}/{number}".encode().ljust(VALUE_BYTES)
                self.world.history.transactions[value] = transaction
                await self._produce(transaction, index, value)
        if self.random.random() < 0.4:
            await self._commit_offset(transaction)

    async def _insist(self, attempt: Attempt, after: LastBatch | None = None) -> None:
        """Retry a request until it succeeds; raises GivenUp if it is rejected or unanswered."""
        for _ in range(_ATTEMPTS):
            code = await attempt()
            if code == errors.NONE:
                return
            if code not in RETRIABLE:
                self.world.note(self.name, "is refused with", code)
                check_refusal(self.world, self.name, self._producer, code, self._begun, after)
                break
            await self.pause()
        raise GivenUp

    async def _add_partition(self, index: int) -> None:
        producer_id, epoch = self._producer
        request = AddPartitionsToTxnRequest(
            v3_and_below_transactional_id=self.name,
            v3_and_below_producer_id=producer_id,
            v3_and_below_producer_epoch=epoch,
            v3_and_below_topics=[AddPartitionsToTxnTopic(name=TOPIC, partitions=[index])],
        )

        async def attempt() -> int:
            answer = await self.call(self._coordinator(), request, version=3)
            if answer is None:
                return _UNKNOWN
            (result,) = answer.results_by_topic_v3_and_below[0].results_by_partition
            return int(result.partition_error_code)

        await self._insist(attempt)

    async def _produce(self, transaction: SimTransaction, index: int, value: bytes) -> None:
        sequence = self._sequences.get(index, 0)
        self._sent[index] = sequence + 1
        attempt = partial(self._send, self._producer, index, value, sequence)
        await self._insist(attempt, LastBatch(index, self._offsets.get(index, -1)))
        self._sequences[index] = sequence + 1
        transaction.values.append((index, value))

    async def _send(
        self, producer: tuple[int, int], index: int, value: bytes, sequence: int
    ) -> int:
        data = batch(
            [New(None, value)],
            timestamp_ms=TIME_MS,
            producer_id=producer[0],
            producer_epoch=producer[1],
            base_sequence=sequence,
            transactional=True,
        )
        version = 12 if self._is_new else 10
        code, base_offset = await self.send(
            index, data, version=version, transactional_id=self.name
        )
        if code == errors.NONE:
            self.world.history.on_acknowledged(index, base_offset, [value])
            self._offsets[index] = base_offset
        return code

    async def _commit_offset(self, transaction: SimTransaction) -> None:
        producer_id, epoch = self._producer
        if not self._is_new:
            await self._insist(self._add_offsets)
        topic = TxnOffsetCommitRequest.TxnOffsetCommitRequestTopic
        partition = topic.TxnOffsetCommitRequestPartition(
            partition_index=0, committed_offset=self._count, committed_metadata=None
        )
        request = TxnOffsetCommitRequest(
            transactional_id=self.name,
            group_id=self.group,
            producer_id=producer_id,
            producer_epoch=epoch,
            topics=[topic(name=TOPIC, partitions=[partition])],
        )

        async def attempt() -> int:
            version = 5 if self._is_new else 3
            answer, _ = await self.call_coordinator(self.group, request, version=version)
            return _UNKNOWN if answer is None else answer.topics[0].partitions[0].error_code

        await self._insist(attempt)
        transaction.offset = self._count

    async def _add_offsets(self) -> int:
        producer_id, epoch = self._producer
        request = AddOffsetsToTxnRequest(
            transactional_id=self.name,
            producer_id=producer_id,
            producer_epoch=epoch,
            group_id=self.group,
        )
        answer = await self.call(self._coordinator(), request, version=3)
        return _UNKNOWN if answer is None else int(answer.error_code)

    async def _end(self, transaction: SimTransaction, *, commit: bool) -> None:
        if commit:
            transaction.outcome = Outcome.COMMITTING
        await self._insist(partial(self._ask_end, self._producer, commit))
        if commit:
            self._on_committed(transaction)
        else:
            transaction.outcome = Outcome.ABORTED
        self.world.note(transaction.name, transaction.outcome.name)

    def _on_committed(self, transaction: SimTransaction) -> None:
        transaction.outcome = Outcome.COMMITTED
        if transaction.offset is not None:
            self.committed_offset = transaction.offset

    async def _ask_end(self, producer: tuple[int, int], commit: bool) -> int:
        request = EndTxnRequest(
            transactional_id=self.name,
            producer_id=producer[0],
            producer_epoch=producer[1],
            committed=commit,
        )
        answer = await self.call(self._coordinator(), request, version=5 if self._is_new else 4)
        if answer is None:
            return _UNKNOWN
        if answer.error_code == errors.NONE and self._is_new and producer == self._producer:
            self._take(answer.producer_id, answer.producer_epoch)
        return int(answer.error_code)

    def _take(self, producer_id: int, epoch: int) -> None:
        """Continue with the producer id and epoch returned by the end of a transaction."""
        demand((producer_id, epoch) != self._producer, f"{self.name}: no epoch bump: {epoch}")
        self._remember_producer()
        self._producer = producer_id, epoch

    def _remember_producer(self) -> None:
        """Remember the last four former producers; the next producer's sequences restart."""
        self._former[self._producer] = dict(self._sent)
        for producer in list(self._former)[:-4]:
            del self._former[producer]
        for by_partition in (self._sequences, self._sent, self._offsets):
            by_partition.clear()

    # -- checks

    async def check_offset(self) -> bool:
        """Fetch the group's offset and check it; return whether a coordinator answered."""
        least = self.committed_offset
        offset = await fetch_offset(self, self.group, is_stable=True)
        if offset is None:
            return False
        visible = [
            transaction.offset
            for transaction in self.done
            if transaction.outcome in (Outcome.COMMITTING, Outcome.COMMITTED)
        ]
        demand(
            offset >= least and offset in (-1, *visible),
            f"{self.group}: committed is {offset}, at least {least} was, of {visible}",
        )
        return True

    def check_visible(self, visible: dict[bytes, int]) -> None:
        """Check that each transaction is wholly visible or not at all, given each value's count."""
        for transaction in self.done:
            counts = [visible.get(value, 0) for _, value in transaction.values]
            where = f"{transaction.name} {transaction.outcome.name} {transaction.values}: {counts}"
            match transaction.outcome:
                case Outcome.COMMITTED:
                    demand(all(count == 1 for count in counts), where)
                case Outcome.COMMITTING:
                    demand(set(counts) in ({0}, {1}, set()), where)
                case _:
                    demand(not any(counts), where)

    # -- what must be refused

    async def _time_out(self, transaction: SimTransaction) -> None:
        """Wait until the coordinator has aborted the transaction; its commit must then fail."""
        await trio.sleep(TIMEOUT_MS / 1000 + 4)
        if not transaction.values:
            return
        code = await self._ask_end(self._producer, commit=True)
        if code == errors.NONE:  # The coordinator may have been unable to abort it until now.
            self._on_committed(transaction)
        elif code in RETRIABLE:
            transaction.outcome = Outcome.COMMITTING

    async def _haunt(self) -> None:
        """Send new records that a former incarnation of this producer might send late.

        A retry of an old batch would not be rejected but get the response to the first attempt.
        """
        former, sequences = self.random.choice(list(self._former.items()))
        if self.random.random() < 0.5:
            index = self.random.randrange(self.world.partition_count)
            late = SimTransaction(f"{self.name}-late", outcome=Outcome.ABORTED)
            value = f"{self.name}-late-{self._count}".encode().ljust(VALUE_BYTES)
            self.world.history.transactions[value] = late
            code = await self._send(former, index, value, sequences.get(index, 0))
        else:
            code = await self._ask_end(former, commit=self.random.random() < 0.5)
        demand(code != errors.NONE, f"{self.name}: what {former} sends late is accepted")
