"""Controllers for tests: a state with brokers, and decisions applied to it."""

from collections.abc import Sequence
from random import Random
from typing import Any

from kwire.codec.messages import metadata_records as r
from kwire.configs.broker import BrokerConfig
from kwire.configs.listeners import ListenerEndpoint
from kwire.configs.load import broker_config
from kwire.raftmeta.controller.brokers import fencing, unfencing
from kwire.raftmeta.controller.features import SUPPORTED
from kwire.raftmeta.controller.state import ControllerState, Effect, whole
from kwire.raftmeta.metadata.image import Applied
from kwire.raftmeta.storage.levels import ELR
from kwire.storage_format.format import feature_records

CLUSTER = "test-cluster"
ENDPOINTS = (ListenerEndpoint("PLAINTEXT", "localhost", 9092),)


def node_config(**changes: str) -> BrokerConfig:
    """Return the settings of a combined node 1."""
    settings = {
        "process.roles": "broker,controller",
        "node.id": "1",
        "controller.quorum.voters": "1@localhost:9093",
        "listeners": "PLAINTEXT://localhost:9092,CONTROLLER://localhost:9093",
        "controller.listener.names": "CONTROLLER",
        "offsets.topic.replication.factor": "1",
        "transaction.state.log.replication.factor": "1",
        "transaction.state.log.min.isr": "1",
        "log.dirs": "data",
    }
    named = {name.replace("_", "."): text for name, text in changes.items()}
    return broker_config({**settings, **named})


def directory(broker: int) -> bytes:
    return b"d" * 12 + broker.to_bytes(4)


def registration(broker: int, rack: str | None = None, *, fenced: bool = False) -> Any:
    return r.RegisterBrokerRecord(
        broker_id=broker,
        incarnation_id=b"i" * 12 + broker.to_bytes(4),
        broker_epoch=broker * 100,
        rack=rack,
        fenced=fenced,
        log_dirs=[directory(broker)],
        features=[
            r.RegisterBrokerRecord.BrokerFeature(
                name=name, min_supported_version=low, max_supported_version=high
            )
            for name, (low, high) in SUPPORTED.items()
        ],
    )


class Cluster:
    """A controller's state; ``do`` decides and applies."""

    def __init__(self, brokers: Sequence[int] = (1, 2, 3), **settings: str) -> None:
        self.state = ControllerState(
            config=node_config(**settings),
            now=1000.0,
            random=Random(7),
            cluster_id=CLUSTER,
            supported_features=dict(SUPPORTED),
        )
        self.write(*feature_records({"metadata.version": 30}))
        self.write(*(registration(broker) for broker in brokers))
        for broker in brokers:
            self.state.sessions.touch(broker, self.now, fenced=False, metadata_offset=1 << 40)

    @property
    def now(self) -> float:
        return self.state.now

    @now.setter
    def now(self, now: float) -> None:
        self.state.now = now

    def write(self, *records: Any) -> None:
        last = self.state.next_offset + len(records) - 1
        self.state.apply(records, Applied(last, 1, 0))

    def do(self, decide: Any, request: Any) -> Any:
        """Decide and apply; return the reply, and leave the records in ``records``."""
        decision: Any = whole(decide(self.state, request))
        self.records = list(decision.records)
        self.write(*self.records)
        decision.take_effect()
        return decision.reply

    def fence(self, broker: int, *before: Any) -> None:
        """Fence a broker, in one batch with the records ``before``."""
        effects: list[Effect] = []
        self.write(*before, *fencing(self.state, self.state.image.brokers[broker], effects))
        for effect in effects:
            effect()

    def unfence(self, broker: int) -> None:
        effects: list[Effect] = []
        self.write(*unfencing(self.state, self.state.image.brokers[broker], effects))
        for effect in effects:
            effect()

    def kinds(self) -> list[str]:
        """Return the kinds of the records that the last decision wrote."""
        return [type(record).__name__.removesuffix("Record") for record in self.records]

    def topic(self, name: str, *replicas: list[int], elr: bool = False) -> bytes:
        """Create a topic with these replicas, all of them in sync; return its id."""
        topic_id = self.state.new_id()
        self.write(
            r.TopicRecord(name=name, topic_id=topic_id),
            *(
                r.PartitionRecord(
                    partition_id=number,
                    topic_id=topic_id,
                    replicas=brokers,
                    isr=brokers,
                    leader=brokers[0],
                    leader_epoch=0,
                    partition_epoch=0,
                    directories=[directory(broker) for broker in brokers],
                )
                for number, brokers in enumerate(replicas)
            ),
        )
        return topic_id

    def partition(self, name: str, number: int = 0) -> Any:
        return self.state.image.partition(name, number)


MANY = 2_500


def cluster_of(count: int = MANY, *, elr: bool = False, replicas: tuple[int, ...] = (2, 1)) -> Any:
    """Return a cluster with a topic that broker 2 leads and broker 1 follows."""
    cluster = Cluster((1, 2, 3))
    if elr:
        cluster.write(*feature_records({"metadata.version": 30, ELR: 1}))
    cluster.topic("large", *([list(replicas)] * count))
    return cluster
