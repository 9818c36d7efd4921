"""The pipeline as users run it: after kills of it and the broker, each record is written once."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from kafka import KafkaAdminClient, KafkaProducer
from kafka.admin import NewTopic

from compat_tests.harness.broker import Broker
from kwire_pipeline.events import SCHEMA, events
from kwire_pipeline.session import ICEBERG

COUNT = 12_000
DAMAGED = 0.02


def fill(broker: Broker, topic: str, start: int, end: int) -> None:
    """Produce the events numbered ``start`` to ``end``, every one acknowledged."""
    producer = KafkaProducer(bootstrap_servers=broker.address, acks="all", linger_ms=5)
    start_ms = int(time.time() * 1000) - COUNT * 250
    chosen = list(events(COUNT, seed=7, damaged=DAMAGED, start_ms=start_ms))[start:end]
    for future in [producer.send(topic, key=key, value=value) for key, value in chosen]:
        future.get(60)
    producer.close()


def command(broker: Broker, topic: str, folder: Path, *, format: str) -> list[str]:
    tables = {
        "parquet": (str(folder / "orders"), str(folder / "dead")),
        "iceberg": ("kwire.shop.orders", "kwire.shop.dead"),
    }
    table, dead_letters = tables[format]
    return [
        sys.executable, "-m", "kwire_pipeline", "--bootstrap-servers", broker.address,
        "--topic", topic, "--schema", SCHEMA, "--format", format,
        "--table", table, "--dead-letters", dead_letters,
        "--checkpoint", str(folder / "checkpoint"),
        "--partition-by", "day=to_date(ordered_at)", "--master", "local[2]",
        "--source-option", "maxOffsetsPerTrigger=1500", "--warehouse", str(folder / "warehouse"),
    ]  # fmt: skip


def start(arguments: list[str], log: Path) -> subprocess.Popen[bytes]:
    environment = {**os.environ, "PYSPARK_PYTHON": sys.executable, "PYTHONPATH": os.getcwd()}
    with log.open("ab") as output:
        return subprocess.Popen(
            arguments, stdout=output, stderr=output, env=environment, start_new_session=True
        )


def committed_epochs(folder: Path) -> int:
    """Return the number of committed epochs of both queries."""
    return len(list(folder.glob("checkpoint/*/commits/[0-9]*")))


def kill_after(process: subprocess.Popen[bytes], folder: Path, epochs: int, log: Path) -> None:
    """Kill the driver with its JVM once it has committed ``epochs`` epochs."""
    deadline = time.monotonic() + 180
    while committed_epochs(folder) < epochs:
        assert process.poll() is None, log.read_text(errors="replace")[-3000:]
        assert time.monotonic() < deadline, "nothing was committed"
        time.sleep(0.05)
    os.killpg(process.pid, signal.SIGKILL)
    process.wait()


QUERY = """
import json, sys
from pyspark.sql import SparkSession, functions as F
kind, folder, iceberg = sys.argv[1:]
builder = SparkSession.builder.master("local[1]").config("spark.ui.enabled", "false")
if kind == "iceberg":
    catalog = "spark.sql.catalog.kwire"
    for key, value in {
        "spark.jars.packages": iceberg, catalog: "org.apache.iceberg.spark.SparkCatalog",
        catalog + ".type": "hadoop", catalog + ".warehouse": folder + "/warehouse",
    }.items():
        builder = builder.config(key, value)
spark = builder.getOrCreate()
if kind == "iceberg":
    orders, dead = spark.table("kwire.shop.orders"), spark.table("kwire.shop.dead")
else:
    orders, dead = spark.read.parquet(folder + "/orders"), spark.read.parquet(folder + "/dead")
spot = ["kafka_partition", "kafka_offset"]
both = orders.select(*spot).unionAll(dead.select(*spot))
print("ANSWER " + json.dumps({
    "orders": orders.count(), "ids": orders.select("order_id").distinct().count(),
    "dead": dead.count(), "raw": dead.where("raw is null").count(),
    "reasons": sorted(r.error for r in dead.select("error").distinct().collect()),
    "distinct": both.distinct().count(), "all": both.count(),
    "days": orders.where("day != to_date(ordered_at)").count(),
}))
"""


def answer(folder: Path, format: str) -> dict[str, object]:
    done = subprocess.run(
        [sys.executable, "-c", QUERY, format, str(folder), ICEBERG],
        capture_output=True, text=True, timeout=180, check=False,
        env={**os.environ, "PYSPARK_PYTHON": sys.executable},
    )  # fmt: skip
    lines = [line for line in done.stdout.splitlines() if line.startswith("ANSWER ")]
    assert lines, done.stderr[-3000:]
    counts: dict[str, object] = json.loads(lines[0].removeprefix("ANSWER "))
    return counts


@pytest.mark.parametrize("format", ["parquet", "iceberg"])
def test_each_record_once_though_driver_and_broker_are_killed(
    own_broker: Broker, topic: str, tmp_path: Path, format: str
) -> None:
    admin = KafkaAdminClient(bootstrap_servers=own_broker.address)
    admin.create_topics([NewTopic(topic, 3, 1)])
    admin.close()
    fill(own_broker, topic, 0, COUNT // 2)
    arguments = command(own_broker, topic, tmp_path, format=format)
    log = tmp_path / "pipeline.log"
    kill_after(start(arguments, log), tmp_path, 3, log)
    own_broker.kill()
    own_broker.restart()
    fill(own_broker, topic, COUNT // 2, COUNT)
    last = start(arguments, log)
    assert last.wait(240) == 0, log.read_text(errors="replace")[-3000:]

    values = [v for _, v in events(COUNT, seed=7, damaged=DAMAGED, start_ms=0)]
    counts = answer(tmp_path, format)
    assert counts["all"] == counts["distinct"] == len(values)
    assert counts["orders"] == counts["ids"]
    assert counts["dead"] == COUNT - sum(map(fits, values))
    assert counts["raw"] == counts["days"] == 0
    assert counts["reasons"] == ["not JSON", "order_id is missing", "quantity is not int"]


def fits(value: bytes) -> bool:
    try:
        order = json.loads(value)
    except ValueError:
        return False
    return "order_id" in order and isinstance(order["quantity"], int)
