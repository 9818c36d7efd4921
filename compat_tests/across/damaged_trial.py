"""Judge damaged batches of records, in all codecs, and read what kwire stores with other clients.

    python -m compat_tests.across.damaged_trial [--count N] [--seed N] [--jobs N]

kafka-python reads the batches in the processes of the jobs, Java's consumer code in one JVM, which
also says whether a leader of Apache Kafka 4.3.1 stores them. Prints the number of stored batches
that each client cannot read. Batches with an oddity, on which some clients fail, are counted by
it; a batch without one that a client cannot read is a fault, and ends the program with 1.
"""

from __future__ import annotations

import argparse
import multiprocessing
import sys
import tempfile
import warnings
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import attrs

from compat_tests.harness.broker import kafka
from compat_tests.harness.jvm import compile_classes, launch
from kwire.records.header import parse
from tests.support.records import damaged

SOURCE: Final = Path(__file__).resolve().parent / "BatchReader.java"
CHUNK: Final = 200
JVM_FLAGS: Final = ("-Xms64m", "-Xmx256m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1")
ANSWER_SECONDS: Final = 300
NO_ODDITY: Final = "none"


@attrs.frozen
class Stored:
    """A batch that kwire stores."""

    seed: int
    batch: bytes
    oddity: str
    is_read_by_python: bool

    @property
    def record_count(self) -> int:
        return parse(self.batch).record_count


def judge(first_seed: int) -> list[Stored]:
    """Return the stored batches of one chunk of seeds."""
    warnings.simplefilter("ignore")  # kafka-python warns of a deprecated name in each batch.
    stored = list[Stored]()
    for seed in range(first_seed, first_seed + CHUNK):
        batch = damaged.batch_of(seed)
        if damaged.is_accepted(batch):
            oddity = damaged.oddity(batch) or NO_ODDITY
            stored.append(Stored(seed, batch, oddity, is_read_by_python(batch)))
    return stored


def is_read_by_python(batch: bytes) -> bool:
    try:
        return damaged.read(batch) == parse(batch).record_count
    except Exception:  # Whatever a decoder raises, the batch is not read.
        return False


@attrs.define
class Counts:
    """The stored batches by oddity: all of them, and those that someone does not take."""

    stored: Counter[str] = attrs.field(factory=Counter)
    not_by_python: Counter[str] = attrs.field(factory=Counter)
    not_by_java: Counter[str] = attrs.field(factory=Counter)
    not_by_apache: Counter[str] = attrs.field(factory=Counter)
    faults: list[str] = attrs.field(factory=list)

    def add(self, each: Stored, answer: str) -> None:
        """Count a batch, with the answer of the JVM."""
        read, store = answer.split()
        is_read_by_java = read == str(each.record_count)
        self.stored[each.oddity] += 1
        self.not_by_python[each.oddity] += not each.is_read_by_python
        self.not_by_java[each.oddity] += not is_read_by_java
        self.not_by_apache[each.oddity] += store != "stored"
        if each.oddity == NO_ODDITY and not (each.is_read_by_python and is_read_by_java):
            clients = f"kafka-python {each.is_read_by_python}, Java {read}"
            self.faults.append(f"seed {each.seed}: stored, read by {clients}")

    def lines(self) -> Iterator[str]:
        yield "| oddity | stored | unread by kafka-python | by Java | not stored by Apache Kafka |"
        yield "|---|---:|---:|---:|---:|"
        for oddity, count in self.stored.most_common():
            columns = (self.not_by_python, self.not_by_java, self.not_by_apache)
            numbers = " | ".join(str(column[oddity]) for column in columns)
            yield f"| {oddity} | {count} | {numbers} |"


def run(seed: int, count: int, jobs: int) -> Counts:
    """Judge and read the batches of ``count`` seeds."""
    counts = Counts()
    classes = compile_classes([SOURCE], "compat-batches", "BatchReader")
    command = kafka.java_command("BatchReader", classpath=[str(classes)])
    command[1:1] = JVM_FLAGS
    with tempfile.TemporaryDirectory() as directory, multiprocessing.Pool(jobs) as pool:
        process, answers = launch(command, Path(directory) / "jvm.log")
        assert process.stdin is not None
        try:
            for chunk in pool.imap_unordered(judge, range(seed, seed + count, CHUNK)):
                process.stdin.writelines(f"{each.batch.hex()}\n" for each in chunk)
                process.stdin.flush()
                for each in chunk:
                    counts.add(each, answers.get(timeout=ANSWER_SECONDS).strip())
        finally:
            process.kill()
            process.wait()
    return counts


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--count", type=int, default=20_000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--jobs", type=int, default=1, help="processes that judge batches")
    options = parser.parse_args()
    counts = run(options.seed, options.count, options.jobs)
    print(f"{options.count} batches, {counts.stored.total()} stored")
    print("\n".join([*counts.lines(), *counts.faults]))
    sys.exit(bool(counts.faults))


if __name__ == "__main__":
    main()
