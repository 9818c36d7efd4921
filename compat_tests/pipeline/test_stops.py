"""A run that a signal stops: it ends between two batches, and its code says what is left."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from kafka import KafkaAdminClient
from kafka.admin import NewTopic

from compat_tests.harness.broker import Broker
from compat_tests.pipeline.command import FILE, command, fill, run
from examples.orders.events import SCHEMA

COUNT, BATCH = 60, 20
TRANSFORM = """\
import os
import signal

def stop(frame):
    if not frame.isEmpty():  # A batch; the rows of the first call are none.
        if os.path.exists("{folder}/first-run-ended"):
            os.kill(os.getpid(), signal.SIGTERM)
        else:  # Ctrl-C on a terminal: the JVM gets the signal as well.
            os.killpg(os.getpgid(0), signal.SIGINT)
    return frame
"""


def batches_of(log: Path) -> list[int]:
    """Return the ids of the batches that a run has reported."""
    lines = [line for line in log.read_text().splitlines() if line.startswith("{")]
    return [json.loads(line)["batch_id"] for line in lines]


def check_quiet(log: Path, last: str) -> None:
    """Assert that a log has no stack of Java or Python, and ends with a line."""
    lines = log.read_text().splitlines()
    assert [line for line in lines if "Traceback" in line or line.startswith("\tat ")] == []
    assert lines[-1] == f"kwire-pipeline: {last}"


@pytest.mark.long
def test_signal_in_a_batch_ends_the_run_after_it(
    broker: Broker, topic: str, tmp_path: Path
) -> None:
    """Ctrl-C before the end of the topics is exit code 130; SIGTERM at an interval is 0."""
    admin = KafkaAdminClient(bootstrap_servers=broker.address)
    admin.create_topics([NewTopic(topic, 3, 1)])
    admin.close()
    fill(broker, topic, 0, COUNT)
    file = tmp_path / "orders.yaml"
    text = FILE.format(
        broker=broker.address,
        topic=topic,
        schema=SCHEMA,
        letters="table: shop.dead",
        folder=tmp_path,
    )
    text = text.replace("max_offsets_per_trigger: 400", f"max_offsets_per_trigger: {BATCH}")
    file.write_text(text + "transform: stop_orders:stop\n")
    (tmp_path / "stop_orders.py").write_text(TRANSFORM.format(folder=tmp_path))

    first, second = tmp_path / "first.log", tmp_path / "second.log"
    assert run(command("run", file), first) == 130, first.read_text()[-3000:]
    check_quiet(first, "stopped by SIGINT before the end of the topics; the next run continues")
    assert batches_of(first) == [0]

    (tmp_path / "first-run-ended").touch()
    flags = ("--trigger", "1 second")
    assert run(command("run", file, *flags), second) == 0, second.read_text()[-3000:]
    check_quiet(second, "stopped by SIGTERM")
    assert batches_of(second) == [1]
