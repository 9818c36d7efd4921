"""Producers, consumers and groups that run while faults happen, and record their observations.

Rules: each client runs in a thread and appends to lists of its own, which ``Run.finish`` joins to
one history; a client never checks what it observes. A consumer without an offset to continue from,
or with one out of range, is an error and not a silent reset.
"""

from __future__ import annotations

import logging
import random
import threading
import time
from collections import Counter
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, Final

import attrs
from confluent_kafka import Consumer, KafkaError, KafkaException, Producer, TopicPartition

from compat_tests.durability.history import History
from compat_tests.durability.load import BASE
from compat_tests.durability.observations import Call, Commit, Committed, Place, Poll, Send
from compat_tests.durability.sessions import SessionRecorder
from compat_tests.harness.wait import eventually
from simulation.share_rules import Outcome

SEND_SECONDS: Final = 180
"""The expiry of a record: longer than an outage on a busy machine, as it ends the session."""
UNANSWERED_MAX: Final = 2_000
"""The records without an answer at which a producer pauses, so that an outage leaves no backlog."""
KEEP_BROKERS: Final = {"metadata.recovery.strategy": "none"}
"""The settings of a client that may lose all its connections at once.

When librdkafka 2.16 begins its bootstrap again twice within a second, it may never connect again.
"""
POLL_SECONDS: Final = 0.2
COMMIT_SECONDS: Final = 60
SESSION_SECONDS: Final = 45
"""The session timeout; a member whose LeaveGroup was lost holds its group up for as long."""
STEADY_SESSION_SECONDS: Final = 150
"""The session timeout of a group's only member: longer than a restart on a busy machine."""
RECOVERY_SECONDS: Final = 120
"""The longest wait for new acknowledgements of all producers after a restart."""
REFUSED: Final = "refused"
"""The producer some of whose records are too large; each of them ends its session."""
WRITERS: Final[Mapping[str, Mapping[str, object]]] = {
    "idempotent": {"enable.idempotence": True},
    "idempotent-zstd": {"enable.idempotence": True, "compression.type": "zstd"},
    REFUSED: {"enable.idempotence": True},
    "all-lz4": {"acks": "all", "compression.type": "lz4"},
}
TOO_LARGE: Final = 20_000
"""The size in bytes of a record that the topic refuses."""
REFUSALS: Final = {KafkaError.MSG_SIZE_TOO_LARGE}
FENCED: Final = {
    KafkaError.ILLEGAL_GENERATION,
    KafkaError.UNKNOWN_MEMBER_ID,
    KafkaError.REBALANCE_IN_PROGRESS,
}
HARMLESS: Final = {
    KafkaError._PARTITION_EOF,
    KafkaError._TRANSPORT,
    KafkaError._ALL_BROKERS_DOWN,
    KafkaError._TIMED_OUT,
    KafkaError._TIMED_OUT_QUEUE,
    KafkaError._UNKNOWN_PARTITION,
    KafkaError.NOT_COORDINATOR,
    KafkaError.COORDINATOR_NOT_AVAILABLE,
    KafkaError.COORDINATOR_LOAD_IN_PROGRESS,
}
"""Errors of a consumer while the broker is down or starts, or at the end of a partition.

The client library may not have learned yet of a partition that is assigned as soon as it is new.
"""
MOVED: Final = {
    KafkaError.NOT_LEADER_FOR_PARTITION,
    KafkaError.LEADER_NOT_AVAILABLE,
    KafkaError.OFFSET_NOT_AVAILABLE,
    KafkaError._TIMED_OUT,
    KafkaError._TRANSPORT,
    KafkaError._UNKNOWN_PARTITION,
    KafkaError._DESTROY_BROKER,
}
"""Errors of a request for an end offset while the leadership moves or a broker restarts.

librdkafka reports a partition as unknown when it has forgotten its leader, for one after a lost
connection (`rd_kafka_topic_partition_list_query_leaders`), whatever the brokers' metadata say.
"""
OBSERVATIONS: Final = (
    "sends",
    "polls",
    "commits",
    "committed",
    "end_offsets",
    "transactions",
    "calls",
    "session_events",
    "group_views",
    "deliveries",
    "acknowledgements",
)
"""The parts of a history that clients record."""


def end_offset(consumer: Any, place: TopicPartition, seconds: float) -> int:
    """Return the end offset of a partition; an empty one is asked about twice.

    Each call sends two requests, for both ends of the log. When the request for the start is
    retried, librdkafka 2.16 can answer (start, start) although the broker has refused to name the
    end (`rd_kafka_query_wmark_offsets_resp_cb` forgets the error with the second response).
    """
    start, end = consumer.get_watermark_offsets(place, seconds)
    if start == end:
        _, end = consumer.get_watermark_offsets(place, seconds)
    return int(end)


@attrs.define
class Client:
    """One client in a thread; ``history`` has only its own observations."""

    name: str
    run: Run
    history: History = attrs.field(factory=History, repr=False)
    errors: list[str] = attrs.field(factory=list)
    thread: threading.Thread | None = None

    def start(self) -> None:
        self.thread = threading.Thread(target=self._run, daemon=True, name=self.name)
        self.thread.start()

    def _run(self) -> None:
        try:
            self.work()
        except Exception as error:
            self.errors.append(f"{self.name}: {error!r}")

    def work(self) -> None:
        raise NotImplementedError

    def call_timed(self, what: str, timeout: float, call: Callable[[], Any]) -> Any:
        """Make a call and record it; its end is infinite unless it returns."""
        began = time.monotonic()
        place = len(self.history.calls)
        self.history.calls.append(Call(self.name, what, began, float("inf"), timeout))
        try:
            return call()
        finally:
            self.history.calls[place] = Call(self.name, what, began, time.monotonic(), timeout)


@attrs.define
class Writer(Client):
    """A producer that sends round robin to the partitions."""

    settings: dict[str, Any] = attrs.field(factory=dict)

    def work(self) -> None:
        logger = logging.Logger(self.name)
        logger.addHandler(SessionRecorder(self.name, self.history.session_events.append))
        producer = Producer(
            {
                "bootstrap.servers": self.run.address,
                **BASE,
                **self.settings,
                "message.timeout.ms": SEND_SECONDS * 1000,
                "message.max.bytes": 1_000_000,
                "batch.size": 4000,
                "debug": "eos",  # Says why it begins a new session; few lines.
                **self.run.writer_settings,
            },
            logger=logger,
        )
        sizes = random.Random(self.name)
        while not self.run.stop_writing.wait(self.run.pause):
            if len(self.waiting) >= UNANSWERED_MAX:
                producer.poll(0.05)
                continue
            number = len(self.history.sends)
            is_large = self.name == REFUSED and number % 500 == 250
            padding = bytes(TOO_LARGE) if is_large else b"." * sizes.randrange(200)
            self._send(producer, number, b"%s-%d-" % (self.name.encode(), number) + padding)
            producer.poll(0)
        self.call_timed("flush", SEND_SECONDS, lambda: producer.flush(SEND_SECONDS))
        for send in self.history.sends:
            if send.value in self.waiting:
                call = Call(self.name, "send", send.began, float("inf"), SEND_SECONDS)
                self.history.calls.append(call)

    waiting: set[bytes] = attrs.field(factory=set, repr=False)
    """The values of the records without an answer."""
    acknowledged_count: int = 0

    def _send(self, producer: Producer, number: int, value: bytes) -> None:
        place = (self.run.topic, number % self.run.partitions)
        began = time.monotonic()
        once = "enable.idempotence" in self.settings
        self.history.sends.append(Send(self.name, place, value, began, is_idempotent=once))
        self.waiting.add(value)

        def on_delivery(error: KafkaError | None, message: Any) -> None:
            outcome: Outcome = "ok"
            if error is not None:
                outcome = "failed" if error.code() in REFUSALS else "unknown"
            self.history.sends[number] = attrs.evolve(
                self.history.sends[number],
                outcome=outcome,
                offset=message.offset() if error is None else None,
            )
            self.waiting.discard(value)
            self.acknowledged_count += error is None
            call = Call(self.name, "send", began, time.monotonic(), SEND_SECONDS)
            self.history.calls.append(call)

        try:
            producer.produce(self.run.topic, value, partition=place[1], on_delivery=on_delivery)
        except KafkaException as error:
            if error.args[0].code() != KafkaError._UNKNOWN_PARTITION:
                raise
            self.history.sends.pop()  # The client has not learned of a new partition yet.
            self.waiting.discard(value)


@attrs.define
class Reader(Client):
    """A consumer; ``session`` changes whenever its positions do not follow from its polls."""

    settings: dict[str, Any] = attrs.field(factory=dict)
    group: str | None = None
    topic: str = ""
    """The topic that it reads; by default the run's."""
    session: int = 0
    positions: dict[Place, int] = attrs.field(factory=dict)

    @property
    def is_read_committed(self) -> bool:
        """Whether it gets no record of an open or aborted transaction, librdkafka's default."""
        return self.settings.get("isolation.level") != "read_uncommitted"

    def places(self) -> list[Place]:
        return [(self.topic or self.run.topic, n) for n in range(self.run.partitions)]

    def consumer(self, group: str | None = None) -> Any:
        return Consumer(
            {
                "bootstrap.servers": self.run.address,
                "group.id": group or self.group or self.name,
                "enable.auto.commit": False,
                "auto.offset.reset": "error" if self.group is None else "earliest",
                "fetch.wait.max.ms": 100,
                "session.timeout.ms": SESSION_SECONDS * 1000,
                "heartbeat.interval.ms": 500,
                "reconnect.backoff.ms": 20,
                "reconnect.backoff.max.ms": 100,
                "log_level": 0,
                **self.run.reader_settings,
                **self.settings,
            }
        )

    def poll(self, consumer: Any) -> int:
        """Poll once; one record at a time is returned, so none is of an earlier assignment."""
        began = time.monotonic()
        message = self.call_timed("poll", POLL_SECONDS, lambda: consumer.poll(POLL_SECONDS))
        if message is None:
            return 0
        place = (message.topic(), message.partition())
        if message.error() is not None:
            if message.error().code() == KafkaError._PARTITION_EOF:
                self.positions[place] = message.offset()
            elif message.error().code() not in HARMLESS:
                raise KafkaException(message.error())
            return 0
        record = (place, message.offset(), message.value())
        self.history.polls.append(
            Poll(
                self.name,
                began,
                time.monotonic(),
                (record,),
                self.session,
                self.group,
                self.is_read_committed,
            )
        )
        self.positions[place] = message.offset() + 1
        return 1


@attrs.define
class Assigned(Reader):
    """A consumer that reads all partitions from their start, without a group; new ones too."""

    def work(self) -> None:
        consumer = self.consumer()
        places: list[Place] = []
        while not (self.run.stop_reading.is_set() or self.run.is_drained(self)):
            if new := self.places()[len(places) :]:
                consumer.incremental_assign([TopicPartition(*place, 0) for place in new])
                places += new
            self.poll(consumer)
        self.call_timed("close", POLL_SECONDS, consumer.close)


@attrs.define
class Member(Reader):
    """A member of a group; it commits explicitly unless the client library does it.

    With ``visit_seconds`` it leaves after that time and joins again as another member.
    """

    visit_seconds: float | None = None

    def work(self) -> None:
        while not self._is_done():
            self._be_member(time.monotonic() + (self.visit_seconds or float("inf")))

    def _is_done(self) -> bool:
        return self.run.stop_reading.is_set() or self.run.is_drained(self)

    def _be_member(self, leave: float) -> None:
        consumer = self.consumer()
        consumer.subscribe([self.topic or self.run.topic], on_assign=self._on_assign)
        count = 0
        while not self._is_done() and time.monotonic() < leave:
            count += self.poll(consumer)
            if count >= 40 and "enable.auto.commit" not in self.settings:
                self._commit(consumer)
                count = 0
        self.call_timed("close", COMMIT_SECONDS, consumer.close)

    def _on_assign(self, consumer: Any, places: Any) -> None:
        self.session += 1
        self.uncommitted.clear()

    uncommitted: dict[Place, int] = attrs.field(factory=dict)

    def poll(self, consumer: Any) -> int:
        count = super().poll(consumer)
        if count:
            ((place, offset, _),) = self.history.polls[-1].records
            self.uncommitted[place] = offset + 1
        return count

    def _commit(self, consumer: Any) -> None:
        assert self.group is not None
        positions = dict(self.uncommitted)
        began = time.monotonic()
        first = len(self.history.commits)
        self.history.commits += [Commit(self.group, p, n, began) for p, n in positions.items()]
        offsets = [TopicPartition(*place, offset) for place, offset in positions.items()]
        outcome: Outcome = "ok"
        try:
            answer = self.call_timed(
                "commit",
                COMMIT_SECONDS,
                lambda: consumer.commit(offsets=offsets, asynchronous=False),
            )
            if any(partition.error is not None for partition in answer):
                outcome = "unknown"
        except KafkaException as error:
            outcome = "failed" if error.args[0].code() in FENCED else "unknown"
        ended = time.monotonic() if outcome == "ok" else float("inf")
        for number in range(first, first + len(positions)):
            commit = self.history.commits[number]
            self.history.commits[number] = attrs.evolve(commit, ended=ended, outcome=outcome)


@attrs.define
class Observer(Reader):
    """A client that reads the committed offsets of groups repeatedly."""

    groups: tuple[str, ...] = ()

    def work(self) -> None:
        consumers = {group: self.consumer(group) for group in self.groups}
        while not self.run.stop_reading.wait(0.1):
            for group, consumer in consumers.items():
                self.ask(group, consumer)
        for group, consumer in consumers.items():  # Once more after the members have left.
            self.ask(group, consumer)
            consumer.close()

    def ask(self, group: str, consumer: Any) -> None:
        places = [TopicPartition(self.run.topic, n) for n in range(self.run.partitions)]
        began = time.monotonic()
        try:
            answer = self.call_timed("committed", 5, lambda: consumer.committed(places, 5))
        except KafkaException:
            return  # The broker is down.
        ended = time.monotonic()
        self.history.committed += [
            Committed(
                group,
                (place.topic, place.partition),
                place.offset if place.offset >= 0 else None,
                began,
                ended,
            )
            for place in answer
            if place.error is None
        ]


@attrs.define
class Run:
    """All clients of one run against one broker or cluster."""

    address: str
    topic: str
    partitions: int
    """The number of the topic's partitions that clients use; it may grow."""
    pause: float = 0.003
    writer_settings: Mapping[str, Any] = attrs.field(factory=dict)
    reader_settings: Mapping[str, Any] = attrs.field(factory=dict)
    ends: dict[Place, int] = attrs.field(factory=dict)
    stop_writing: threading.Event = attrs.field(factory=threading.Event)
    stop_reading: threading.Event = attrs.field(factory=threading.Event)
    clients: list[Client] = attrs.field(factory=list, repr=False)

    def start(self) -> None:
        self.clients = self.make_clients()
        for client in self.clients:
            client.start()

    def make_clients(self) -> list[Client]:
        groups = (f"{self.topic}-commits", f"{self.topic}-auto")
        return [
            *(Writer(name, self, settings=dict(own)) for name, own in WRITERS.items()),
            Assigned("assigned", self),
            Member("member-1", self, group=groups[0]),
            Member("member-2", self, group=groups[0]),
            Member("visitor", self, group=groups[0], visit_seconds=1.5),
            Member(
                "auto",
                self,
                group=groups[1],
                settings={
                    "enable.auto.commit": True,
                    "auto.commit.interval.ms": 200,
                    "session.timeout.ms": STEADY_SESSION_SECONDS * 1000,
                },
            ),
            Observer("observer", self, groups=groups),
        ]

    def writers(self) -> list[Writer]:
        return [client for client in self.clients if isinstance(client, Writer)]

    def wait_for_more(self, count: int) -> None:
        """Wait until every producer has ``count`` more acknowledgements."""
        goals = {writer.name: writer.acknowledged_count + count for writer in self.writers()}
        eventually(
            lambda: all(w.acknowledged_count >= goals[w.name] for w in self.writers()),
            f"{count} acknowledgements more of each producer; errors: {self.errors()}",
            RECOVERY_SECONDS,
        )

    def is_drained(self, reader: Reader) -> bool:
        """Whether this reader, or its group together, has read all records."""
        if not self.ends:
            return False
        own = [c for c in self.clients if isinstance(c, Reader) and c.group == reader.group]
        readers = own if reader.group is not None else [reader]
        return all(
            max(member.positions.get(place, 0) for member in readers) >= self.ends[place]
            for place in reader.places()
        )

    def errors(self) -> list[str]:
        return [error for client in self.clients for error in client.errors]

    def finish(self, healed: float, seconds: float = 60.0) -> History:
        """End the producers, let the consumers read to the end, and join all observations."""
        self.stop_writing.set()
        for writer in self.writers():
            assert writer.thread is not None
            writer.thread.join(2 * SEND_SECONDS)
        self.ends = self.read_ends(self.topic)
        return self.finish_reading(healed, seconds)

    def finish_reading(self, healed: float, seconds: float) -> History:
        """Let the consumers read to the ends, and join all observations."""
        deadline = time.monotonic() + seconds
        readers = [c for c in self.clients if isinstance(c, Assigned | Member)]
        for reader in readers:
            assert reader.thread is not None
            reader.thread.join(max(deadline - time.monotonic(), 0.1))
        self.stop_reading.set()
        for client in self.clients:
            assert client.thread is not None
            client.thread.join(seconds)
        return self._history(healed)

    def read_ends(self, topic: str, isolation: str = "read_committed") -> dict[Place, int]:
        """Return the end offsets of a topic; at read_committed the last stable offsets."""
        consumer = Consumer(
            {
                "bootstrap.servers": self.address,
                "group.id": "ends",
                "isolation.level": isolation,
                "log_level": 0,
                **KEEP_BROKERS,
            }
        )
        errors: list[str] = []
        try:
            return {
                (topic, n): eventually(
                    partial(self._read_end, consumer, TopicPartition(topic, n), errors),
                    lambda: f"an end of {topic}; errors: {Counter(errors)}",
                )[0]
                for n in range(self.partitions)
            }
        finally:
            consumer.close()

    def _read_end(
        self, consumer: Any, place: TopicPartition, errors: list[str]
    ) -> tuple[int] | None:
        """Return an end offset; None if the broker that was asked no longer leads."""
        try:
            return (end_offset(consumer, place, 30),)
        except KafkaException as error:
            errors.append(f"{place.topic}-{place.partition}: {error.args[0].name()}")
            if error.args[0].retriable() or error.args[0].code() in MOVED:
                return None
            raise

    def _history(self, healed: float) -> History:
        whole = History(ends=self.ends, healed=healed)
        for client in self.clients:
            for part in OBSERVATIONS:
                getattr(whole, part).extend(getattr(client.history, part))
        return whole
