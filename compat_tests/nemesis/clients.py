"""Clients of a cluster under faults: those of one broker (`recording.py`), and more.

Added are readers of aborted records, auditors that read old records again and again, watchers of
end offsets, and transformers: group members that produce in transactions what they consume.
"""

from __future__ import annotations

import queue
import random
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from typing import Any, Final

import attrs
from confluent_kafka import (
    OFFSET_INVALID,
    Consumer,
    KafkaError,
    KafkaException,
    Producer,
    TopicPartition,
)

from compat_tests.durability.history import History
from compat_tests.durability.load import BASE
from compat_tests.durability.observations import (
    Commit,
    End,
    EndOffset,
    Place,
    Poll,
    Send,
    Transaction,
)
from compat_tests.durability.recording import (
    HARMLESS,
    KEEP_BROKERS,
    POLL_SECONDS,
    RECOVERY_SECONDS,
    STEADY_SESSION_SECONDS,
    Assigned,
    Client,
    Member,
    Observer,
    Reader,
    Run,
    Writer,
    end_offset,
)
from compat_tests.harness.wait import eventually
from simulation.share_rules import FOREVER, Outcome

IMPATIENT: Final = {
    "socket.timeout.ms": 10_000,
    "topic.metadata.refresh.interval.ms": 1000,
    **KEEP_BROKERS,
}
"""A client must notice within seconds that a node is cut off."""
WRITER_SETTINGS: Final = {**IMPATIENT, "request.timeout.ms": 8000}
READER_SETTINGS: Final = {**IMPATIENT, "enable.partition.eof": True}
UNCOMMITTED: Final = {"isolation.level": "read_uncommitted"}
TRANSACTION_SECONDS: Final = 10
"""After this time the coordinators end the transaction and the membership of a client that is gone.

A transformer begins again as another member after an error; nothing is read before the former
member is removed, whose LeaveGroup may be lost.
"""
CALL_SECONDS: Final = 60
OFFSETS_SECONDS: Final = 15
"""The time after which a transformer begins again with a new producer.

librdkafka 2.16 waits for a group's coordinator that has left the metadata meanwhile until the state
of some broker changes (`rd_kafka_coord_req` checks its time limit nowhere), whatever time limit the
call has: so the call is left to a thread of its own.
"""
VISIT_SECONDS: Final = 10
"""The length of a visit to a group: its rebalance must leave time to read on a busy machine."""
MOST: Final = 100
"""The most records of one transaction."""
ABORTED_SHARE: Final = 0.15
"""The part of the transactions that a transformer aborts on purpose."""


def call_limited(call: Callable[[], Any], seconds: float) -> Any:
    """Make a call that may hang for ever; raise a time-out after some seconds."""
    results: queue.SimpleQueue[tuple[Any, KafkaException | None]] = queue.SimpleQueue()

    def run() -> None:
        try:
            results.put((call(), None))
        except KafkaException as error:
            results.put((None, error))

    threading.Thread(target=run, daemon=True).start()
    try:
        result, error = results.get(timeout=seconds)
    except queue.Empty:
        raise KafkaException(KafkaError(KafkaError._TIMED_OUT)) from None
    if error is not None:
        raise error
    return result


@attrs.define
class Auditor(Reader):
    """A consumer that seeks to a random offset, reads some records, and seeks again."""

    def work(self) -> None:
        consumer = self.consumer()
        chance = random.Random(self.name)
        assert isinstance(self.run, ClusterRun)
        while not self.run.stop_reading.is_set():
            place = chance.choice(self.places())
            end = self.run.highest_offset(place)
            self.session += 1
            consumer.assign([TopicPartition(*place, chance.randrange(end + 1))])
            for _ in range(50):
                self.poll(consumer)
                if self.run.stop_reading.is_set() or self.positions.get(place, 0) >= end:
                    break
        self.call_timed("close", POLL_SECONDS, consumer.close)


@attrs.define
class EndWatcher(Reader):
    """A client that reads the end offsets of all partitions repeatedly."""

    def work(self) -> None:
        consumer = self.consumer()
        while not self.run.stop_reading.wait(0.1):
            for place in self.places():
                self.ask(consumer, place)
        consumer.close()

    def ask(self, consumer: Any, place: Place) -> None:
        partition = TopicPartition(*place)
        began = time.monotonic()
        with suppress(KafkaException):  # The leader is down, or cut off.
            answer = self.call_timed("end", 5, lambda: end_offset(consumer, partition, 5))
            if answer is not None:
                self.history.end_offsets.append(
                    EndOffset(self.name, place, answer, began, time.monotonic())
                )


@attrs.define
class ClusterRun(Run):
    """The clients of a run of idempotent producers."""

    def make_clients(self) -> list[Client]:
        clients = super().make_clients()
        for client in clients:
            if isinstance(client, Member) and client.visit_seconds is not None:
                client.visit_seconds = VISIT_SECONDS
        return [
            *clients,
            Assigned("uncommitted", self, settings=UNCOMMITTED),
            Auditor("auditor", self, settings=UNCOMMITTED),
            EndWatcher("ends", self),
            EndWatcher("ends-uncommitted", self, settings=UNCOMMITTED),
        ]

    def topics(self) -> list[str]:
        return [self.topic]

    def highest_offset(self, place: Place) -> int:
        """Return an offset up to which some reader has read a partition."""
        readers = [c for c in self.clients if isinstance(c, Assigned)]
        return max((reader.positions.get(place, 0) for reader in readers), default=0)

    def wait_for_readers(self) -> None:
        """Wait until each reader and group has read what is at the ends now."""
        for topic in self.topics():
            ends = self.read_ends(topic)
            readers = [c for c in self.clients if isinstance(c, Assigned | Member | Transformer)]
            for reader in readers:
                own = [r for r in readers if r.group == reader.group]
                group = own if reader.group is not None else [reader]
                for place in set(reader.places()) & ends.keys():
                    self._wait_reached(reader.name, group, place, ends[place])

    def _wait_reached(self, name: str, group: Sequence[Reader], place: Place, end: int) -> None:
        def is_reached() -> bool:
            return max(reader.positions.get(place, 0) for reader in group) >= end

        eventually(
            lambda: is_reached() or self.errors(),
            f"{name} reaches {end} of {place}; errors: {self.errors()}",
            RECOVERY_SECONDS,
        )

    def finish(self, healed: float, seconds: float = 120.0) -> History:
        return self._add_ends(super().finish(healed, seconds))

    def _add_ends(self, history: History) -> History:
        history.samplers = {c.name for c in self.clients if isinstance(c, Auditor)}
        history.stable_ends = dict(self.ends)
        history.ends = {}
        for topic in self.topics():
            history.ends |= self.read_ends(topic, "read_uncommitted")
        return history

    def read_group(self, group: str) -> dict[Place, int]:
        consumer = Consumer(
            {"bootstrap.servers": self.address, "group.id": group, "log_level": 0, **IMPATIENT}
        )
        try:
            places = [TopicPartition(self.topic, n) for n in range(self.partitions)]
            answer = consumer.committed(places, 30)
        except KafkaException:
            return {}
        finally:
            consumer.close()
        return {
            (place.topic, place.partition): max(place.offset, 0)
            for place in answer
            if place.offset != OFFSET_INVALID
        }

    def summary(self) -> str:
        """Return what the summary of a run says beside the counts of the history."""
        return ""


@attrs.define
class Transformer(Reader):
    """A group member that produces in transactions what it consumes.

    Each output names its transaction and the record that it was made from.
    """

    target: str = ""
    number: int = 0
    _random: random.Random = attrs.field(factory=random.Random)

    def work(self) -> None:
        self._random = random.Random(self.name)
        assert isinstance(self.run, TransactionalRun)
        while not self.run.stop_transforming():
            producer = consumer = None
            try:
                producer = self._producer()
                consumer = self.consumer()
                self._transform(producer, consumer)
            except KafkaException as error:
                self.failures.append(str(error))
                time.sleep(0.1)
            finally:
                if consumer is not None:
                    self.call_timed("close", CALL_SECONDS, consumer.close)
                if producer is not None:
                    self.former_producers.append(producer)
                    with suppress(KafkaException):  # One that was fenced refuses even this.
                        producer.purge()
                        producer.flush(1)

    former_producers: list[Any] = attrs.field(factory=list)
    """They live as long as the process: the end of one that was fenced may hang in librdkafka."""
    failures: list[str] = attrs.field(factory=list)
    """The errors after which it began again with a new producer and consumer."""

    def _producer(self) -> Any:
        producer = Producer(
            {
                "bootstrap.servers": self.run.address,
                **BASE,
                **WRITER_SETTINGS,
                "transactional.id": self.name,
                "transaction.timeout.ms": TRANSACTION_SECONDS * 1000,
                "message.timeout.ms": TRANSACTION_SECONDS * 1000,
            }
        )
        self.call_timed(
            "init", CALL_SECONDS, lambda: self._repeat(producer.init_transactions, CALL_SECONDS)
        )
        return producer

    def _transform(self, producer: Any, consumer: Any) -> None:
        assert isinstance(self.run, TransactionalRun)
        consumer.subscribe([self.run.topic])
        while not self.run.stop_transforming():
            messages = self._consume(consumer)
            if messages:
                self._transact(producer, consumer, messages)
            else:
                self._note_positions(consumer)

    def _note_positions(self, consumer: Any) -> None:
        """Note the positions of the assigned partitions: all before them is transformed."""
        for partition in consumer.position(consumer.assignment()):
            if partition.offset >= 0:
                place = (partition.topic, partition.partition)
                self.positions[place] = max(partition.offset, self.positions.get(place, 0))

    def _consume(self, consumer: Any) -> list[Any]:
        began = time.monotonic()
        messages = self.call_timed(
            "consume", POLL_SECONDS, lambda: consumer.consume(MOST, POLL_SECONDS)
        )
        for message in messages:
            if message.error() is not None and message.error().code() not in HARMLESS:
                raise KafkaException(message.error())
        records = [message for message in messages if message.error() is None]
        for m in records:
            # Each poll is a session of its own: an aborted transaction's records come again.
            self.session += 1
            record = ((m.topic(), m.partition()), m.offset(), m.value())
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
        return records

    def _transact(self, producer: Any, consumer: Any, messages: list[Any]) -> None:
        self.number += 1
        name = f"{self.name}-{self.number}"
        producer.begin_transaction()
        outcome: End = "aborted"
        began = FOREVER
        offsets = {(m.topic(), m.partition()): m.offset() + 1 for m in messages}
        first = len(self.history.commits)
        assert self.group is not None
        self.history.commits += [
            Commit(self.group, place, offset, time.monotonic(), transaction=name)
            for place, offset in offsets.items()
        ]
        try:
            for message in messages:
                self._send(producer, name, message)
            positions = [TopicPartition(*place, offset) for place, offset in offsets.items()]
            member = consumer.consumer_group_metadata()
            self.call_timed(
                "send offsets",
                OFFSETS_SECONDS,
                lambda: call_limited(
                    lambda: producer.send_offsets_to_transaction(
                        positions, member, OFFSETS_SECONDS
                    ),
                    2 * OFFSETS_SECONDS,
                ),
            )
            if self._random.random() < ABORTED_SHARE:
                self._abort(producer, consumer, messages)
                return
            began, outcome = time.monotonic(), "unknown"
            self.call_timed(
                "commit", CALL_SECONDS, lambda: self._repeat(producer.commit_transaction, 30)
            )
            outcome = "committed"
        except KafkaException as error:
            if not error.args[0].txn_requires_abort():
                raise
            self._abort(producer, consumer, messages)
            outcome = "aborted"
        finally:
            self.history.transactions.append(Transaction(name, began, outcome))
            self._end_commits(first, len(offsets), outcome)
        self._note_positions(consumer)

    def _end_commits(self, first: int, count: int, outcome: End) -> None:
        outcomes: Mapping[End, Outcome] = {"committed": "ok", "aborted": "failed"}
        for number in range(first, first + count):
            self.history.commits[number] = attrs.evolve(
                self.history.commits[number],
                ended=time.monotonic() if outcome == "committed" else FOREVER,
                outcome=outcomes.get(outcome, "unknown"),
            )

    def _send(self, producer: Any, transaction: str, message: Any) -> None:
        number = len(self.history.sends)
        source = ((message.topic(), message.partition()), message.offset())
        value = b"%s/%d/%d" % (transaction.encode(), message.partition(), message.offset())
        place = (self.target, message.partition())
        self.history.sends.append(
            Send(
                self.name,
                place,
                value,
                time.monotonic(),
                is_idempotent=True,
                transaction=transaction,
                source=source,
            )
        )

        def on_delivery(error: KafkaError | None, report: Any) -> None:
            self.history.sends[number] = attrs.evolve(
                self.history.sends[number],
                outcome="unknown" if error is not None else "ok",
                offset=None if error is not None else report.offset(),
            )

        producer.produce(self.target, value, partition=place[1], on_delivery=on_delivery)

    def _abort(self, producer: Any, consumer: Any, messages: list[Any]) -> None:
        """Abort the transaction and seek back to its first records."""
        self._repeat(producer.abort_transaction, 30)
        first: dict[Place, int] = {}
        for message in messages:
            first.setdefault((message.topic(), message.partition()), message.offset())
        for place, offset in first.items():
            consumer.seek(TopicPartition(*place, offset))

    def _repeat(self, call: Any, *arguments: Any) -> None:
        """Make a call again while its error permits that."""
        deadline = time.monotonic() + 3 * CALL_SECONDS
        while True:
            try:
                call(*arguments)
                return
            except KafkaException as error:
                if not error.args[0].retriable() or time.monotonic() > deadline:
                    raise


@attrs.define
class TransactionalRun(ClusterRun):
    """The clients of a run in which transformers make a second topic of the first."""

    def target(self) -> str:
        return f"{self.topic}-results"

    def topics(self) -> list[str]:
        return [self.topic, self.target()]

    def make_clients(self) -> list[Client]:
        target, group = self.target(), f"{self.topic}-transformers"
        writers = ("idempotent", "idempotent-zstd")
        return [
            *(Writer(name, self, settings={"enable.idempotence": True}) for name in writers),
            *(
                Transformer(
                    f"transformer-{n}",
                    self,
                    group=group,
                    target=target,
                    settings={"session.timeout.ms": TRANSACTION_SECONDS * 1000},
                )
                for n in (1, 2)
            ),
            Assigned("assigned", self),
            Assigned("results", self, topic=target),
            Assigned("results-uncommitted", self, topic=target, settings=UNCOMMITTED),
            Auditor("auditor", self, topic=target, settings=UNCOMMITTED),
            Auditor("auditor-committed", self, topic=target),
            Member(
                "auto",
                self,
                topic=target,
                group=f"{target}-auto",
                settings={
                    "enable.auto.commit": True,
                    "auto.commit.interval.ms": 200,
                    "session.timeout.ms": STEADY_SESSION_SECONDS * 1000,
                },
            ),
            Observer("observer", self, groups=(group,)),
            EndWatcher("ends", self, topic=target),
            EndWatcher("ends-uncommitted", self, topic=target, settings=UNCOMMITTED),
        ]

    is_transforming_done: bool = False

    def stop_transforming(self) -> bool:
        return self.is_transforming_done

    def finish(self, healed: float, seconds: float = 120.0) -> History:
        self.stop_writing.set()
        for writer in self.writers():
            assert writer.thread is not None
            writer.thread.join(360)
        group = f"{self.topic}-transformers"
        source_ends = self.read_ends(self.topic)
        eventually(
            lambda: self.read_group(group) == source_ends or self.errors(),
            f"the transformers have committed {source_ends}",
            seconds,
        )
        self.is_transforming_done = True
        for client in self.clients:
            if isinstance(client, Transformer):
                assert client.thread is not None
                client.thread.join(seconds)
        self._wait_stable()
        self.ends = source_ends | self.read_ends(self.target())
        return self._add_ends(self.finish_reading(healed, seconds))

    def _wait_stable(self) -> None:
        """Wait until no transaction is open: those of former producers end by their time-out."""
        target = self.target()
        with suppress(AssertionError):  # The checks name the partition.
            eventually(
                lambda: self.read_ends(target) == self.read_ends(target, "read_uncommitted"),
                "no transaction is open",
                4 * TRANSACTION_SECONDS,
            )
