"""The pipeline as users run it: after kills of it and the broker, each record is written once."""

from __future__ import annotations

import os
import signal
import subprocess
import time
from pathlib import Path

import pytest
from kafka import KafkaAdminClient
from kafka.admin import NewTopic

from compat_tests.harness.broker import Broker
from compat_tests.pipeline.command import FILE, command, fill, run, start
from examples.orders.events import SCHEMA

COUNT = 2000


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
