"""What a node tells of itself when it is asked: numbers that are kept elsewhere anyway.

Loaded only with ``--metrics-port``. Every function looks once through what it counts.
"""

from collections.abc import Iterable, Iterator

from kwire import metrics as m
from kwire.node.broker import BrokerHalf
from kwire.node.core import Core
from kwire.replica.leader import Leader
from kwire.replica.service import ReplicaService


def add_gauges(core: Core, broker: BrokerHalf | None) -> None:
    """Make a node's metrics show everything that is declared."""
    metrics = core.services.metrics
    _of_controller(metrics, core)
    if broker is not None:
        _of_broker(metrics, core, broker.replicas)
    metrics.declare(value for value in vars(m).values() if isinstance(value, m.Metric))


def _of_broker(metrics: m.Metrics, core: Core, replicas: ReplicaService) -> None:
    def led() -> Iterator[Leader]:
        return (p.leader for p in replicas.partitions() if p.leader is not None)

    def sizes() -> Iterator[tuple[tuple[str, ...], float]]:
        for partition in list(replicas.partitions()):
            yield (partition.topic, str(partition.partition)), partition.log.size

    metrics.ask(m.PARTITIONS, lambda: len(replicas))
    metrics.ask(m.LEADERS, lambda: _count(led()))
    metrics.ask(
        m.UNDER_REPLICATED, lambda: _count(x for x in led() if len(x.isr) <= len(x.followers))
    )
    metrics.ask(m.UNDER_MIN_ISR, lambda: _count(x for x in led() if x.under_min_isr))
    metrics.ask(m.AT_MIN_ISR, lambda: _count(x for x in led() if len(x.isr) == x.effective_min_isr))
    metrics.ask(m.OFFLINE_REPLICAS, lambda: replicas.offline)
    metrics.ask(m.FETCH_SESSIONS, lambda: len(replicas.sessions))
    metrics.ask(m.OFFLINE_DIRECTORIES, lambda: core.logs.statistics()["offline_directories"])
    metrics.ask_all(m.LOG_SIZE, sizes)


def _of_controller(metrics: m.Metrics, core: Core) -> None:
    def active() -> bool:
        return core.controller.is_active

    def brokers(fenced: bool) -> int:
        known = core.publisher.image.brokers.values() if active() else ()
        return _count(broker for broker in known if broker.fenced is fenced)

    def partitions(leaderless: bool) -> int:
        topics = core.publisher.image.topics.values() if active() else ()
        if not leaderless:
            return sum(len(topic.partitions) for topic in topics)
        return _count(p for topic in topics for p in topic.partitions.values() if p.leader < 0)

    metrics.ask(m.ACTIVE_CONTROLLER, lambda: float(active()))
    metrics.ask(m.ACTIVE_BROKERS, lambda: brokers(fenced=False))
    metrics.ask(m.FENCED_BROKERS, lambda: brokers(fenced=True))
    metrics.ask(m.TOPICS, lambda: len(core.publisher.image.topics) if active() else 0)
    metrics.ask(m.ALL_PARTITIONS, lambda: partitions(leaderless=False))
    metrics.ask(m.LEADERLESS, lambda: partitions(leaderless=True))


def _count(found: Iterable[object]) -> int:
    return sum(1 for _ in found)
