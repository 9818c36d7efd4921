"""Many tables in one process: their CPU time and memory, and a bad topic among them.

    python -m compat_tests.pipeline.many [--tables N] [--records N] [--beside N] [--directory DIR]

One run writes the topics into their tables; one more topic lacks its schema. Then as many of the
topics as ``--beside`` says are written again, each by a run of its own into a table of its own, and
their mean CPU time times the number of tables is compared with that of the one run. In the end a
run at an interval finds an old topic with new records and a topic that is new. Each good topic must
have its records in its table once, as the runs report and `verify` finds in some of them.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import statistics
import subprocess
import tempfile
import time
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Final

import attrs
from kafka import KafkaAdminClient, KafkaProducer
from kafka.admin import NewTopic

from compat_tests.harness.broker import Broker, make_broker
from compat_tests.harness.wait import eventually
from compat_tests.pipeline.command import command, start, value_of
from examples.orders.events import SCHEMA

SECONDS: Final = 7200
"""The longest time of a run."""
BAD: Final = "t.bad"
COMMON: Final = """\
value: {{format: json, schema: "@{schema}"}}
table: {{format: iceberg, warehouse: {folder}/lake, name: "{table}"}}
dead_letters: {{table: "{table}_dead"}}
checkpoint: {folder}/{checkpoint}
spark: {{master: "local[2]"}}
"""
MANY: Final = """\
name: raw
source: {{bootstrap: "{broker}", pattern: "t[.].*"}}
"""
ONE: Final = """\
name: one-{topic}
source: {{bootstrap: "{broker}", topics: ["{topic}"]}}
"""


@attrs.define
class Usage:
    """The CPU time and the largest memory of a process and of its children."""

    pid: int
    cpu_s: dict[int, float] = attrs.field(factory=dict)
    peak_kb: dict[int, int] = attrs.field(factory=dict)

    def look(self) -> None:
        pids = [self.pid]
        for pid in pids:
            try:
                children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
                fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
                status = Path(f"/proc/{pid}/status").read_text()
            except OSError:
                continue
            pids += [int(child) for child in children]
            ticks = int(fields[11]) + int(fields[12])
            self.cpu_s[pid] = ticks / os.sysconf("SC_CLK_TCK")
            if "VmHWM:" in status:
                self.peak_kb[pid] = int(status.partition("VmHWM:")[2].split()[0])

    @property
    def cpu(self) -> float:
        return sum(self.cpu_s.values())

    @property
    def peak_mb(self) -> float:
        """The peak of the largest process, which is Spark's JVM."""
        return max(self.peak_kb.values()) / 1024


@attrs.define
class Process:
    """A command of the pipeline as a process, and what it used so far."""

    process: subprocess.Popen[bytes]
    log: Path
    usage: Usage
    began_s: float = attrs.field(factory=time.monotonic)

    @classmethod
    def start(cls, log: Path, *arguments: str) -> Process:
        process = start(list(arguments), log)
        return cls(process, log, Usage(process.pid))

    def tail(self) -> str:
        return self.log.read_text(errors="replace")[-3000:]

    def has_ended(self) -> bool:
        self.usage.look()
        return self.process.poll() is not None

    def end(self, *codes: int) -> None:
        """Wait for its end, with one of these exit codes."""
        eventually(self.has_ended, self.tail, SECONDS)
        assert self.process.returncode in codes, self.tail()

    def rows(self) -> Counter[str]:
        """Return the rows and dead letters that it has reported, by table."""
        counts: Counter[str] = Counter()
        for line in self.log.read_text().splitlines():
            if line.startswith("{"):
                batch = json.loads(line)
                counts[batch.get("table", "")] += batch["rows"] + batch["dead_letters"]
        return counts

    def words(self) -> str:
        elapsed_s = time.monotonic() - self.began_s
        return (
            f"{elapsed_s:.0f} s, {self.usage.cpu:.1f} s of CPU, JVM {self.usage.peak_mb:.0f} MB "
            "at most"
        )


@attrs.define
class Many:
    """The topics and tables of one trial."""

    broker: Broker
    folder: Path
    records: int

    @property
    def file(self) -> Path:
        return self.folder / "raw.yaml"

    def write_files(self, topics: Sequence[str]) -> None:
        many = MANY + COMMON
        named = {"broker": self.broker.address, "folder": self.folder}
        text = many.format(
            **named, schema="{topic}.ddl", table="raw.{topic}", checkpoint="checkpoint"
        )
        self.file.write_text(text)
        for topic in topics:
            own = table_of(topic).replace("raw.", "one.")
            text = (ONE + COMMON).format(
                **named, topic=topic, schema=f"{topic}.ddl", table=own, checkpoint=f"one/{topic}"
            )
            (self.folder / f"{topic}.yaml").write_text(text)

    def add(self, *topics: str) -> None:
        """Create topics, with their schemas but for the bad one."""
        admin = KafkaAdminClient(bootstrap_servers=self.broker.address)
        admin.create_topics([NewTopic(topic, 1, 1) for topic in topics])
        admin.close()
        for topic in topics:
            if topic != BAD:
                (self.folder / f"{topic}.ddl").write_text(SCHEMA)

    def fill(self, *topics: str) -> None:
        producer = KafkaProducer(bootstrap_servers=self.broker.address, acks="all", linger_ms=20)
        futures = [
            producer.send(topic, value_of(number))
            for topic in topics
            for number in range(self.records)
        ]
        for future in futures:
            future.get(120)
        producer.close()

    def run(self, name: str, file: Path, *flags: str) -> Process:
        return Process.start(self.folder / f"{name}.log", *command("run", file, *flags))


def table_of(topic: str) -> str:
    return "raw." + topic.replace(".", "_")


def note(words: str) -> None:
    print(words, flush=True)


def run_trial(folder: Path, *, tables: int, records: int, beside: int) -> None:
    broker = make_broker("kwire", folder / "broker")
    try:
        many = Many(broker, folder, records)
        topics = [f"t.{number:03}" for number in range(tables)]
        many.add(*topics, BAD)
        many.fill(*topics, BAD)
        many.write_files(topics[:beside])
        expected = Counter({table_of(topic): records for topic in topics})
        whole = many.run("many", many.file)
        whole.end(2)
        assert whole.rows() == expected
        assert f"1 of {tables + 1} tables failed: {table_of(BAD)}" in whole.tail()
        note(f"{tables} tables in one run: {whole.words()}")
        if beside:
            compare(many, topics[:beside], whole)
        continue_at_an_interval(many, topics[0])
        for topic in (topics[0], topics[-1], "t.late"):
            flags = ("--table", table_of(topic))
            proof = Process.start(folder / "verify.log", *command("verify", many.file, *flags))
            proof.end(0)
        note("all is as it must be")
    finally:
        broker.close()


def compare(many: Many, topics: Sequence[str], whole: Process) -> None:
    """Run some topics alone, and print the CPU of the one run as a share of that of all of them."""
    alone = []
    for topic in topics:
        single = many.run(topic, many.folder / f"{topic}.yaml")
        single.end(0)
        assert sum(single.rows().values()) == many.records
        alone.append(single.usage.cpu)
    mean_s = statistics.mean(alone)
    tables = len(whole.rows())
    note(
        f"a run of one table, mean of {len(alone)}: {mean_s:.1f} s of CPU; "
        f"one run of {tables} / {tables} runs: {whole.usage.cpu / (mean_s * tables):.3f}"
    )


def continue_at_an_interval(many: Many, old: str) -> None:
    """Run at an interval until a topic with new records and one that is new are written."""
    many.fill(old)
    run = many.run("interval", many.file, "--trigger", "5 seconds")

    def has(*topics: str) -> bool:
        assert not run.has_ended(), run.tail()
        return run.rows() == Counter({table_of(topic): many.records for topic in topics})

    eventually(lambda: has(old), run.tail, SECONDS)
    note(f"run at an interval, until a topic's new records are written: {run.words()}")
    began_s, used_s = time.monotonic(), run.usage.cpu
    many.add("t.late")
    many.fill("t.late")
    eventually(lambda: has(old, "t.late"), run.tail, SECONDS)
    elapsed_s = time.monotonic() - began_s
    note(
        f"a new topic is written {elapsed_s:.0f} s after its creation, with "
        f"{run.usage.cpu - used_s:.1f} s of CPU"
    )
    os.kill(run.process.pid, signal.SIGTERM)
    run.end(2)
    note(f"to the end: {run.words()}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--tables", type=int, default=50)
    parser.add_argument("--records", type=int, default=1000)
    parser.add_argument("--beside", type=int, default=5)
    parser.add_argument("--directory", type=Path)
    arguments = parser.parse_args()
    folder = arguments.directory or Path(tempfile.mkdtemp(prefix="kwire-many-"))
    run_trial(folder, tables=arguments.tables, records=arguments.records, beside=arguments.beside)


if __name__ == "__main__":
    main()
