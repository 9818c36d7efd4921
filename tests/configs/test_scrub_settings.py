"""The settings of the scrub, which is off unless an interval is set."""

from kwire.configs.load import broker_config
from kwire.log.config import ScrubSettings
from kwire.node.build import scrub_settings

NODE = {
    "process.roles": "broker,controller",
    "node.id": "1",
    "listeners": "PLAINTEXT://:9092,CONTROLLER://:9093",
    "controller.listener.names": "CONTROLLER",
    "controller.quorum.bootstrap.servers": "localhost:9093",
}


def test_scrub_is_off_by_default() -> None:
    assert scrub_settings(broker_config(NODE)) is None


def test_interval_turns_the_scrub_on() -> None:
    config = broker_config({**NODE, "kwire.scrub.interval.ms": "5000"})
    assert scrub_settings(config) == ScrubSettings(interval_s=5.0, bytes_per_second=10 << 20)
