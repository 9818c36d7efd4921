"""A pipeline in small batches, whose driver and brokers are killed at random moments.

    python -m compat_tests.pipeline.kills [--broker kwire|kafka] [--nodes 1|3] [--seed N]
        [--letters table|topic] [--records N] [--kills N] [--directory DIR]

A producer writes transactions, some of which it aborts, while the pipeline runs at an interval.
Between two slices of the records, the driver or a broker is killed with SIGKILL and started again;
of three brokers, the leaders move and then back. In the end `verify` must be clean, and the rows
and dead letters must be exactly the committed records that a consumer reads, each once. The same
seed draws the same kills, slices and aborts; their moments depend on the machine.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from random import Random
from typing import Any, Final

import attrs
from confluent_kafka import Consumer, ElectionType, KafkaException, Producer, TopicPartition
from confluent_kafka.admin import AdminClient

from compat_tests.cluster.nodes import Cluster, Node
from compat_tests.confluent_kafka.clients import create, is_end, partition_of
from compat_tests.harness.wait import eventually
from compat_tests.pipeline.command import FILE, command, run, start, value_of
from examples.orders.events import SCHEMA
from kwire_pipeline.config.load import load
from kwire_pipeline.engine.session import open_session
from kwire_pipeline.engine.shape_and_tables import destinations_of
from kwire_pipeline.tables.table import LETTERS

TOPIC, PARTITIONS = "orders", 3
LETTERS_IN: Final = {"table": "table: shop.dead", "topic": "topic: dead"}
"""The section dead_letters of the pipeline's file."""
RECORDS = 400_000
"""Those of transactions that are aborted are among them."""
KILLS = 8
IN_TRANSACTION = 1000
"""The records of a transaction."""
ABORTED_SHARE = 0.2
BATCH_OFFSETS = 5000
LARGER: Final = ("--limits.max_offsets_per_trigger", str(20 * BATCH_OFFSETS))
"""The flag with which a run ends soon."""
PROGRESS_SECONDS = 1200
"""The longest time without a batch, and until a cluster is whole again."""
FOR_ONE = {
    "transaction.state.log.replication.factor": "1",
    "transaction.state.log.min.isr": "1",
    "transaction.state.log.num.partitions": "3",
}
FOR_THREE = {
    "offsets.topic.replication.factor": "3",
    "default.replication.factor": "3",
    "min.insync.replicas": "2",
    "transaction.state.log.replication.factor": "3",
    "transaction.state.log.min.isr": "2",
    "transaction.state.log.num.partitions": "3",
    "broker.session.timeout.ms": "3000",
    "broker.heartbeat.interval.ms": "500",
}
OUTCOME_UNKNOWN, COMMITTED, ABORTED = "unknown", "committed", "aborted"


@attrs.define(eq=False)
class Writer:
    """A producer that writes transactions up to a limit, which grows."""

    bootstrap: str
    random: Random
    limit: int = 0
    """The end of the records that it may write now."""
    outcomes: dict[range, str] = attrs.field(factory=dict)
    """The outcome of each transaction, by the numbers of its records."""
    error: BaseException | None = None
    written: int = 0
    _is_closed: bool = False
    _thread: threading.Thread = attrs.field(init=False)

    def __attrs_post_init__(self) -> None:
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def wait(self) -> None:
        """Wait until it has written up to the limit."""

        def is_done() -> bool:
            if self.error is not None:
                raise AssertionError("the producer failed") from self.error
            return self.written >= self.limit

        eventually(is_done, lambda: f"{self.written} of {self.limit} written", PROGRESS_SECONDS)

    def close(self) -> None:
        self._is_closed = True
        self._thread.join(60)

    def _run(self) -> None:
        try:
            client = self._client()
            while not self._is_closed:
                if self.written >= self.limit:
                    time.sleep(0.02)
                    continue
                end = min(self.written + IN_TRANSACTION, self.limit)
                aborts = self.random.random() < ABORTED_SHARE
                client = self._write(client, self.written, end, aborts=aborts)
                self.written = end
        except BaseException as error:
            self.error = error

    def _client(self) -> Producer:
        settings = {"bootstrap.servers": self.bootstrap, "transactional.id": "orders"}
        quick = {"topic.metadata.refresh.interval.ms": 500, "log_level": 2}
        client = Producer({**settings, **quick})
        client.init_transactions(PROGRESS_SECONDS)
        return client

    def _write(self, client: Producer, first: int, end: int, *, aborts: bool) -> Producer:
        """Write one transaction; a client that cannot go on is replaced by another."""
        outcome = ABORTED
        try:
            client.begin_transaction()
            for number in range(first, end):
                client.produce(TOPIC, value_of(number), b"\xff", partition=number % PARTITIONS)
                client.poll(0)
            client.flush(PROGRESS_SECONDS)
            if aborts:
                client.abort_transaction(PROGRESS_SECONDS)
            else:
                outcome = OUTCOME_UNKNOWN  # unless the answer to the commit arrives
                client.commit_transaction(PROGRESS_SECONDS)
                outcome = COMMITTED
        except KafkaException as failure:
            if failure.args[0].txn_requires_abort():
                outcome = ABORTED
                client.abort_transaction(PROGRESS_SECONDS)
            else:
                client = self._client()
        self.outcomes[range(first, end)] = outcome
        return client


@attrs.define(eq=False)
class Trial:
    """One run with kills from a seed."""

    cluster: Cluster
    folder: Path
    random: Random
    driver: subprocess.Popen[bytes] | None = None
    events: list[str] = attrs.field(factory=list)

    @property
    def file(self) -> Path:
        return self.folder / "orders.yaml"

    @property
    def log(self) -> Path:
        return self.folder / "pipeline.log"

    @property
    def files(self) -> Path:
        """The folder of the checkpoint."""
        return self.folder

    def text(self, letters: str) -> str:
        """Return the pipeline's file."""
        return file_of(self.cluster.bootstrap, self.folder, letters)

    def kinds_of_kill(self) -> list[Callable[[], None]]:
        return [self.kill_driver, self.kill_broker]

    def start_driver(self) -> None:
        self.driver = start(command("run", self.file, "--trigger", "1 second"), self.log)

    def commits(self) -> int:
        """Return the count of batches whose commit Spark has noted, in all runs."""
        numbers = self.files.glob("checkpoint/*/commits/[0-9]*")
        return max((int(path.name) + 1 for path in numbers), default=0)

    def wait_batches(self, count: int) -> None:
        """Wait for more batches; a driver that a broker's end has ended is started again."""
        first = self.commits()

        def is_done() -> bool:
            assert self.driver is not None
            code = self.driver.poll()
            if code is not None:
                assert code == 1, self.tail()
                self.note("driver ended by itself, with exit code 1")
                self.start_driver()
            return self.commits() >= first + count

        eventually(is_done, self.tail, PROGRESS_SECONDS)

    def kill_driver(self) -> None:
        """Kill the driver with its JVM."""
        assert self.driver is not None
        os.killpg(self.driver.pid, signal.SIGKILL)
        self.driver.wait()
        self.note("driver killed")
        self.start_driver()

    def kill_broker(self) -> None:
        node = self.random.choice(self.cluster.brokers)
        node.kill()
        self.note(f"broker {node.id} killed")
        time.sleep(self.random.random() * 3)
        node.launch()
        self.cluster.wait_complete(PROGRESS_SECONDS)
        if len(self.cluster.brokers) > 1:
            self.move_leaders_back(node)

    def move_leaders_back(self, node: Node) -> None:
        """Elect the preferred leaders once the node's copies are in sync."""
        admin = AdminClient({"bootstrap.servers": self.cluster.bootstrap})

        def is_in_sync() -> bool:
            try:
                topic = admin.list_topics(TOPIC, timeout=5).topics[TOPIC]
            except KafkaException:
                return False
            return all(node.id in part.isrs for part in topic.partitions.values())

        eventually(is_in_sync, lambda: f"{node.id} in sync: {self.cluster.tails()}", 120)
        parts = [TopicPartition(TOPIC, number) for number in range(PARTITIONS)]
        admin.elect_leaders(ElectionType.PREFERRED, parts).result(60)
        self.note("preferred leaders elected")

    def note(self, event: str) -> None:
        self.events.append(f"{self.commits()}: {event}")
        print(f"{self.commits():4} batches: {event}", flush=True)

    def tail(self) -> str:
        return self.log.read_text(errors="replace")[-3000:]

    def finish(self) -> None:
        """Stop the driver in order, then run to the end of the topic in larger batches.

        The signal is for the driver alone: Java ends at once by it.
        """
        assert self.driver is not None
        self.driver.terminate()
        assert self.driver.wait(PROGRESS_SECONDS) == 0, self.tail()
        assert run(command("run", self.file, *LARGER), self.log) == 0, self.tail()

    def operate(self, writer: Writer) -> None:
        """Do what a trial's operators do after its kills."""

    def check(self, outcomes: dict[range, str]) -> None:
        """Assert that the tables have exactly the committed records, each once."""
        committed = read_committed(self.cluster.bootstrap)
        check_outcomes(committed, outcomes)
        self.check_verified(committed)
        written = self.check_tables(committed)
        self.note(f"{written['copies']} dead letters are in their topic once more")
        # No reader sees a letter that waits for an in-sync replica, so a repeated batch copies it.
        assert written["copies"] == 0 or len(self.cluster.brokers) > 1

    def check_verified(self, committed: dict[tuple[int, int], int]) -> None:
        """Assert that `verify` finds each record that the topic has, once."""
        answer = self.folder / "answer"
        answer.unlink(missing_ok=True)
        assert run(command("verify", self.file), answer) == 0, answer.read_text()[-3000:]
        count = len(committed)
        assert f"{count:,} committed records in the topics: {count:,} once" in answer.read_text()

    def check_tables(self, committed: dict[tuple[int, int], int]) -> dict[str, Any]:
        """Assert that the tables have these records, each once; return what they have."""
        written = self.tables()
        rows = Counter((p, o, number) for p, o, number in written["rows"])
        letters = Counter((p, o) for p, o in written["letters"])
        good = {(p, o, name_of(n)) for (p, o), n in committed.items() if n % 50 != 49}
        bad = {spot for spot, n in committed.items() if n % 50 == 49}
        assert {row for row, times in rows.items() if times > 1} == set()
        assert {spot for spot, times in letters.items() if times > 1} == set()
        assert rows.keys() == good
        assert letters.keys() == bad
        return written

    def tables(self) -> dict[str, Any]:
        """Return the offsets and ids of the rows, and the offsets of the dead letters."""
        target = self.folder / "offsets.json"
        script = [sys.executable, "-m", "compat_tests.pipeline.kills", "--dump", str(self.file)]
        assert run([*script, "--target", str(target)], self.log) == 0, self.tail()
        written: dict[str, Any] = json.loads(target.read_text())
        return written


def name_of(number: int) -> str:
    """Return the id of an order, as `value_of` writes it."""
    return f"o-{number:06d}"


def read_committed(bootstrap: str) -> dict[tuple[int, int], int]:
    """Return the numbers of the committed records by partition and offset."""
    settings = {"bootstrap.servers": bootstrap, "group.id": "check", "enable.partition.eof": True}
    whole = {"isolation.level": "read_committed", "auto.offset.reset": "earliest"}
    client = Consumer({**settings, **whole})
    records: dict[tuple[int, int], int] = {}
    try:
        client.assign([TopicPartition(TOPIC, number, 0) for number in range(PARTITIONS)])
        ends: set[int] = set()
        deadline = time.monotonic() + PROGRESS_SECONDS
        while len(ends) < PARTITIONS:
            assert time.monotonic() < deadline, f"only {len(records)} records were read"
            for message in client.consume(10_000, 1):
                if is_end(message):
                    ends.add(partition_of(message))
                if message.error() is not None:
                    continue
                offset, value = message.offset(), message.value()
                assert offset is not None
                assert value is not None
                number = int(value[16:22])  # {"order_id": "o-000000"
                records[partition_of(message), offset] = number
    finally:
        client.close()
    return records


def check_outcomes(committed: dict[tuple[int, int], int], outcomes: dict[range, str]) -> None:
    """Assert that the topic has what was committed, once, and nothing that was aborted."""
    numbers = Counter(committed.values())
    assert {number for number, times in numbers.items() if times > 1} == set()
    for transaction, outcome in outcomes.items():
        present = sum(number in numbers for number in transaction)
        expected = {COMMITTED: {len(transaction)}, ABORTED: {0}}
        either = {0, len(transaction)}
        assert present in expected.get(outcome, either), f"{present} of {transaction}, {outcome}"


def dump(file: str, target: Path) -> None:
    """Write the offsets and ids of the rows, and the offsets of the dead letters."""
    pipeline = load(file, [], os.environ)
    spark = open_session(pipeline)
    try:
        tables = destinations_of(spark, pipeline)
        assert tables.dead_letters is not None
        rows = tables.table.read().select("kafka_partition", "kafka_offset", "order_id")
        letters = tables.dead_letters.read().select(LETTERS.partition, LETTERS.offset)
        copies = tables.dead_letters.copies()
        written = {"rows": rows.collect(), "letters": letters.collect(), "copies": copies}
        target.write_text(json.dumps(written))
    finally:
        spark.stop()


def file_of(bootstrap: str, folder: Path, letters: str) -> str:
    """Return the pipeline's file."""
    text = FILE.format(
        broker=bootstrap, topic=TOPIC, schema=SCHEMA, letters=LETTERS_IN[letters], folder=folder
    )
    limit = "max_offsets_per_trigger: "
    return text.replace(f"{limit}400", f"{limit}{BATCH_OFFSETS}")


def run_trial(
    folder: Path,
    kind: str,
    *,
    nodes: int,
    letters: str,
    seed: int,
    records: int,
    kills: int,
    make: Callable[[Cluster, Path, Random], Trial] = Trial,
) -> Sequence[str]:
    """Run the pipeline under kills from a seed and check its tables; return what happened."""
    random = Random(seed)
    cluster = Cluster(folder / "cluster", FOR_ONE if nodes == 1 else FOR_THREE)
    for node_id in range(1, nodes + 1):
        cluster.add(node_id, kind)
    trial = make(cluster, folder, random)
    writer = None
    try:
        cluster.start(features=())
        create(cluster.bootstrap, TOPIC, PARTITIONS, nodes)
        create(cluster.bootstrap, "dead", PARTITIONS, nodes)
        trial.file.write_text(trial.text(letters))
        writer = Writer(cluster.bootstrap, Random(seed + 1))
        trial.start_driver()
        kinds = trial.kinds_of_kill()
        actions = kinds * (kills // len(kinds))
        random.shuffle(actions)
        for number, action in enumerate(actions, 1):
            writer.limit = records * number // (len(actions) + 1)
            trial.wait_batches(random.randint(1, 3))
            time.sleep(random.random() * 3)
            action()
            writer.wait()
        writer.limit = records
        writer.wait()
        trial.wait_batches(1)
        trial.finish()
        trial.check(writer.outcomes)
        trial.operate(writer)
        trial.note(f"{Counter(writer.outcomes.values())} of transactions; all is as it must be")
    finally:
        if writer is not None:
            writer.close()
        if trial.driver is not None and trial.driver.poll() is None:
            os.killpg(trial.driver.pid, signal.SIGKILL)
            trial.driver.wait()
        cluster.close()
    return trial.events


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--broker", default="kwire", choices=["kwire", "kafka"])
    parser.add_argument("--nodes", type=int, default=1, choices=[1, 3])
    parser.add_argument("--letters", default="table", choices=list(LETTERS_IN))
    parser.add_argument("--seed", type=int, default=Random().randrange(1 << 32))
    parser.add_argument("--records", type=int, default=RECORDS)
    parser.add_argument("--kills", type=int, default=KILLS)
    parser.add_argument("--directory", type=Path)
    parser.add_argument("--dump", help=argparse.SUPPRESS)
    parser.add_argument("--target", type=Path, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.dump is not None:
        dump(arguments.dump, arguments.target)
        return
    folder = arguments.directory or Path(tempfile.mkdtemp(prefix="kwire-kills-"))
    print(f"seed {arguments.seed}, in {folder}", flush=True)
    run_trial(
        folder,
        arguments.broker,
        nodes=arguments.nodes,
        letters=arguments.letters,
        seed=arguments.seed,
        records=arguments.records,
        kills=arguments.kills,
    )


if __name__ == "__main__":
    main()
