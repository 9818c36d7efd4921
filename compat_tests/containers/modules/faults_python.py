"""Three faults over HTTP: at FAULTS_ADDRESS, or at a container of FAULTS_IMAGE."""

import json
import os
import time
import uuid
from collections.abc import Callable, Iterator
from typing import Any
from urllib.request import Request, urlopen

import pytest
from confluent_kafka import Consumer, Producer
from confluent_kafka.admin import AdminClient, NewTopic
from testcontainers.community.kafka import KafkaContainer

CONTROL_PORT = 9100


class Server:
    def __init__(self, address: str, control: str) -> None:
        self.address = address
        self.control = control

    def verb(self, name: str, **values: object) -> Any:
        request = Request(f"{self.control}/v1/{name}", json.dumps(values).encode())
        with urlopen(request, timeout=60) as answer:
            return json.load(answer)


@pytest.fixture(scope="session")
def server() -> Iterator[Server]:
    if "FAULTS_ADDRESS" in os.environ:
        yield Server(os.environ["FAULTS_ADDRESS"], os.environ["FAULTS_CONTROL"])
        return
    container = KafkaContainer(os.environ["FAULTS_IMAGE"]).with_kraft()
    container.with_env("KWIRE_CONTROL_PORT", str(CONTROL_PORT)).with_exposed_ports(CONTROL_PORT)
    with container as kafka:
        port = kafka.get_exposed_port(CONTROL_PORT)
        control = f"http://{kafka.get_container_host_ip()}:{port}"
        yield Server(kafka.get_bootstrap_server(), control)


@pytest.fixture
def topic(server: Server) -> Iterator[str]:
    name = f"python-{uuid.uuid4()}"
    admin = AdminClient({"bootstrap.servers": server.address})
    admin.create_topics([NewTopic(name, 1, 1)])[name].result(30)
    yield name
    server.verb("check-faults")


def test_lost_acknowledgement(server: Server, topic: str) -> None:
    server.verb("add-fault", action="drop", after=True, api="Produce", topic=topic)
    produce(server, topic, "once", "end")
    assert read(server, topic, lambda values: len(values) >= 2) == ["once", "end"]
    count = server.verb("list-requests", api="Produce", client_id=topic)["count"]
    print(f"OBSERVED lost-acknowledgement {count}")


def test_response_cut_in_the_middle(server: Server, topic: str) -> None:
    produce(server, topic, "1", "2", "3")
    server.verb("add-fault", action="cut", api="Fetch", topic=topic)
    assert read(server, topic, lambda values: len(values) >= 3) == ["1", "2", "3"]
    print("OBSERVED cut-response 3")


def test_refused_heartbeat(server: Server, topic: str) -> None:
    produce(server, topic, "1")
    fault = {"action": "fail", "api": "Heartbeat", "error": "REBALANCE_IN_PROGRESS"}
    server.verb("add-fault", **fault, group=topic)
    assert read(server, topic, lambda values: bool(values) and has_rejoined(server, topic)) == ["1"]
    print("OBSERVED refused-heartbeat 1")


def has_rejoined(server: Server, client_id: str) -> bool:
    requests = server.verb("list-requests", client_id=client_id)["requests"]
    apis = [request["api"] for request in requests]
    return "Heartbeat" in apis and "SyncGroup" in apis[apis.index("Heartbeat") :]


def produce(server: Server, topic: str, *values: str) -> None:
    settings = {"bootstrap.servers": server.address, "client.id": topic}
    producer = Producer({**settings, "enable.idempotence": True})
    for value in values:
        producer.produce(topic, value)
        assert producer.flush(30) == 0


def read(server: Server, topic: str, is_over: Callable[[list[str]], bool]) -> list[str]:
    settings = {"bootstrap.servers": server.address, "client.id": topic, "group.id": topic}
    consumer = Consumer({**settings, "auto.offset.reset": "earliest", "heartbeat.interval.ms": 200})
    consumer.subscribe([topic])
    values: list[str] = []
    end = time.monotonic() + 30
    while not is_over(values):
        assert time.monotonic() < end, f"waited 30 s; read {values}"
        message = consumer.poll(0.1)
        if message is not None and message.error() is None:
            values.append((message.value() or b"").decode())
    consumer.close()
    return values
