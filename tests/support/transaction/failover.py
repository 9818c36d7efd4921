"""Transaction coordinators that succeed each other, with or without the newest records.

Each has the log of its own node.  A successor gets what the last one had committed, or all that it
had written.  The last one is killed, or goes on as a zombie: it commits nothing more, and does not
know that it has a successor.
"""

from collections.abc import Iterator

import attrs
import trio

from kwire.records.build import New, batch
from kwire.records.header import parse
from kwire.records.iterate import records
from kwire.transaction.coordinator import TransactionCoordinator
from kwire.transaction.model import Transaction
from kwire.transaction.records import load, record_of, store, transaction_of
from kwire.transaction.settings import TransactionSettings
from kwire.types import TRANSACTION_STATE, TopicPartition
from tests.support.clock import Clock
from tests.support.coordinator.node import FakeLog
from tests.support.transaction.network import Network, Sender
from tests.support.transaction.stepping import SteppedRun
from tests.support.transaction.world import INDEX, Led

STATE = TopicPartition(TRANSACTION_STATE, INDEX)


@attrs.define(eq=False)
class Coordinator:
    """One coordinator and the log of its node."""

    log: FakeLog
    service: TransactionCoordinator
    sender: Sender
    scope: trio.CancelScope = attrs.field(factory=trio.CancelScope)

    @property
    def is_loading(self) -> bool:
        return bool(self.service.service.loading)

    def kill(self) -> None:
        self.log.resign()
        self.scope.cancel()

    def resign(self) -> None:
        """Learn of the successor."""
        self.log.resign()
        self.sender.is_former = True
        self.service.on_role_changed(Led(leader=None, leader_epoch=1 << 20))


@attrs.define(eq=False)
class Coordinators:
    """The coordinators of one partition of `__transaction_state`."""

    run: SteppedRun
    network: Network
    level: int
    """The level of `transaction.version`."""
    current: Coordinator = attrs.field(init=False)
    zombies: list[Coordinator] = attrs.field(factory=list)
    epoch: int = 0
    _next_id: int = 1000

    def start(self, log: FakeLog) -> None:
        """Start a coordinator over a log; it has loaded it unless reads take time."""
        self.epoch += 1
        sender = Sender(self.network, self.epoch)
        service = TransactionCoordinator(
            log=log,
            clock=Clock(),
            brokers=sender,
            settings=TransactionSettings,
            server_version=lambda: self.level,
            partitions=lambda: 1,
            take_id=self._take_id,
        )
        self.current = coordinator = Coordinator(log, service, sender)

        async def run() -> None:
            with coordinator.scope:
                await service.run()

        self.run.start(run)
        self.run.settle()
        service.on_role_changed(Led(leader_epoch=self.epoch))
        self.run.settle()

    async def _take_id(self) -> int:
        self._next_id += 1
        return self._next_id

    def take_over(self, *, with_uncommitted: bool, is_killed: bool, read_delay: float) -> None:
        last = self.current
        end = (last.log.ends if with_uncommitted else last.log.high_watermarks).get(INDEX, 0)
        batches = [b for b in last.log.data.get(INDEX, []) if parse(b, 0).next_offset <= end]
        if is_killed:
            last.kill()
        else:
            last.log.replicas_lag = True
            self.zombies.append(last)
        log = FakeLog(
            {INDEX: batches},
            {INDEX: end},
            {INDEX: end},
            read_delay=read_delay,
            page_batches=1 if read_delay else 100,
        )
        self.start(log)

    def resign_zombies(self) -> None:
        for zombie in self.zombies:
            zombie.resign()
        self.zombies.clear()
        self.run.settle()

    def records(self) -> Iterator[tuple[str, Transaction | None]]:
        """Yield the transactional ids and states of the current coordinator's log."""
        for data in self.current.log.data.get(INDEX, []):
            for stored in records(data, 0, parse(data, 0)):
                record = load(stored.key or b"", stored.value)
                assert record is not None
                name = record.key.transactional_id
                yield name, None if record.value is None else transaction_of(name, record.value)


def log_of(*transactions: Transaction) -> FakeLog:
    """Return a log that another coordinator has left."""
    log = FakeLog()
    for transaction in transactions:
        key, value = store(record_of(transaction, 2))
        log.append(STATE, batch([New(key, value)], timestamp_ms=0))
    return log
