"""The service that runs coordinators, for groups, transactions and share state.

Each led partition of one internal topic has a :class:`~kwire.coordinator.shard.Shard`. The service
decides on a request, appends and applies the records, and replies once the partition's high
watermark has passed them: so no client sees state that a new leader might not have. The same holds
for an error that rejects a request, unless it only asks the client to retry. A new leader first
replays the partition, and meanwhile answers COORDINATOR_LOAD_IN_PROGRESS. One task sleeps until the
earliest deadline of all shards; without deadlines it does not wake. Long work (loading, due
deadlines, further steps of a decision) runs in slices, and the members of a group are answered a
few at a time.

Once the lease of the broker's session is over, requests are rejected with NOT_COORDINATOR,
including those that wait for a commit: another broker may have loaded the partition by then
(invariants 34 and 72). The deadlines' clock stops meanwhile. If a load fails, even because of a bug
in a machine, it is repeated from the start; until it succeeds, only its own partition answers
COORDINATOR_LOAD_IN_PROGRESS.

Everything between a request and its append is synchronous, so no lock is needed.
"""

import logging
from collections import deque
from collections.abc import Awaitable, Callable, Hashable, Iterable, Iterator
from functools import partial
from itertools import count
from math import inf
from typing import TYPE_CHECKING, Final, NoReturn, TypeVar

import attrs
import trio

from kwire.clock import Clock, SteadyWall
from kwire.coordinator.commit_waits import wait_while_leased
from kwire.coordinator.decision import Decision, Machine, Moment, Opaque, Step
from kwire.coordinator.led_shards import LedShards
from kwire.coordinator.shard import Phase, Shard, Wait
from kwire.coordinator.steps import RETRY_SECONDS, StepRunner, log_failure
from kwire.coordinator.timers import DeadlineClock
from kwire.drive import Slices, Wakes
from kwire.errors import (
    CoordinatorNotAvailable,
    InvalidFetchSize,
    KafkaError,
    KafkaStorageError,
    MessageTooLarge,
    NotCoordinator,
    NotEnoughReplicas,
    NotEnoughReplicasAfterAppend,
    NotLeaderOrFollower,
    RecordListTooLarge,
    RequestTimedOut,
    UnknownServerError,
    UnknownTopicOrPartition,
)
from kwire.records.compression import NONE
from kwire.types import TopicPartition
from kwire.waits import Signal, Slow

if TYPE_CHECKING:
    from kwire.coordinator.draft import Draft
    from kwire.replica.transaction_ports import TransactionMarker

logger = logging.getLogger(__name__)

M = TypeVar("M", bound=Machine)
R = TypeVar("R")
C = TypeVar("C")

_WOKEN_AT_ONCE: Final = 16
"""The number of requests that are answered before other tasks run, about a millisecond."""

_APPEND_ERRORS: Final[dict[type[KafkaError], type[KafkaError]]] = {
    UnknownTopicOrPartition: CoordinatorNotAvailable,
    NotEnoughReplicas: CoordinatorNotAvailable,
    NotEnoughReplicasAfterAppend: CoordinatorNotAvailable,
    RequestTimedOut: CoordinatorNotAvailable,
    NotLeaderOrFollower: NotCoordinator,
    KafkaStorageError: NotCoordinator,
    MessageTooLarge: UnknownServerError,
    RecordListTooLarge: UnknownServerError,
    InvalidFetchSize: UnknownServerError,
}
"""The error for a coordinator's client, by the error of the internal topic's partition."""


Decide = Callable[[M, Moment, int], Decision]
"""Decides on a request, by the machine, the time and the request's ticket."""
WaitCommitted = Callable[[], Awaitable[None]]
"""Waits until the written records are committed; raises KafkaError."""


@attrs.define(kw_only=True, eq=False, repr=False)
class CoordinatorRuntime(LedShards[M]):
    """The coordinators of one internal topic on this node."""

    clock: Clock
    make: Callable[[int], M]
    """Creates the empty machine of a partition."""
    commit_timeout_ms: Callable[[], int] = lambda: 5_000
    in_order: bool = False  # As in Shard, like the next.
    compression: Callable[[], int] = lambda: NONE
    _tickets: Iterator[int] = attrs.field(factory=count, init=False)
    _to_load: deque[Shard[M]] = attrs.field(factory=deque, init=False)
    _has_loads: Signal = attrs.field(factory=Signal, init=False)
    _steps: StepRunner[M] = attrs.field(init=False)
    _wakes: Wakes = attrs.field(factory=lambda: Wakes(_WOKEN_AT_ONCE), init=False)
    """Requests that have an answer and whose tasks have to be woken."""
    _sleep: trio.CancelScope = attrs.field(factory=trio.CancelScope, init=False)
    _time: DeadlineClock = attrs.field(init=False)

    def __attrs_post_init__(self) -> None:
        self._time = DeadlineClock(self.clock, self.log, SteadyWall(self.clock))
        self._steps = StepRunner(self._take_step)

    # Leadership

    def on_elected(self, index: int, leader_epoch: int) -> None:
        """Load a partition that this node leads from ``leader_epoch`` onwards.

        If this node also led the previous epoch, the loaded partition is kept as it is.
        """
        current = self._shards.get(index)
        if current is not None:
            if current.leader_epoch >= leader_epoch:
                return
            if current.leader_epoch == leader_epoch - 1:
                current.lead_on(leader_epoch)
                return
            self._wakes.wake(current.resign())
        partition = TopicPartition(self.topic, index)
        shard = self._shards[index] = _empty_shard(self, partition, leader_epoch)
        start, end = self.log.bounds(partition)
        if start < end:
            self._queue(shard)
            return
        shard.written = end
        try:
            for step in shard.machine.on_loaded():
                self._perform(shard, step(self._time.moment()))
        except Exception:  # noqa: BLE001  A fault must not end the node; the load reports it.
            self._queue(self._replace(shard))
            return
        shard.phase = Phase.ACTIVE
        self._wake_by_deadline(shard)

    def on_resigned(self, index: int, leader_epoch: int | None = None) -> None:
        """Drop a partition that this node no longer leads (since ``leader_epoch``, if known)."""
        shard = self._shards.get(index)
        if shard is None or (leader_epoch is not None and leader_epoch < shard.leader_epoch):
            return
        del self._shards[index]
        self._wakes.wake(shard.resign())

    def resign_all(self) -> None:
        """Drop all partitions before a shutdown, failing the requests that still wait."""
        for index in list(self._shards):
            self.on_resigned(index)

    # Requests

    async def call(self, index: int, decide: Decide[M]) -> Opaque:
        """Decide, write, apply, and return the reply once it is committed."""
        reply = self.begin(index, decide)
        return await reply.finish() if isinstance(reply, Slow) else reply

    def begin(self, index: int, decide: Decide[M]) -> Slow[Opaque] | Opaque:
        """Decide, write and apply; return the reply if nothing is left to wait for."""
        shard = self.ready(index)
        ticket = next(self._tickets)
        try:
            decision = decide(shard.machine, self._time.moment(), ticket)
        except KafkaError as error:
            return Slow(partial(self._refuse, shard, error))
        wait = shard.waiting[ticket] = Wait()
        try:
            self._perform(shard, decision)
        except BaseException:
            del shard.waiting[ticket]
            raise
        if wait.answered and wait.error is None and self._is_committed(shard, wait.end_offset):
            del shard.waiting[ticket]
            return wait.reply
        return Slow(partial(self._wait_reply, shard, ticket, wait))

    @property
    def moment(self) -> Moment:
        """The time of a decision."""
        return self._time.moment()

    def postpone(self, shard: Shard[M], name: Hashable, timeout_ms: int) -> None:
        """Set a partition's deadline ``name`` to ``timeout_ms`` from now."""
        shard.timers.set(name, self._time.now() + timeout_ms / 1000)
        self._wake_by_deadline(shard)

    def write(self, shard: Shard[M], decision: Decision) -> Slow[None] | None:
        """Carry out a decision without answers; return the wait for its commit, if any is left."""
        self._perform(shard, decision)
        if self._is_committed(shard, shard.written):
            return None
        return Slow(partial(self._wait_committed, shard, shard.written))

    async def _wait_reply(self, shard: Shard[M], ticket: int, wait: Wait) -> Opaque:
        try:
            if not wait.answered:
                wait.done = done = trio.Event()
                await done.wait()
        finally:
            del shard.waiting[ticket]
        if wait.error is not None:
            raise wait.error
        await self._wait_committed(shard, wait.end_offset)
        return wait.reply

    def draft(self, change: C) -> "Draft[C]":
        """Return an empty draft of a decision, which applies ``change``."""
        from kwire.coordinator.draft import Draft

        return Draft(self.clock.now_ms(), change)

    async def read(self, index: int, look: Callable[[M], R]) -> R:
        """Return the result of ``look`` once the state that it read is committed."""
        shard = self.ready(index)
        try:
            result = look(shard.machine)
        except KafkaError as error:
            await self._refuse(shard, error)
        await self._wait_committed(shard, shard.written)
        return result

    async def _refuse(self, shard: Shard[M], error: KafkaError) -> NoReturn:
        """Raise a decider's error once the state that the error depends on is committed.

        Most errors are final for the client: PRODUCER_FENCED ends a producer, so the change that
        fenced it must not be lost with this leader. An error that only asks the client to retry is
        raised at once.
        """
        if not error.retriable:
            await self._wait_committed(shard, shard.written)
        raise error

    def end_transaction(self, index: int, marker: "TransactionMarker") -> WaitCommitted:
        """Write and apply a transaction marker; return a function that waits for its commit."""
        shard = self.ready(index)
        shard.end_transaction(marker, self.log)
        return partial(self._wait_committed, shard, shard.written)

    def schedule_for_all(self, steps_of: Callable[[M], Iterable[Step]]) -> None:
        """Schedule steps in every partition that answers requests."""
        for shard in self._shards.values():
            if shard.phase is Phase.ACTIVE:
                self._steps.schedule(shard, steps_of(shard.machine))

    def _take_step(self, shard: Shard[M], step: Step) -> None:
        self._perform(shard, step(self._time.moment()))

    def _perform(
        self, shard: Shard[M], decision: Decision, deadline: Hashable | None = None
    ) -> None:
        """Carry out a decision; ``deadline`` is the name of the deadline that caused it, if any."""
        try:
            answered = shard.perform(decision, self.log, self.clock.now_ms())
        except KafkaError as error:
            client_error = _to_client_error(error)
            if decision.otherwise is None:
                raise client_error from error
            logger.warning("write failed partition=%s error=%r", shard.partition, error)
            decision = decision.otherwise(client_error, self._time.moment())
            answered = shard.perform(decision, self.log, self.clock.now_ms())
        if answered:
            self._wakes.wake(answered)
        if decision.steps:
            self._steps.schedule(shard, decision.steps, deadline)
        self._wake_by_deadline(shard)

    def _wake_by_deadline(self, shard: Shard[M]) -> None:
        """Wake the deadline task in time for a shard's earliest deadline, once it is loaded."""
        deadline = shard.timers.deadline
        if shard.phase is Phase.ACTIVE and deadline < self._sleep.deadline:
            passes_at = self._time.passes_at(deadline)  # Never earlier than the deadline itself.
            self._sleep.deadline = min(self._sleep.deadline, passes_at)

    async def _wait_committed(self, shard: Shard[M], end_offset: int) -> None:
        if shard.phase is Phase.RESIGNED or self.log.is_lease_over:
            raise NotCoordinator
        if self.log.high_watermark(shard.partition) >= end_offset:
            return
        try:
            with trio.fail_after(self.commit_timeout_ms() / 1000):
                await wait_while_leased(self.log, shard.partition, end_offset)
        except KafkaError as error:
            raise _to_client_error(error) from error
        except trio.TooSlowError:
            raise CoordinatorNotAvailable from None
        is_current = self._shards.get(shard.partition.partition) is shard
        if not is_current or self.log.is_lease_over:
            raise NotCoordinator

    # Tasks

    async def run(self, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Load partitions, handle deadlines and take steps, until cancelled."""
        try:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(self._load_all, nursery)
                nursery.start_soon(self._keep_deadlines)
                nursery.start_soon(self._wakes.run)
                nursery.start_soon(self._steps.run, nursery)
                task_status.started()
        finally:
            self.resign_all()

    async def _keep_deadlines(self) -> None:
        while True:
            active = (s for s in self._shards.values() if s.phase is Phase.ACTIVE)
            earliest = min((shard.timers.deadline for shard in active), default=inf)
            with trio.CancelScope(deadline=self._time.passes_at(earliest)) as self._sleep:
                await trio.sleep_forever()
            if self.log.is_lease_over:
                await trio.sleep(RETRY_SECONDS)
                continue
            slices = Slices()
            for shard in list(self._shards.values()):
                while shard.phase is Phase.ACTIVE and self._fire_next_deadline(shard):
                    await slices.pause()

    def _fire_next_deadline(self, shard: Shard[M]) -> bool:
        """Decide on one deadline that has passed, if it is found; return False if none has."""
        now = self._time.now()
        name = shard.timers.pop_due(now)
        if name is None:
            return shard.timers.deadline <= now
        try:
            self._perform(shard, shard.machine.due(name, self._time.moment()), name)
        except Exception as error:  # noqa: BLE001  A fault must not end the node.
            shard.timers.set(name, now + log_failure(f"deadline {name}", shard, error))
        return True

    def _queue(self, shard: Shard[M]) -> None:
        self._to_load.append(shard)
        self._has_loads.set()

    async def _load_all(self, nursery: trio.Nursery) -> None:
        await self._has_loads.wait()
        from kwire.coordinator.loading import Loader

        loader = Loader(
            self.log,
            self.clock,
            self._time.moment,
            self._to_load,
            self._has_loads,
            self._perform,
            self._replace,
            self._wake_by_deadline,
        )
        await loader.run(nursery)

    def _replace(self, shard: Shard[M]) -> Shard[M]:
        """Replace a shard whose load failed with an empty shard; the old shard's steps end."""
        index = shard.partition.partition
        empty = _empty_shard(self, shard.partition, shard.leader_epoch)
        empty.failures = shard.failures
        shard.phase = Phase.RESIGNED
        self._shards[index] = empty
        return empty


def _empty_shard(
    runtime: CoordinatorRuntime[M], partition: TopicPartition, leader_epoch: int
) -> Shard[M]:
    machine = runtime.make(partition.partition)
    return Shard(partition, leader_epoch, machine, runtime.in_order, runtime.compression)


def _to_client_error(error: KafkaError) -> KafkaError:
    """Return the error to send to the client when the partition cannot be written."""
    error_type = _APPEND_ERRORS.get(type(error))
    return error if error_type is None else error_type()
