"""A leader that its controllers no longer hear, while its clients do.

    python -m compat_tests.nemesis.cut_off_leader drop|reset|icmp [--broker kwire|kafka]

Three nodes in Linux network namespaces. The packets from the leader to the other two are lost
(drop), or refused by their firewalls with a reset or an ICMP message. A producer of the leader's
and one of its successor's send with acks=1 all the time. The last line of the output has, in
seconds after the fault, when the successor acknowledged first and when the old leader acknowledged
last (null: never).
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import time
from pathlib import Path

from compat_tests.cluster.nodes import Node
from compat_tests.cluster.topics import create_on, wait_isr
from compat_tests.nemesis.links import Namespaces, enter_isolation
from compat_tests.nemesis.trial import LinkedCluster
from kwire.codec.messages.produce import ProduceRequest
from kwire.records.build import New, batch
from kwire.testing.wire import Closed, WireClient

NODES = (1, 2, 3)
SETTINGS = {
    "default.replication.factor": "3",
    "broker.session.timeout.ms": "1500",
    "broker.heartbeat.interval.ms": "300",
    "controller.quorum.fetch.timeout.ms": "1000",
}
SECONDS = 90.0
PAUSE_S = 0.02
ANSWER_S = 2.0


class Sender:
    """Sends to a node with acks=1 over its own connection, whoever leads."""

    def __init__(self, node: Node) -> None:
        self.node = node
        self.client: WireClient | None = None

    def send(self) -> bool:
        """Return whether the node acknowledged a record."""
        data = batch([New(None, b"x")], timestamp_ms=int(time.time() * 1000))
        shape = ProduceRequest.TopicProduceData
        part = shape.PartitionProduceData(index=0, records=data)
        topic = shape(name="t", partition_data=[part])
        request = ProduceRequest(acks=1, timeout_ms=1000, topic_data=[topic])
        try:
            if self.client is None:
                self.client = self.node.client(ANSWER_S)
            response = self.client.call(request, 9)
        except (OSError, Closed):
            if self.client is not None:
                self.client.close()
            self.client = None
            return False
        return response.responses[0].partition_responses[0].error_code == 0


def observe(directory: Path, kind: str, way: str) -> dict[str, float | None]:
    """Cut the leader off and return when who acknowledged."""
    links = Namespaces.create(NODES)
    cluster = LinkedCluster(directory, SETTINGS, links=links)
    for node_id in NODES:
        cluster.add(node_id, kind)
    try:
        cluster.start()
        active = cluster.active()
        leader = next(node for node in cluster.brokers if node is not active)
        others = [node for node in cluster.brokers if node is not leader]
        create_on(cluster, "t", [[leader.id, *(node.id for node in others)]])
        old, successors = Sender(leader), [Sender(node) for node in others]
        assert old.send(), "the leader acknowledges"
        for node in others:
            if way == "drop":
                links.cut(leader.id, node.id)
            else:
                links.refuse(leader.id, node.id, with_reset=way == "reset")
        began = time.monotonic()
        first = last = None
        while (now := time.monotonic() - began) < SECONDS:
            if old.send():
                last = now
            answers = [sender.send() for sender in successors]
            if any(answers) and first is None:
                first = now
            time.sleep(PAUSE_S)
        links.heal()
        wait_isr(cluster, "t", NODES)
        return {"successor first": first, "old leader last": last}
    finally:
        cluster.close()


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("way", choices=("drop", "reset", "icmp"))
    parser.add_argument("--broker", choices=("kwire", "kafka"), default="kwire")
    options = parser.parse_args()
    if reason := enter_isolation(["-m", "compat_tests.nemesis.cut_off_leader", *sys.argv[1:]]):
        sys.exit(reason)
    with tempfile.TemporaryDirectory() as folder:
        print(json.dumps(observe(Path(folder), options.broker, options.way)))


if __name__ == "__main__":
    main()
