"""Measure how fast Spark reads topics of kwire and Apache Kafka, and how fast the pipeline is.

    python benchmarks/pipeline.py [--only read,job] [--rows N] [--rounds N] [--first REVISION]

read: Spark's Kafka source, as a batch and as a stream with `availableNow`, into no table, from
both brokers in turn. job: the command `kwire-pipeline run` from kwire to a table of Iceberg with
dead letters, and the same of an earlier revision of this repository, in turn; the time is that of
the whole command. To start the JVM and to compile costs each job half a minute of CPU, so its
factor grows with the rows. The records are orders of about 160 bytes in three partitions, one in a
hundred of them damaged. Printed are rows a second, and the CPU seconds that a million rows cost the
broker and Spark: other programs' load moves these less. Each round is printed, then the medians.
"""

import argparse
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

import attrs  # noqa: E402
from confluent_kafka import Producer  # noqa: E402
from pyspark.sql import SparkSession  # noqa: E402

from compat_tests.confluent_kafka.clients import create  # noqa: E402
from compat_tests.harness.broker import Broker, kafka, make_broker  # noqa: E402
from examples.orders.events import HOUR_MS, SCHEMA, orders  # noqa: E402
from kwire_pipeline import versions  # noqa: E402

PARTITIONS: Final = 3
DISTINCT: Final = 20_000
"""The count of different records, which are produced again and again."""
FIRST: Final = "17f0e71"
"""The revision with the first form of the pipeline."""
TOPIC: Final = "orders"
FILE: Final = """\
name: orders
source: {{bootstrap: "{address}", topics: [orders]}}
value: {{format: json, schema: "{schema}"}}
table: {{format: iceberg, warehouse: {folder}/lake, name: shop.orders}}
dead_letters: {{table: shop.dead}}
checkpoint: {folder}/checkpoint
spark: {{master: "local[2]"}}
"""


@attrs.frozen(kw_only=True)
class Figures:
    """The figures of one round."""

    rate: float
    """The rows a second."""
    cpu_s: float
    """The CPU seconds of a million rows."""

    def __str__(self) -> str:
        return f"{self.rate:10,.0f} rows/s {self.cpu_s:6.1f} CPU s a million rows"


@attrs.define
class Meter:
    """The time and the CPU time of a block."""

    rows: int
    used_s: Callable[[], float]
    """The CPU time so far, in seconds."""
    figures: Figures = attrs.field(init=False)
    _start_s: float = 0.0
    _used_before_s: float = 0.0

    def __enter__(self) -> "Meter":
        self._used_before_s, self._start_s = self.used_s(), time.monotonic()
        return self

    def __exit__(self, *error: object) -> None:
        elapsed_s, used_s = time.monotonic() - self._start_s, self.used_s() - self._used_before_s
        self.figures = Figures(rate=self.rows / elapsed_s, cpu_s=used_s * 1e6 / self.rows)


def cpu_s(*pids: int) -> float:
    """Return the CPU seconds of processes, 0 for one that has ended."""
    ticks = 0
    for pid in pids:
        with suppress(OSError):
            fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
            ticks += int(fields[11]) + int(fields[12])
    return ticks / os.sysconf("SC_CLK_TCK")


def descendants(pid: int) -> list[int]:
    """Return a process and those that it and its children have started."""
    pids = [pid]
    for parent in pids:
        with suppress(OSError):
            children = Path(f"/proc/{parent}/task/{parent}/children").read_text().split()
            pids += [int(child) for child in children]
    return pids


def broker_pid(broker: Broker) -> int:
    assert broker.process is not None
    return broker.process.pid


def fill(broker: Broker, rows: int) -> None:
    """Produce the orders to a new topic."""
    create(broker.address, TOPIC, PARTITIONS, retention_ms="-1")
    start_ms = int(time.time() * 1000) - 48 * HOUR_MS
    events = list(orders(DISTINCT, seed=1, damaged=0.01, late=0.02, start_ms=start_ms, hours=48))
    client = Producer({"bootstrap.servers": broker.address, "linger.ms": 50})
    for number in range(rows):
        event = events[number % DISTINCT]
        while True:
            try:
                client.produce(TOPIC, event.value, event.key, partition=number % PARTITIONS)
                break
            except BufferError:
                client.poll(0.1)
    assert client.flush(120) == 0


def read_batch(spark: SparkSession, broker: Broker, folder: Path) -> None:
    source = spark.read.format("kafka").option("kafka.bootstrap.servers", broker.address)
    source.option("subscribe", TOPIC).load().write.format("noop").mode("overwrite").save()


def read_stream(spark: SparkSession, broker: Broker, folder: Path) -> None:
    source = spark.readStream.format("kafka").option("kafka.bootstrap.servers", broker.address)
    frame = source.option("subscribe", TOPIC).option("startingOffsets", "earliest").load()
    writer = frame.writeStream.format("noop").option("checkpointLocation", str(folder))
    writer.trigger(availableNow=True).start().awaitTermination()


def measure_reads(folder: Path, rows: int, rounds: int) -> None:
    """Print how many rows a second Spark reads from each broker."""
    os.environ["PYSPARK_PYTHON"] = sys.executable
    brokers = {kind: make_broker(kind, folder / kind) for kind in ("kafka", "kwire")}
    builder = SparkSession.builder.master("local[2]").config("spark.ui.enabled", "false")
    package = versions.kafka_source(versions.installed_pyspark())
    builder = builder.config("spark.ui.showConsoleProgress", "false")
    spark = builder.config("spark.jars.packages", package).getOrCreate()
    spark.sparkContext.setLogLevel("ERROR")
    rounds_of: dict[str, list[Figures]] = {}
    gateway = spark.sparkContext._gateway
    assert gateway is not None
    java = gateway.proc.pid
    try:
        for broker in brokers.values():
            fill(broker, rows)
            read_batch(spark, broker, folder)  # compiles both
        for number in range(rounds):
            for name, read in (("batch", read_batch), ("available-now", read_stream)):
                for kind, broker in brokers.items():
                    with Meter(rows, partial(cpu_s, broker_pid(broker), java)) as meter:
                        read(spark, broker, folder / f"{kind}-{name}-{number}")
                    note(rounds_of, f"read, {name}, {kind}", meter.figures)
    finally:
        spark.stop()
        for broker in brokers.values():
            broker.close()
    show(rounds_of)


def measure_jobs(folder: Path, rows: int, rounds: int, revision: str) -> None:
    """Print how many rows a second the pipeline writes, and how many it wrote at a revision."""
    archive = folder / "first"
    archive.mkdir()
    script = f"git archive {revision} kwire_pipeline | tar -x -C {archive}"
    subprocess.run(script, shell=True, cwd=ROOT, check=True)
    broker = make_broker("kwire", folder / "kwire")
    rounds_of: dict[str, list[Figures]] = {}
    try:
        fill(broker, rows)
        for number in range(rounds):
            for name, tree in (("first", archive), ("now", ROOT)):
                target = folder / f"{name}-{number}"
                target.mkdir()
                arguments = first_arguments if name == "first" else arguments_now
                command = arguments(broker, target)
                note(rounds_of, f"job, {name}", run_job(tree, command, target / "log", rows))
    finally:
        broker.close()
    show(rounds_of)


def run_job(tree: Path, arguments: Sequence[str], log: Path, rows: int) -> Figures:
    """Run the pipeline of a tree from the start to the end of its process."""
    environment = {**os.environ, "PYTHONPATH": str(tree), "PYSPARK_PYTHON": sys.executable}
    command = [sys.executable, "-m", "kwire_pipeline", *arguments]
    used_s: dict[int, float] = {}
    with Meter(rows, lambda: sum(used_s.values())) as meter, log.open("wb") as output:
        process = subprocess.Popen(command, env=environment, cwd=tree, stdout=output, stderr=output)
        while process.poll() is None:
            for pid in descendants(process.pid):
                used_s[pid] = cpu_s(pid)
            time.sleep(0.2)
    if process.returncode:
        raise SystemExit(log.read_text(errors="replace")[-2000:])
    return meter.figures


def first_arguments(broker: Broker, folder: Path) -> list[str]:
    """Return the command line of the first form."""
    return [
        *("--bootstrap-servers", broker.address, "--topic", TOPIC, "--schema", SCHEMA),
        *("--format", "iceberg", "--warehouse", f"{folder}/lake", "--table", "kwire.shop.orders"),
        *("--dead-letters", "kwire.shop.dead", "--checkpoint", f"{folder}/checkpoint"),
        *("--master", "local[2]"),
    ]


def arguments_now(broker: Broker, folder: Path) -> list[str]:
    file = folder / "orders.yaml"
    file.write_text(FILE.format(address=broker.address, schema=SCHEMA, folder=folder))
    return ["run", str(file)]


def note(rounds_of: dict[str, list[Figures]], name: str, figures: Figures) -> None:
    rounds_of.setdefault(name, []).append(figures)
    print(f"{name:30} {figures}", flush=True)


def show(rounds_of: Mapping[str, Sequence[Figures]]) -> None:
    """Print the medians."""
    print("medians")
    for name, rounds in rounds_of.items():
        rate = statistics.median(figures.rate for figures in rounds)
        cpu = statistics.median(figures.cpu_s for figures in rounds)
        print(f"{name:30} {Figures(rate=rate, cpu_s=cpu)}", flush=True)


def main(arguments: Sequence[str]) -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", default="read,job")
    parser.add_argument("--rows", type=int, default=1_000_000)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--first", default=FIRST)
    options = parser.parse_args(arguments)
    parts = options.only.split(",")
    with tempfile.TemporaryDirectory() as scratch:
        if "read" in parts:
            kafka.fetch()
            (folder := Path(scratch) / "read").mkdir()
            measure_reads(folder, options.rows, options.rounds)
        if "job" in parts:
            (folder := Path(scratch) / "job").mkdir()
            measure_jobs(folder, options.rows, options.rounds, options.first)


if __name__ == "__main__":
    main(sys.argv[1:])
