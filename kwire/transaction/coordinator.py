"""The transaction coordinator for the handlers: it finds an id's partition and calls its shard.

EndTxn is answered once its record is committed. Then the markers are sent; the transaction is
complete only when all its partitions have their marker. A coordinator that takes over does the same
for each transaction whose end is already decided.
"""

import logging
from collections.abc import Awaitable, Callable, Mapping, Sequence
from functools import partial
from itertools import islice
from typing import TYPE_CHECKING, Final, TypeVar

import attrs
import trio

from kwire.clock import Clock
from kwire.coordinator.decision import Decision, Moment, Opaque
from kwire.coordinator.listing import read_each
from kwire.coordinator.partitioning import partition_for
from kwire.coordinator.runtime import CoordinatorRuntime
from kwire.drive import Slices
from kwire.errors import (
    ConcurrentTransactions,
    CoordinatorLoadInProgress,
    InvalidTransactionTimeout,
    KafkaError,
    TransactionalIdNotFound,
)
from kwire.transaction.marker_sender import Brokers, MarkerSender, TransactionEnd
from kwire.transaction.model import Transaction
from kwire.transaction.settings import TransactionSettings
from kwire.transaction.shard import AddPartitions, EndTransaction, InitProducer, TransactionShard
from kwire.transaction.transitions import Producer, ProducerIdNeeded
from kwire.types import TRANSACTION_STATE, TopicPartition
from kwire.waits import Signal

if TYPE_CHECKING:
    from kwire.coordinator.ports import LedPartition, ShardLog

logger = logging.getLogger(__name__)

R = TypeVar("R")
Req = TypeVar("Req", InitProducer, EndTransaction)

_RETRY_SECONDS: Final = 0.5
_TAKEN_AT_ONCE: Final = 250
"""The most decided transactions that are passed to the sender in one step."""
_COMPLETED_AT_ONCE: Final = 50
"""The most transactions that one decision completes, 1.4 ms of work."""
NO_EPOCH: Final = -1


@attrs.define(kw_only=True, eq=False, repr=False)
class TransactionCoordinator:
    """The transactional ids of this node."""

    log: "ShardLog"
    clock: Clock
    brokers: Brokers
    settings: Callable[[], TransactionSettings]
    server_version: Callable[[], int]
    """Returns the finalized level of `transaction.version`."""
    partitions: Callable[[], int]
    """Returns the number of partitions that `__transaction_state` has or will be created with."""
    take_id: Callable[[], Awaitable[int]]
    """Returns a producer id that no producer uses."""
    service: CoordinatorRuntime[TransactionShard] = attrs.field(init=False)
    sender: MarkerSender = attrs.field(init=False)
    _epochs: dict[int, int] = attrs.field(factory=dict, init=False)
    """The leader epoch of each partition that this node leads."""
    _undispatched: set[int] = attrs.field(factory=set, init=False)
    """The partitions that have decided transactions whose markers are not being sent yet."""
    _dispatching: set[int] = attrs.field(factory=set, init=False)
    _has_undispatched: Signal = attrs.field(factory=Signal, init=False)
    _completions: dict[str, set[trio.Event]] = attrs.field(factory=dict, init=False)
    """The requests that wait for the markers of a transaction, by transactional id."""
    _timed_out: dict[str, None] = attrs.field(factory=dict, init=False)
    """The transactional ids whose timed-out transactions need a new producer id for their abort."""
    _has_timed_out: Signal = attrs.field(factory=Signal, init=False)

    def __attrs_post_init__(self) -> None:
        self.service = CoordinatorRuntime(
            topic=TRANSACTION_STATE,
            log=self.log,
            clock=self.clock,
            make=self._make_shard,
            commit_timeout_ms=lambda: self.settings().commit_timeout_ms,
        )
        self.sender = MarkerSender(
            brokers=self.brokers, is_current=self.is_current, on_written=self.complete
        )

    def _make_shard(self, index: int) -> TransactionShard:
        return TransactionShard(
            settings=self.settings,
            server_version=self.server_version,
            on_prepared=partial(self.on_prepared, index),
            on_completed=self.on_completed,
            on_id_needed=self.on_id_needed,
        )

    async def run(self, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Load partitions, handle deadlines and send markers, until cancelled."""
        async with trio.open_nursery() as nursery:
            await nursery.start(self.sender.run)
            await nursery.start(self.service.run)
            nursery.start_soon(self._dispatch_all, nursery)
            nursery.start_soon(self._abort_with_ids)
            task_status.started()

    def on_role_changed(self, partition: "LedPartition") -> None:
        """Load a partition that this broker now leads, or drop it; the replica layer calls this."""
        if partition.leader is not None:
            self._epochs[partition.partition] = partition.leader_epoch
            self.service.on_elected(partition.partition, partition.leader_epoch)
        else:
            self._epochs.pop(partition.partition, None)
            self.service.on_resigned(partition.partition)

    def partition_of(self, transactional_id: str) -> int:
        return partition_for(transactional_id, self.partitions())

    # Requests

    async def initialize(
        self, transactional_id: str, timeout_ms: int, expected: Producer | None
    ) -> Producer:
        """Return the identity of a starting producer; fence and abort its predecessor."""
        if not 0 < timeout_ms <= self.settings().max_timeout_ms:
            raise InvalidTransactionTimeout
        request = InitProducer(transactional_id, timeout_ms, expected)
        return await self._decide_with_id(request, TransactionShard.initialize)

    async def end(self, request: EndTransaction) -> Producer:
        """Commit or abort; return the identity of the producer for its next transaction."""
        return await self._decide_with_id(request, TransactionShard.end)

    async def add_partitions(self, request: AddPartitions, *, repeat: bool = True) -> None:
        """Add partitions to a transaction; the first ones start it.

        With ``repeat``, a request that finds that markers of the previous transaction are missing
        waits for them briefly and is then repeated once.
        """
        transactional_id = request.transactional_id

        def decide(shard: TransactionShard, moment: Moment, ticket: int) -> Decision:
            return shard.add_partitions(request, moment, ticket)

        try:
            await self._call(transactional_id, decide)
        except ConcurrentTransactions:
            if not repeat or not await self.wait_completed(transactional_id):
                raise
            await self._call(transactional_id, decide)

    async def wait_completed(self, transactional_id: str) -> bool:
        """Wait for the markers of an id's transaction; return False if they take too long."""
        event = trio.Event()
        waiting = self._completions.setdefault(transactional_id, set())
        waiting.add(event)
        try:
            with trio.move_on_after(self.settings().concurrent_wait_ms / 1000):
                await event.wait()
        finally:
            waiting.discard(event)
            if not waiting:
                self._completions.pop(transactional_id, None)
        return event.is_set()

    async def verify(
        self, transactional_id: str, producer: Producer, partitions: Sequence[TopicPartition]
    ) -> Mapping[TopicPartition, int]:
        """Return the error code of each partition, 0 if the partition is in the transaction."""
        return await self._read(
            transactional_id, lambda shard: shard.verify(transactional_id, producer, partitions)
        )

    async def describe(self, transactional_id: str) -> Transaction:
        transaction = await self._read(
            transactional_id, lambda shard: shard.transactions.get(transactional_id)
        )
        if transaction is None:
            raise TransactionalIdNotFound
        return transaction

    async def list_transactions(
        self, is_listed: Callable[[Transaction], bool]
    ) -> list[Transaction]:
        """Return the transactional ids that this node leads and that ``is_listed`` accepts."""
        listing: list[Transaction] = []
        slices = Slices()
        for transactions in await read_each(
            self.service, lambda shard: list(shard.transactions.values())
        ):
            for transaction in transactions:
                if is_listed(transaction):
                    listing.append(transaction)
                await slices.pause()
        return listing

    async def _decide_with_id(
        self,
        request: Req,
        decide: Callable[[TransactionShard, Req, Moment, int], Decision],
    ) -> Producer:
        """Decide, with a new producer id if needed; return the resulting producer."""
        transactional_id = request.transactional_id

        def decide_now(shard: TransactionShard, moment: Moment, ticket: int) -> Decision:
            return decide(shard, request, moment, ticket)

        try:
            reply = await self._call(transactional_id, decide_now)
        except ProducerIdNeeded:
            request = attrs.evolve(request, fresh_id=await self.take_id())
            reply = await self._call(transactional_id, decide_now)
        if isinstance(reply, KafkaError):
            raise reply
        producer: Producer = reply
        return producer

    async def _call(
        self, transactional_id: str, decide: Callable[[TransactionShard, Moment, int], Decision]
    ) -> Opaque:
        return await self.service.call(self.partition_of(transactional_id), decide)

    async def _read(self, transactional_id: str, look: Callable[[TransactionShard], R]) -> R:
        return await self.service.read(self.partition_of(transactional_id), look)

    # Time-outs

    def on_id_needed(self, transactional_id: str) -> None:
        """Schedule the abort of a timed-out transaction whose abort needs a new producer id."""
        self._timed_out[transactional_id] = None
        self._has_timed_out.set()

    async def _abort_with_ids(self) -> None:
        """Abort transactions that need producer ids; the next deadline retries a failed abort."""
        while True:
            await self._has_timed_out.wait()
            self._has_timed_out.clear()
            while self._timed_out:
                transactional_id = next(iter(self._timed_out))
                try:
                    await self._abort_with_id(transactional_id)
                except KafkaError as error:
                    logger.warning(
                        "abort postponed transactional_id=%s error=%r", transactional_id, error
                    )
                self._timed_out.pop(transactional_id)

    async def _abort_with_id(self, transactional_id: str) -> None:
        producer_id = await self.take_id()
        await self._call(
            transactional_id,
            lambda shard, *when: shard.abort_with_id(transactional_id, producer_id, *when),
        )

    # Markers

    def on_prepared(self, index: int) -> None:
        """Send the markers of a shard's decided transactions once those decisions are committed."""
        self._undispatched.add(index)
        self._has_undispatched.set()

    def on_completed(self, transactional_id: str) -> None:
        """Wake the requests that wait to begin an id's next transaction."""
        for event in self._completions.get(transactional_id, ()):
            event.set()

    def is_current(self, end: TransactionEnd) -> bool:
        """Return whether this node is still the coordinator that decided this end."""
        return self._epochs.get(end.index) == end.coordinator_epoch

    async def _dispatch_all(self, nursery: trio.Nursery) -> None:
        while True:
            await self._has_undispatched.wait()
            self._has_undispatched.clear()
            for index in self._undispatched - self._dispatching:
                self._dispatching.add(index)
                nursery.start_soon(self._dispatch, index)

    async def _dispatch(self, index: int) -> None:
        """Pass the decided transactions of one partition to the sender until none is left.

        A partition that cannot be read is logged only once, until it can be read again.
        """
        is_postponed = False
        slices = Slices()
        try:
            while index in self._undispatched:
                await slices.pause()
                self._undispatched.discard(index)
                try:
                    self.sender.send(await self._take_unsent(index))
                    is_postponed = False
                except CoordinatorLoadInProgress:
                    continue
                except KafkaError as error:
                    if not self.service.is_led(index):
                        continue
                    if not is_postponed:
                        logger.warning("markers postponed index=%d error=%r", index, error)
                    is_postponed = True
                    self._undispatched.add(index)
                    await trio.sleep(_RETRY_SECONDS)
        finally:
            self._dispatching.discard(index)

    async def _take_unsent(self, index: int) -> list[TransactionEnd]:
        """Return some decided transactions that are not being sent yet, once they are committed.

        If there are more, the partition stays undispatched.
        """
        unsent, transactions = await self.service.read(
            index,
            lambda shard: (shard.unsent, list(islice(shard.unsent.values(), _TAKEN_AT_ONCE))),
        )
        if len(unsent) > len(transactions):
            self._undispatched.add(index)
        epoch = self._epochs.get(index, NO_EPOCH)  # The next epoch may have begun meanwhile.
        for transaction in transactions:
            unsent.pop(transaction.transactional_id, None)
        return [
            TransactionEnd(index, epoch, transaction, set(transaction.partitions))
            for transaction in transactions
        ]

    async def complete(self, ends: Sequence[TransactionEnd]) -> None:
        """Write that these transactions are complete: all their markers are written."""
        by_index: dict[int, list[TransactionEnd]] = {}
        for end in ends:
            by_index.setdefault(end.index, []).append(end)
        slices = Slices()
        for index, ends_of_index in by_index.items():
            for first in range(0, len(ends_of_index), _COMPLETED_AT_ONCE):
                await self._complete(index, ends_of_index[first : first + _COMPLETED_AT_ONCE])
                await slices.pause()

    async def _complete(self, index: int, ends: list[TransactionEnd]) -> None:
        while transactions := [end.transaction for end in ends if self.is_current(end)]:
            try:
                await self.service.call(
                    index, lambda shard, *when, of=transactions: shard.complete(of, *when)
                )
                return
            except CoordinatorLoadInProgress:
                return
            except KafkaError as error:
                if not self.service.is_led(index):
                    return
                logger.warning("completion postponed index=%d error=%r", index, error)
                await trio.sleep(_RETRY_SECONDS)
