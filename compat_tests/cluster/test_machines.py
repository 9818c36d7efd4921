"""A cluster of two machines with several brokers each: `kwire serve --processes`.

Each machine has a loopback address of its own. Apache Kafka has no such command, so it is not
asked.
"""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any, Final

import attrs
import pytest
from confluent_kafka import Consumer, KafkaError, Message, Producer
from confluent_kafka.admin import AdminClient, NewTopic

from compat_tests.harness.wait import eventually

CLUSTER_ID: Final = "MkU3OEVBNTcwNTJENDM2Qg"
PROCESSES: Final = 2
READY: Final = re.compile(r"kwire ready on (\S+)\n")
SETTINGS: Final = """\
process.roles={roles}
node.id={first_id}
listeners={listeners}
controller.listener.names=CONTROLLER
controller.quorum.bootstrap.servers={controller}:9192
log.dirs={folder}/data
broker.rack={rack}
offsets.topic.replication.factor=2
default.replication.factor=2
"""


@attrs.define(eq=False)
class Machine:
    """A machine whose brokers are ready."""

    rack: str
    first_id: int
    process: subprocess.Popen[bytes]
    address: str
    log: Path

    @property
    def ids(self) -> set[int]:
        return {self.first_id + place for place in range(PROCESSES)}

    def restart_all(self) -> None:
        """Restart the brokers one by one, and wait for the end of that."""
        count = self._restart_count()
        self.process.send_signal(signal.SIGHUP)
        eventually(lambda: self._restart_count() > count, self.log.read_text, 180)

    def _restart_count(self) -> int:
        return self.log.read_text().count("all nodes have restarted")


def start(folder: Path, rack: str, first_id: int, host: str, controller: str) -> Machine:
    """Format and start a machine; the first one is also the controller."""
    folder.mkdir()
    is_controller = host == controller
    controllers = f",CONTROLLER://{host}:9192" if is_controller else ""
    file = folder / "server.properties"
    file.write_text(
        SETTINGS.format(
            roles="broker,controller" if is_controller else "broker",
            listeners=f"PLAINTEXT://{host}:9092{controllers}",
            first_id=first_id,
            controller=controller,
            folder=folder,
            rack=rack,
        )
    )
    kwire = [sys.executable, "-m", "kwire"]
    options = ["--config", str(file), "--processes", str(PROCESSES)]
    first = ["--standalone"] if is_controller else []
    subprocess.run([*kwire, "format", *options, "--cluster-id", CLUSTER_ID, *first], check=True)
    log = folder / "log"
    with log.open("wb") as stderr:
        process = subprocess.Popen(
            [*kwire, "serve", *options],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=stderr,
        )
    assert process.stdout is not None
    match = READY.fullmatch(process.stdout.readline().decode())
    assert match is not None, log.read_text()
    return Machine(rack, first_id, process, match[1], log)


def stop(machine: Machine) -> None:
    machine.process.terminate()
    try:
        assert machine.process.wait(60) == 0, machine.log.read_text()
    finally:
        machine.process.kill()
        machine.process.wait()


@pytest.fixture
def machines(tmp_path: Path, broker_kind: str) -> Iterator[list[Machine]]:
    if broker_kind != "kwire":
        pytest.skip("Apache Kafka runs one broker in a process")
    if not sys.platform.startswith("linux"):
        pytest.skip("only Linux has many loopback addresses")
    network = f"127.77.{os.getpid() % 250 + 1}"
    with ExitStack() as stack:
        result = []
        for number, rack in enumerate(["left", "right"]):
            host = f"{network}.{number + 1}"
            first_id = 10 * number + 1
            machine = start(tmp_path / rack, rack, first_id, host, f"{network}.1")
            stack.callback(stop, machine)
            result.append(machine)
        yield result


@pytest.mark.long
def test_replicas_are_on_different_machines_and_a_rolling_restart_loses_nothing(
    machines: list[Machine],
) -> None:
    """Also invariants 1 and 108: every acknowledged record is there once, in order."""
    addresses = ",".join(machine.address for machine in machines)
    clients: dict[str, Any] = {"bootstrap.servers": addresses}
    admin = AdminClient(clients)
    eventually(lambda: len(admin.list_topics(timeout=5).brokers) == 4, "four brokers")
    admin.create_topics([NewTopic("t", 8, 2)])["t"].result(60)
    partitions = admin.list_topics("t").topics["t"].partitions.values()
    for partition in partitions:
        assert all(len(machine.ids & set(partition.replicas)) == 1 for machine in machines)
    end, acknowledged = threading.Event(), list[int]()
    failures = list[KafkaError]()

    def on_delivery(error: KafkaError | None, message: Message) -> None:
        if error is not None:
            failures.append(error)
        else:
            acknowledged.append(int(message.value() or b""))

    def produce() -> None:
        producer = Producer({**clients, "enable.idempotence": True})
        number = 0
        while not end.is_set():
            producer.produce("t", str(number), key=str(number % 8), on_delivery=on_delivery)
            number += 1
            producer.poll(0.01)
        assert producer.flush(60) == 0

    thread = threading.Thread(target=produce)
    thread.start()
    try:
        eventually(lambda: len(acknowledged) > 100, "records are acknowledged")
        for machine in machines:
            machine.restart_all()
    finally:
        end.set()
        thread.join(120)
    assert not failures
    assert read(clients, len(acknowledged)) == sorted(acknowledged)


def read(clients: dict[str, Any], count: int) -> list[int]:
    """Return the first ``count`` values, sorted; fail if those of a key are out of order."""
    consumer = Consumer({**clients, "group.id": "g", "auto.offset.reset": "earliest"})
    consumer.subscribe(["t"])
    values: list[int] = []
    last_by_key: dict[bytes, int] = {}
    deadline = time.monotonic() + 60
    while len(values) < count:
        assert time.monotonic() < deadline, f"{len(values)} of {count} records"
        message = consumer.poll(1)
        if message is None or message.error():
            continue
        value, key = int(message.value() or b""), message.key() or b""
        assert value > last_by_key.get(key, -1)
        last_by_key[key] = value
        values.append(value)
    consumer.close()
    return sorted(values)
