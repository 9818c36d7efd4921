"""A node formats its own disk only if its configuration makes it the only voter."""

from pathlib import Path

import pytest

from kwire.configs.broker import BrokerConfig
from kwire.log.disk import RealDisks
from kwire.storage_format.directories import CannotOpenError, examine, is_single_voter


def config(path: Path, host: str, server: str, advertised: str = "") -> BrokerConfig:
    """Return the configuration of a machine whose only bootstrap server is ``server``."""
    settings = {
        "process.roles": "broker,controller",
        "node.id": "2",
        "listeners": f"PLAINTEXT://{host}:9092,CONTROLLER://{host}:9093",
        "controller.listener.names": "CONTROLLER",
        "listener.security.protocol.map": "PLAINTEXT:PLAINTEXT,CONTROLLER:PLAINTEXT",
        "controller.quorum.bootstrap.servers": server,
        "log.dirs": str(path),
    }
    if advertised:
        settings["advertised.listeners"] = advertised
    return BrokerConfig(settings)


@pytest.mark.parametrize(
    ("host", "server", "advertised"),
    [
        ("host2", "host1:9093", ""),
        ("10.0.0.2", "10.0.0.1:9093", ""),
        ("[fd00::2]", "[fd00::1]:9093", ""),
        ("127.0.0.1", "10.0.0.1:9093", ""),
        ("", "host1:9093", "PLAINTEXT://host2:9092,CONTROLLER://host2:9093"),
    ],
)
def test_machine_that_joins_another_with_the_same_port_is_not_alone(
    tmp_path: Path, host: str, server: str, advertised: str
) -> None:
    """If its disk is lost, it must not begin a cluster of its own, which clients would take for
    theirs.
    """
    joining = config(tmp_path, host, server, advertised)
    assert not is_single_voter(joining)
    with pytest.raises(CannotOpenError, match="is empty and this node is not the single voter"):
        examine(joining, None, RealDisks())


@pytest.mark.parametrize(
    ("host", "server", "advertised"),
    [
        ("host1", "host1:9093", ""),
        ("host1", "host1.example.com:9093", ""),
        ("host1", "10.0.0.1:9093", ""),  # It may be the address of that name.
        ("10.0.0.1", "host1:9093", ""),
        ("10.0.0.1", "localhost:9093", ""),
        ("10.0.0.1", "10.0.0.9:9093", "PLAINTEXT://10.0.0.9:9092"),
        (
            "",
            "kafka:9093",
            "PLAINTEXT://localhost:9092",
        ),  # In a container, listening on all addresses.
        ("0.0.0.0", "kafka:9093", "PLAINTEXT://localhost:9092"),
        ("[::]", "kafka:9093", "PLAINTEXT://localhost:9092"),
    ],
)
def test_node_under_another_name_is_alone(
    tmp_path: Path, host: str, server: str, advertised: str
) -> None:
    assert is_single_voter(config(tmp_path, host, server, advertised))
