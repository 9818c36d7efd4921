"""Topics that are created on first use."""

import pytest

from kwire.configs.broker import BrokerConfig
from kwire.raftmeta.metadata.internal_topics import creatable

PARTITIONS, REPLICAS = "num.partitions", "default.replication.factor"


@pytest.mark.parametrize(
    ("settings", "counts"),
    [
        ({}, (-1, -1)),
        ({PARTITIONS: "5"}, (5, -1)),
        ({REPLICAS: "2"}, (-1, 2)),
        ({PARTITIONS: "1", REPLICAS: "1"}, (1, 1)),
    ],
)
def test_broker_asks_for_what_its_own_configuration_sets(
    settings: dict[str, str], counts: tuple[int, int]
) -> None:
    """The controller decides the rest: the defaults of the two nodes may differ."""
    topic = creatable("t", BrokerConfig(settings))
    assert (topic.num_partitions, topic.replication_factor) == counts
