"""The pipeline's command as a process, a file for it, and orders for its topic."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

from kafka import KafkaProducer

from compat_tests.harness.broker import Broker
from compat_tests.harness.spark import quick_start

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
    """Return the arguments of a process that runs a command of the pipeline."""
    return [sys.executable, "-m", "kwire_pipeline", name, str(file), *flags]


def start(arguments: list[str], log: Path) -> subprocess.Popen[bytes]:
    """Start a process in a session of its own; its output is added to ``log``."""
    environment = {
        **os.environ,
        **quick_start(log.parent),
        "PYSPARK_PYTHON": sys.executable,
        "PYTHONPATH": os.getcwd(),
    }
    with log.open("ab") as output:
        return subprocess.Popen(
            arguments, stdout=output, stderr=output, env=environment, start_new_session=True
        )


def run(arguments: list[str], log: Path) -> int:
    """Run a process to its end and return its exit code."""
    return start(arguments, log).wait(400)
