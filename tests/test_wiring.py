"""What parts are built with, from the settings."""

from kwire import wiring
from tests.raftmeta.clusters import node_config


def test_connections_per_address() -> None:
    config = node_config(max_connections_per_ip_overrides="127.0.0.1:5, 10.0.0.9:0")
    assert wiring.limits(config).max_connections_per_ip_overrides == {"127.0.0.1": 5, "10.0.0.9": 0}
    assert wiring.limits(node_config()).max_connections_per_ip_overrides == {}
