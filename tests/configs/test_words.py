"""Errors of a start for wrong settings: the setting, what is wrong with it, what to do.

The tables of lists also give Apache Kafka 4.3.1's treatment of the same value.
"""

import logging
import re

import pytest

from kwire.configs.broker import all_broker_keys
from kwire.configs.declare import ConfigError
from kwire.configs.load import broker_config
from kwire.configs.remedies import remedy
from kwire.configs.topic import TopicConfig
from tests.support.configs.node import NODE, node

FILLED = (
    "advertised.listeners",
    "controller.listener.names",
    "group.consumer.assignors",
    "group.coordinator.rebalance.protocols",
    "group.share.assignors",
    "listeners",
    "log.dir",
    "log.dirs",
    "process.roles",
)
"""Lists that Kafka refuses when they are empty: "Configuration 'listeners' must not be empty."."""
MAY_BE_EMPTY = (
    "config.providers",
    "controller.quorum.voters",
    "cordoned.log.dirs",
    "early.start.listeners",
    "kafka.metrics.reporters",
    "log.cleanup.policy",
    "metric.reporters",
)


def refusal(**changes: str | None) -> str:
    named = {name.replace("_", "."): text for name, text in changes.items()}
    properties = {name: text for name, text in {**NODE, **named}.items() if text is not None}
    with pytest.raises(ConfigError) as caught:
        broker_config(properties)
    line = str(caught.value)
    assert "\n" not in line
    assert "  " not in line
    return line


@pytest.mark.parametrize("name", FILLED)
def test_an_empty_list_is_called_empty(name: str) -> None:
    for text in ("", " "):
        line = refusal(**{name: text})
        assert line.startswith(f"{name} is empty; ")


@pytest.mark.parametrize("name", MAY_BE_EMPTY)
def test_lists_that_may_be_empty(name: str) -> None:
    changes = {"controller.quorum.bootstrap.servers": "localhost:9093", name: ""}
    assert broker_config({**NODE, **changes}).raw(name) == ()


@pytest.mark.parametrize("name", [name for name in FILLED + MAY_BE_EMPTY if "quorum" not in name])
def test_list_with_an_extra_comma_is_refused_with_the_remedy(name: str) -> None:
    """Kafka: "Configuration 'log.dirs' values must not be empty."."""
    assert refusal(**{name: ","}).startswith(
        f"{name} has an empty value: ,; remove the extra comma"
    )


def test_wire_errors_of_lists_are_kafkas() -> None:
    keys = all_broker_keys()
    for name, text, reason in (
        ("listeners", "", "must not be empty. Valid values include: any non-empty value"),
        ("process.roles", "", "must not be empty. Valid values include: [broker, controller]"),
        ("log.cleanup.policy", "delete,", "values must not be empty."),
    ):
        with pytest.raises(ConfigError) as caught:
            keys[name].parse(text)
        assert str(caught.value) == f"Configuration '{name}' {reason}"


def test_duplicates_in_lists_count_once_and_are_warned_about(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """Kafka: "Duplicates will be removed."; but those of the quorum's lists are left."""
    with caplog.at_level(logging.WARNING):
        config = node(
            log_dirs="b,a,b",
            process_roles="controller,broker,controller",
            listeners=f"{NODE['listeners']},{NODE['listeners']}",
            controller_quorum_voters="1@localhost:9093,1@localhost:9093",
        )
    assert config.data_directories == ("b", "a")
    assert config.process_roles == ("controller", "broker")
    assert [endpoint.name for endpoint in config.endpoints] == ["PLAINTEXT", "CONTROLLER"]
    assert config.controller_quorum_voters == ("1@localhost:9093", "1@localhost:9093")
    assert {record.getMessage() for record in caplog.records} == {
        "duplicate values removed name=log.dirs value=b,a",
        "duplicate values removed name=process.roles value=controller,broker",
        f"duplicate values removed name=listeners value={NODE['listeners']}",
    }
    assert TopicConfig({"cleanup.policy": "delete,delete"}).cleanup_policy == ("delete",)


@pytest.mark.parametrize(
    ("name", "remedy"),
    [
        ("process.roles", "name the roles of this node, as process.roles=broker,controller"),
        ("node.id", "give this node a number that no other one has, as node.id=1"),
        ("controller.listener.names", "name the listener that controllers talk on, as "),
    ],
)
def test_missing_setting_is_named_with_the_remedy(name: str, remedy: str) -> None:
    line = refusal(**{name: None})
    assert line.startswith(f"Missing required configuration {name}; {remedy}")
    assert refusal(**{name: ""}).startswith(f"{name} is empty; {remedy}")


@pytest.mark.parametrize(
    ("name", "text", "line"),
    [
        (
            "num.partitions",
            "",
            "num.partitions is empty; give it a whole number from 1 to 2147483647, or leave it "
            "out, which means 1",
        ),
        (
            "num.partitions",
            "many",
            "Invalid value many for configuration num.partitions: Not a number of type INT; give "
            "it a whole number from 1 to 2147483647, or leave it out, which means 1",
        ),
        (
            "auto.create.topics.enable",
            "yes",
            "Invalid value yes for configuration auto.create.topics.enable: Expected value to be "
            "either true or false; give it true or false, or leave it out, which means true",
        ),
        (
            "log.cleaner.min.cleanable.ratio",
            "half",
            "Invalid value half for configuration log.cleaner.min.cleanable.ratio: Not a number of "
            "type DOUBLE; give it a number from 0 to 1, or leave it out, which means 0.5",
        ),
        (
            "compression.type",
            "zip",
            "Invalid value zip for configuration compression.type: String must be one of: "
            "uncompressed, zstd, lz4, snappy, gzip, producer; give it one of uncompressed, zstd, "
            "lz4, snappy, gzip, producer, or leave it out, which means producer",
        ),
        (
            "log.retention.ms",
            "week",
            "Invalid value week for configuration log.retention.ms: Not a number of type LONG; "
            "give it a whole number from -9223372036854775808 to 9223372036854775807, or leave it "
            "out",
        ),
        (
            "remote.log.reader.threads",  # has no effect, and Kafka refuses the value all the same
            "abc",
            "Invalid value abc for configuration remote.log.reader.threads: Not a number of type "
            "INT; give it a whole number from 1 to 2147483647, or leave it out, which means 10",
        ),
    ],
)
def test_missing_value_is_refused_with_the_remedy(name: str, text: str, line: str) -> None:
    assert refusal(**{name: text}) == line


def test_remedies_of_all_settings_are_phrases() -> None:
    for key in all_broker_keys().values():
        assert re.fullmatch(r"(give|name) [^\n]+[^ ;]", remedy(key)), key.name
        assert "  " not in remedy(key)


@pytest.mark.parametrize(
    ("changes", "remedy_text"),
    [
        (
            {"listener.security.protocol.map": "PLAINTEXT:SASL_PLAINTEXT,CONTROLLER:PLAINTEXT"},
            "give it one of PLAIN, SCRAM-SHA-256, SCRAM-SHA-512",
        ),
        (
            {"listener.security.protocol.map": "PLAINTEXT:PLAINTEXT,CONTROLLER:SASL_SSL"},
            "give it one of PLAIN, SCRAM-SHA-256, SCRAM-SHA-512",
        ),
        (
            {"sasl.enabled.mechanisms": "PLAIN"},
            "remove it, and let only networks that you trust reach the node",
        ),
        ({"broker.id": "2"}, "remove broker.id"),
        ({"log.dirs": "/var/lib/a\0b"}, "remove \\u0000 from it"),
        ({"listeners": "127.0.0.1:9092"}, "write NAME://HOST:PORT"),
        ({"listeners": "PLAINTEXT://:9092"}, "add CONTROLLER://HOST:PORT to listeners"),
        ({"listeners": "CONTROLLER://:9093"}, "add PLAINTEXT://HOST:PORT to listeners"),
        ({"listeners": "OWN://:9092,CONTROLLER://:9093"}, "add OWN:PLAINTEXT to it"),
        ({"listener.security.protocol.map": "PLAINTEXT"}, "write NAME:PROTOCOL, with one of"),
        ({"process.roles": "controller"}, "remove PLAINTEXT from listeners, or add broker"),
        ({"advertised.listeners": "OTHER://a:1"}, "add OTHER:PLAINTEXT"),
        ({"advertised.listeners": "SASL_SSL://a:1"}, "it may name PLAINTEXT"),
        ({"advertised.listeners": "CONTROLLER://a:1"}, "add PLAINTEXT://HOST:PORT to it"),
        ({"inter.broker.listener.name": "OTHER"}, "name one of these: PLAINTEXT"),
        ({"inter.broker.listener.name": ""}, "name one of PLAINTEXT, or leave it out"),
        (
            {"advertised.listeners": "PLAINTEXT://0.0.0.0:9092"},
            "give one that can be reached, as advertised.listeners=PLAINTEXT://HOST:PORT",
        ),
        ({"controller.quorum.voters": "2@localhost:9093"}, "add 1@HOST:PORT to it"),
        ({"controller.quorum.voters": ""}, "controller.quorum.bootstrap.servers=HOST:PORT"),
    ],
)
def test_conflicting_settings_are_refused_with_the_remedy(
    changes: dict[str, str], remedy_text: str
) -> None:
    line = refusal(**changes)
    assert remedy_text in line.partition("; ")[2]


def test_ipv6_addresses_are_parsed_with_brackets_and_without() -> None:
    """Kafka takes both."""
    for host in ("[::1]", "::1"):
        config = node(listeners=f"PLAINTEXT://{host}:9092,CONTROLLER://{host}:9093")
        assert [(e.host, e.port) for e in config.endpoints] == [("::1", 9092), ("::1", 9093)]
