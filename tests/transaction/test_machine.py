"""The transaction coordinator against what Kafka documents, in any order of requests and faults.

Clients of all ages start, write, end and repeat; markers arrive late, twice or never; the log's
replicas lag; the coordinator moves, with or without what its replicas lack.  After each step every
answer and every record of the log is the reference's.  In the end no transaction is open, and each
record was ended as its transaction was decided.  Invariants 54, 55, 57 to 61.
"""

import os
from collections.abc import Awaitable, Callable
from typing import Any, Final

import attrs
import hypothesis.strategies as st
import outcome
from hypothesis import Phase, settings
from hypothesis.stateful import RuleBasedStateMachine, initialize, precondition, rule

from kwire.errors import (
    BY_CODE,
    CoordinatorLoadInProgress,
    CoordinatorNotAvailable,
    KafkaError,
    NotCoordinator,
    NotEnoughReplicas,
)
from kwire.replica.transaction_ports import TransactionMarker
from kwire.transaction.model import Transaction
from kwire.transaction.settings import TransactionSettings
from kwire.transaction.shard import AddPartitions, EndTransaction
from kwire.transaction.transitions import Producer
from kwire.types import NO_LEADER, TopicPartition
from tests.support.clock import Clock
from tests.support.transaction.failover import Coordinators, log_of
from tests.support.transaction.network import DataPartition, MarkerRequest, Network, Write
from tests.support.transaction.reference import (
    FRESH,
    LAST_EPOCH,
    Identity,
    Reference,
    replace_fresh,
)
from tests.support.transaction.stepping import SteppedRun, Task

YOUNG, USED_UP = "young", "used-up"
"""Two transactional ids; the second is near the end of its epochs."""
NAMES: Final = st.sampled_from([YOUNG, USED_UP])
PARTITIONS: Final = (
    *(TopicPartition("t", 0), TopicPartition("t", 1), TopicPartition("u", 0)),
    TopicPartition("__consumer_offsets", 0),
)
ABORT_CHECK_S: Final = TransactionSettings().abort_check_ms / 1000
TIMEOUTS_MS: Final = (5_000, 60_000)
PREDECESSORS: Final = {
    "Empty": {"", "Empty", "CompleteCommit", "CompleteAbort"},
    "Ongoing": {"Empty", "Ongoing", "CompleteCommit", "CompleteAbort"},
    "PrepareCommit": {"Ongoing"},
    "PrepareAbort": {"Empty", "Ongoing", "CompleteCommit", "CompleteAbort"},
    "CompleteCommit": {"PrepareCommit"},
    "CompleteAbort": {"PrepareAbort"},
}
"""The states before each state in the log, by Apache Kafka's documentation."""
INDEXES: Final = st.integers(0, 1 << 16)
AGES: Final = st.sampled_from([0, 0, 0, 0, 0, 0, 0, 0, 1, 1, 2])
"""The age of a client among those of its transactional id: 0 is the newest, others are zombies."""
AHEAD: Final = st.sampled_from([0, 0, 0, 0, 0, 0, 0, 1])
"""The epochs by which a client is ahead of the one that it got: a client's mistake."""
MOVED: Final = (NotCoordinator, CoordinatorNotAvailable)
LOSSES: Final = ("answer lost", "request lost")
STEP_S: Final = 0.002


@attrs.frozen
class Client:
    """A producer that a client of a transactional id got at some time."""

    identity: Identity
    is_new: bool
    """Whether its ends bump the epoch: it works as a client of `transaction.version` 2."""


@attrs.define(eq=False)
class Request:
    """A request without an answer yet."""

    name: str
    task: Task[Any]
    expected: Identity | type[KafkaError] | None
    on_success: Callable[[Any], None]
    may_fail: bool = False
    """Whether its coordinator has moved, or could not commit in time."""


PHASES: Final = tuple(Phase) if "KWIRE_EXPLORE" in os.environ else (Phase.reuse, Phase.generate)
"""A failure is made smaller only on request: that takes minutes."""


class TransactionMachine(RuleBasedStateMachine):
    """Clients, coordinators, partitions, and the reference of each transactional id."""

    def __init__(self) -> None:
        super().__init__()
        self.run = SteppedRun()
        self.network = Network({name: DataPartition(1) for name in PARTITIONS})
        self.network.partitions[PARTITIONS[1]].leader = 2
        self.references = {YOUNG: Reference(), USED_UP: Reference()}
        self.clients: dict[str, list[Client]] = {YOUNG: [], USED_UP: []}
        self.requests: list[Request] = []
        self.past: list[Callable[[], None]] = []
        """The requests so far, to be sent again."""
        self.producer_ids = {900}
        """The ids that producers have, or had."""

    @initialize(level=st.sampled_from([2, 2, 2, 1]))
    def start(self, level: int) -> None:
        self.cluster = Coordinators(self.run, self.network, level)
        last = Transaction(
            transactional_id=USED_UP,
            producer_id=900,
            previous_producer_id=900,
            producer_epoch=LAST_EPOCH - 1,
            timeout_ms=TIMEOUTS_MS[0],
            update_ms=self.now_ms(),
        )
        self.cluster.start(log_of(last))
        self.references[USED_UP] = reference_of(last)
        self.clients[USED_UP] = [Client(Identity(900, LAST_EPOCH - 1), is_new=level >= 2)]
        self.look()
        self.send_init(YOUNG, TIMEOUTS_MS[1], None, is_new=level >= 2)

    def now_ms(self) -> int:
        return Clock().now_ms()

    # Clients

    def client(self, name: str, age: int, ahead: int = 0) -> Client:
        clients = self.clients[name] or [Client(Identity(1, 0), is_new=False)]
        client = clients[-1 - min(age, len(clients) - 1)]
        identity = Identity(client.identity.id, client.identity.epoch + ahead)
        return attrs.evolve(client, identity=identity)

    @rule(
        name=NAMES,
        timeout_ms=st.sampled_from(TIMEOUTS_MS),
        continues_as=st.sampled_from(["", YOUNG, USED_UP]),
        age=AGES,
        is_new=st.sampled_from([True, True, True, False]),
    )
    def init(self, name: str, timeout_ms: int, continues_as: str, age: int, is_new: bool) -> None:
        """Start anew, or go on as a producer of this or of another transactional id."""
        expected = self.client(continues_as, age).identity if continues_as else None
        is_new &= self.cluster.level >= 2
        self.send(lambda: self.send_init(name, timeout_ms, expected, is_new))

    def send_init(
        self, name: str, timeout_ms: int, expected: Identity | None, is_new: bool
    ) -> None:
        producer = None if expected is None else Producer(*expected)

        def on_success(identity: Producer) -> None:
            self.clients[name].append(Client(Identity(*identity), is_new))

        self.request(
            name,
            lambda reference: reference.init(timeout_ms, expected, self.cluster.level),
            lambda: self.service.initialize(name, timeout_ms, producer),
            on_success,
        )

    @rule(name=NAMES, age=AGES, ahead=AHEAD, places=st.sets(st.integers(0, 3), min_size=1))
    def write(self, name: str, age: int, ahead: int, places: set[int]) -> None:
        client = self.client(name, age, ahead)
        partitions = frozenset(PARTITIONS[place] for place in places)
        self.send(lambda: self.send_partitions(name, client, partitions))

    def send_partitions(
        self, name: str, client: Client, partitions: frozenset[TopicPartition]
    ) -> None:
        """Add partitions and write a record to each."""
        request = AddPartitions(
            name, Producer(*client.identity), partitions, client_version=2 * client.is_new
        )
        self.request(
            name,
            lambda reference: reference.add(client.identity, partitions, self.now_ms()),
            lambda: self.service.add_partitions(request, repeat=False),
            self.writer(name, client, partitions),
        )

    def writer(
        self, name: str, client: Client, partitions: frozenset[TopicPartition]
    ) -> Callable[[Any], None]:
        """Return what writes once the coordinator has answered, unless a marker came first."""
        id_ = client.identity.id
        states = [self.network.partitions[partition] for partition in partitions]
        marker_counts = [state.marker_count(id_) for state in states]

        def on_success(_: object) -> None:
            start_ms = self.references[name].start_ms
            for state, marker_count in zip(states, marker_counts, strict=True):
                if state.marker_count(id_) == marker_count:
                    assert state.write((name, id_, start_ms), client.identity)

        return on_success

    @rule(name=NAMES, age=AGES, place=st.integers(0, 3))
    def verify(self, name: str, age: int, place: int) -> None:
        """Write as an older client, whose leader asks whether the partition is in."""
        client, partition = self.client(name, age), PARTITIONS[place]
        producer = Producer(*client.identity)

        async def verify() -> None:
            codes = await self.service.verify(name, producer, [partition])
            if codes[partition]:
                raise BY_CODE[codes[partition]]

        self.request(
            name,
            lambda reference: reference.verify(client.identity, partition),
            verify,
            self.writer(name, client, frozenset({partition})),
        )

    @rule(name=NAMES, age=AGES, ahead=AHEAD, commit=st.sampled_from([True, True, False]))
    def end(self, name: str, age: int, ahead: int, commit: bool) -> None:
        client = self.client(name, age, ahead)
        self.send(lambda: self.send_end(name, client, commit))

    def send_end(self, name: str, client: Client, commit: bool) -> None:
        request = EndTransaction(name, Producer(*client.identity), 2 * client.is_new, commit)

        def on_success(identity: Producer) -> None:
            following = Client(Identity(*identity), client.is_new)
            if client.is_new and following not in self.clients[name]:
                self.clients[name].append(following)

        self.request(
            name,
            lambda reference: reference.end(
                client.identity, commit=commit, is_new=client.is_new, now_ms=self.now_ms()
            ),
            lambda: self.service.end(request),
            on_success,
        )

    @rule(
        name=NAMES,
        place=st.integers(0, 3),
        commit=st.sampled_from([True, True, False]),
        markers=st.sampled_from(["written", "written", "wait", *LOSSES]),
    )
    def run_transaction(self, name: str, place: int, commit: bool, markers: str) -> None:
        """Write and end as the newest client."""
        self.write(name, 0, 0, {place, 0})
        self.end(name, 0, 0, commit)
        for request in list(self.network.under_way):
            if markers != "wait":
                self.pass_on(request, markers)
        self.step()

    @precondition(lambda self: self.past)
    @rule(index=INDEXES)
    def repeat(self, index: int) -> None:
        """Send a request once more, as a client without an answer or a slow network does."""
        self.past[-1 - index % min(len(self.past), 8)]()

    # The network

    @precondition(lambda self: self.network.under_way)
    @rule(index=INDEXES, fault=st.sampled_from(["", "", "", *LOSSES]))
    def deliver(self, index: int, fault: str) -> None:
        requests = self.network.under_way
        self.pass_on(requests[index % len(requests)], fault)
        self.step()

    def pass_on(self, request: MarkerRequest, fault: str) -> None:
        if fault == "request lost":
            request.is_over.set()
        else:
            self.network.deliver(request, is_answered=fault != "answer lost")

    @precondition(lambda self: self.network.late)
    @rule(count=st.integers(1, 4))
    def deliver_late(self, count: int) -> None:
        """Let the newest requests arrive once more, or for the first time."""
        for request in self.network.late[-count:]:
            self.network.deliver_late(request)
        self.step()

    @rule(place=st.integers(0, 3), leader=st.sampled_from([1, 2, NO_LEADER]))
    def move_leader(self, place: int, leader: int) -> None:
        self.network.partitions[PARTITIONS[place]].leader = leader
        self.step()

    # The coordinators

    @rule(fault=st.sampled_from(["", "", "replicas lag", "appends fail"]))
    def break_log(self, fault: str) -> None:
        log = self.cluster.current.log
        log.failure = NotEnoughReplicas() if fault == "appends fail" else None
        if fault == "replicas lag":
            log.replicas_lag = True
        else:
            log.catch_up()
        self.step()

    @rule(
        with_uncommitted=st.booleans(),
        is_killed=st.booleans(),
        read_delay=st.sampled_from([0.0, 0.0, 0.5]),
    )
    def take_over(self, with_uncommitted: bool, is_killed: bool, read_delay: float) -> None:
        self.allow_failures()
        self.cluster.take_over(
            with_uncommitted=with_uncommitted, is_killed=is_killed, read_delay=read_delay
        )
        newest = self.newest_records()
        for name in self.references:
            transaction = newest.get(name)
            self.references[name] = (
                Reference() if transaction is None else reference_of(transaction)
            )
        self.step()

    @precondition(lambda self: self.cluster.zombies)
    @rule()
    def resign_zombies(self) -> None:
        self.cluster.resign_zombies()
        self.step()

    @rule(seconds=st.sampled_from([0.2, 0.2, 1.5, 12.0, 70.0]))
    def wait(self, seconds: float) -> None:
        if self.cluster.current.log.replicas_lag:
            self.allow_failures()
        self.run.sleep(seconds)
        self.look()
        log = self.cluster.current.log
        if log.replicas_lag or log.failure or self.cluster.current.is_loading:
            return
        idle_ms = self.now_ms() - round(min(seconds, ABORT_CHECK_S + 1.5) * 1000)
        for reference in self.references.values():
            is_late = reference.start_ms + reference.timeout_ms < idle_ms
            assert not (seconds > ABORT_CHECK_S + 1 and reference.is_ongoing and is_late)

    # The comparison

    @property
    def service(self) -> Any:
        return self.cluster.current.service

    def send(self, request: Callable[[], None]) -> None:
        self.past.append(request)
        request()

    def request(
        self,
        name: str,
        decide: Callable[[Reference], Identity | type[KafkaError] | None],
        call: Callable[[], Awaitable[Any]],
        on_success: Callable[[Any], None],
    ) -> None:
        """Make a request of the coordinator and of the reference."""
        expected: Identity | type[KafkaError] | None
        if self.cluster.current.is_loading:
            expected = CoordinatorLoadInProgress
        else:
            reference = self.references[name].copy()
            expected = decide(reference)
            if reference.record_count == self.references[name].record_count:
                pass
            elif self.cluster.current.log.failure is not None:
                expected = CoordinatorNotAvailable
            else:
                self.references[name] = reference
        self.requests.append(Request(name, self.run.start(call), expected, on_success))
        self.step()

    def allow_failures(self) -> None:
        """Let the requests that wait for an answer fail."""
        for request in self.requests:
            request.may_fail = True

    def step(self) -> None:
        """Let happen what is due now, and look; a moment later is the next step."""
        self.run.settle()
        self.look()
        self.run.sleep(STEP_S)
        self.look()

    def look(self) -> None:
        newest = self.newest_records()
        for name in self.references:
            self.follow(name, newest.get(name))
        for request in list(self.requests):
            if request.task.result is not None:
                self.requests.remove(request)
                check_answer(request, request.task.result)
        assert not self.network.faults
        log = self.cluster.current.log
        if not log.replicas_lag:
            assert all(request.may_fail for request in self.requests), "an answer is missing"

    def newest_records(self) -> dict[str, Transaction]:
        """Return the newest record of each transactional id; check the order of all."""
        newest: dict[str, Transaction] = {}
        for name, transaction in self.cluster.records():
            assert transaction is not None
            before = newest[name].state.title if name in newest else ""
            assert before in PREDECESSORS[transaction.state.title]
            newest[name] = transaction
        return newest

    def follow(self, name: str, transaction: Transaction | None) -> None:
        """Compare the newest record with the reference, which may be behind the time."""
        reference = self.references[name]
        if transaction is None:
            assert reference.state == "None"
            return
        title = transaction.state.title
        if reference.is_ongoing and title in ("PrepareAbort", "CompleteAbort"):
            assert reference.start_ms + reference.timeout_ms < self.now_ms()
            reference.fence(self.cluster.level)
        if FRESH in (reference.owner.id, (reference.following or reference.owner).id):
            self.learn_id(name, transaction)
        if reference.is_prepared and title.startswith("Complete"):
            self.check_markers(reference)
            reference.complete()
        following = Identity(transaction.next_producer_id, 0)
        assert reference == attrs.evolve(
            reference,
            state=title,
            owner=Identity(transaction.producer_id, transaction.producer_epoch),
            following=None if following.id == -1 else following,
            partitions=transaction.partitions,
            timeout_ms=transaction.timeout_ms,
            start_ms=transaction.start_ms,
        )

    def learn_id(self, name: str, transaction: Transaction) -> None:
        """Take over the fresh producer id, which nothing had before."""
        reference = self.references[name]
        id_ = transaction.producer_id
        if reference.following is not None and reference.is_prepared:
            id_ = transaction.next_producer_id if transaction.state.is_prepared else id_
        assert id_ not in self.producer_ids
        self.producer_ids.add(id_)
        reference.replace_fresh(id_)
        for request in self.requests:
            if request.name == name and isinstance(request.expected, Identity):
                request.expected = replace_fresh(request.expected, id_)

    def check_markers(self, reference: Reference) -> None:
        """Check that all partitions of a complete transaction have its markers."""
        for partition in reference.partitions:
            markers = [
                entry
                for entry in self.network.partitions[partition].entries
                if isinstance(entry, TransactionMarker)
                and (entry.producer_id, entry.producer_epoch) == reference.owner
            ]
            assert markers
            assert markers[-1].commit == (reference.state == "PrepareCommit")

    # The end

    def teardown(self) -> None:
        try:
            if hasattr(self, "cluster"):
                self.end_faults()
                self.check_end()
        finally:
            self.run.close()

    def end_faults(self) -> None:
        self.cluster.resign_zombies()
        self.allow_failures()
        log = self.cluster.current.log
        log.failure, log.read_delay = None, 0.0
        log.catch_up()
        self.network.heal()
        self.run.sleep(max(TIMEOUTS_MS) / 1000 + 2 * ABORT_CHECK_S)
        self.look()

    def check_end(self) -> None:
        """No transaction is open; each record was ended as its transaction was decided."""
        assert not self.requests
        assert all(x.is_idle or x.state == "None" for x in self.references.values())
        decisions = {
            (name, transaction.producer_id, transaction.start_ms): transaction.is_commit
            for name, transaction in self.cluster.records()
            if transaction is not None and transaction.state.is_prepared
        }
        for partition in self.network.partitions.values():
            assert partition.is_stable
            unended: list[Write] = []
            for entry in partition.entries:
                if isinstance(entry, Write):
                    unended.append(entry)
                    continue
                for write in [w for w in unended if w.producer.id == entry.producer_id]:
                    assert decisions[write.transaction] == entry.commit
                    unended.remove(write)
            assert not unended


def reference_of(transaction: Transaction) -> Reference:
    """Return what a coordinator knows that has loaded a record."""
    following = Identity(transaction.next_producer_id, 0)
    return Reference(
        state=transaction.state.title,
        owner=Identity(transaction.producer_id, transaction.producer_epoch),
        previous_id=transaction.previous_producer_id,
        following=None if following.id == -1 else following,
        partitions=transaction.partitions,
        timeout_ms=transaction.timeout_ms,
        start_ms=transaction.start_ms,
    )


def check_answer(request: Request, result: outcome.Outcome[Any]) -> None:
    """Compare an answer with the reference's."""
    if isinstance(result, outcome.Error):
        error = result.error
        if request.may_fail and isinstance(error, MOVED):
            return
        if type(error) is not request.expected:
            raise AssertionError(f"{error!r} instead of {request.expected}") from error
        return
    reply = result.unwrap()
    assert reply == request.expected
    request.on_success(reply)


TestTransactions = TransactionMachine.TestCase
TestTransactions.settings = settings(
    max_examples=100, stateful_step_count=40, deadline=None, phases=PHASES
)
