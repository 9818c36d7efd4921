"""The pipeline as users run it: after kills of it and the broker, each record is written once."""

from __future__ import annotations

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
from kwire_pipeline.events import SCHEMA

COUNT = 2000
FILE = """\
name: orders
source: {{bootstrap: "{broker}", topics: [{topic}]}}
value: {{format: json, schema: "{schema}"}}
table:
  {{format: iceberg, warehouse: {folder}/lake, name: shop.orders, partition_by: days(ordered_at)}}
dead_letters: {{{letters}}}
checkpoint: {folder}/checkpoint
limits: {{max_offsets_per_trigger: 400}}
spark: {{master: "local[2]"}}
"""


def value_of(number: int) -> bytes:
    """Return an order; one in fifty lacks its end."""
    order = {
        "order_id": f"o-{number:06d}",
        "quantity": 1 + number % 3,
        "price": number / 4,
        "ordered_at": f"2026-11-{1 + number % 3:02d}T12:00:00Z",
    }
    text = json.dumps(order)
    return text[: -1 if number % 50 == 49 else None].encode()


def fill(broker: Broker, topic: str, start: int, end: int) -> None:
    """Produce the orders numbered ``start`` to ``end``, every one acknowledged."""
    producer = KafkaProducer(bootstrap_servers=broker.address, acks="all", linger_ms=5)
    futures = [producer.send(topic, key=b"\xff", value=value_of(n)) for n in range(start, end)]
    for future in futures:
        future.get(60)
    producer.close()


def command(name: str, file: Path, *flags: str) -> list[str]:
    return [sys.executable, "-m", "kwire_pipeline", name, str(file), *flags]


def start(arguments: list[str], log: Path) -> subprocess.Popen[bytes]:
    environment = {**os.environ, "PYSPARK_PYTHON": sys.executable, "PYTHONPATH": os.getcwd()}
    with log.open("ab") as output:
        return subprocess.Popen(
            arguments, stdout=output, stderr=output, env=environment, start_new_session=True
        )


def run(arguments: list[str], log: Path) -> int:
    return start(arguments, log).wait(400)


def kill_after(process: subprocess.Popen[bytes], folder: Path, count: int, log: Path) -> None:
    """Kill the driver with its JVM once it has committed ``count`` batches."""
    deadline = time.monotonic() + 400
    while len(list(folder.glob("checkpoint/*/commits/[0-9]*"))) < count:
        assert process.poll() is None, log.read_text(errors="replace")[-3000:]
        assert time.monotonic() < deadline, "nothing was committed"
        time.sleep(0.05)
    os.killpg(process.pid, signal.SIGKILL)
    process.wait()


@pytest.mark.long
@pytest.mark.parametrize("letters", ["table: shop.dead", "topic: dead"])
def test_each_record_once_though_driver_and_broker_are_killed(
    own_broker: Broker, topic: str, tmp_path: Path, letters: str
) -> None:
    admin = KafkaAdminClient(bootstrap_servers=own_broker.address)
    admin.create_topics([NewTopic(topic, 3, 1), NewTopic("dead", 2, 1)])
    admin.close()
    file, log = tmp_path / "orders.yaml", tmp_path / "pipeline.log"
    file.write_text(
        FILE.format(
            broker=own_broker.address,
            topic=topic,
            schema=SCHEMA,
            letters=letters,
            folder=tmp_path,
        )
    )
    fill(own_broker, topic, 0, COUNT // 2)
    kill_after(start(command("run", file), log), tmp_path, 1, log)
    own_broker.kill()
    own_broker.restart()
    fill(own_broker, topic, COUNT // 2, COUNT)
    assert run(command("run", file), log) == 0, log.read_text(errors="replace")[-3000:]
    answer = tmp_path / "answer"
    assert run(command("verify", file), answer) == 0, answer.read_text(errors="replace")[-3000:]
    assert f"{COUNT:,} committed records in the topics: {COUNT:,} once" in answer.read_text()
    assert "once more" not in answer.read_text()


def test_refusal_is_one_line_and_exit_code_two(broker: Broker, topic: str, tmp_path: Path) -> None:
    """A checkpoint of another cluster is refused by the command as by the functions."""
    file, log = tmp_path / "orders.yaml", tmp_path / "log"
    file.write_text(
        FILE.format(
            broker=broker.address,
            topic=topic,
            schema=SCHEMA,
            letters="table: shop.dead",
            folder=tmp_path,
        )
    )
    assert run(command("run", file, "--adopt", "--from-start"), log) == 2
    assert log.read_text().count("\n") == 1
