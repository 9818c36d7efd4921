"""The settings of a usual node."""

from kwire.configs.broker import BrokerConfig
from kwire.configs.load import broker_config

NODE = {
    "process.roles": "broker,controller",
    "node.id": "1",
    "controller.quorum.voters": "1@localhost:9093",
    "listeners": "PLAINTEXT://:9092,CONTROLLER://:9093",
    "advertised.listeners": "PLAINTEXT://localhost:9092",
    "controller.listener.names": "CONTROLLER",
    "inter.broker.listener.name": "PLAINTEXT",
    "log.dirs": "a,b",
}


def node(**more: str) -> BrokerConfig:
    """Return these settings with others, whose names have an underscore for each dot."""
    named = {name.replace("_", "."): text for name, text in more.items()}
    return broker_config({**NODE, **named})
