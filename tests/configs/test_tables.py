"""The tables against Kafka 4.3.1's own definitions, which were read out of its classes."""

import gzip
import json
import re
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

import kwire
from kwire.configs.broker import OWN, BrokerConfig, all_broker_keys
from kwire.configs.client_metrics import ClientMetricsConfig
from kwire.configs.declare import BadValue, Key
from kwire.configs.group import GroupConfig
from kwire.configs.topic import FROM_BROKER, SYNONYMS, TopicConfig

FACTS = [
    json.loads(line)
    for line in gzip.open(Path(__file__).parent / "settings-4.3.1.jsonl.gz", "rt")  # noqa: SIM115
]
TABLES: dict[str, dict[str, Key[Any]]] = {
    "broker": all_broker_keys(),
    "topic": TopicConfig.keys(),
    "group": GroupConfig.keys(),
    "client-metrics": ClientMetricsConfig.keys(),
}
BEYOND_TABLES = {
    "follower.replication.throttled.rate",
    "leader.replication.throttled.rate",
    "replica.alter.log.dirs.io.max.bytes.per.second",
    "replica.lag.max.messages",
}
"""Settings that Kafka has outside of its tables (``DynamicConfig``), and one that it had once."""
ALIKE = {"sasl.oauthbearer.jwt.validator.class", "ssl.protocol"}
"""Settings that need not be read, because other settings decide: all their values are accepted."""
REQUIRED = {"node.id", "process.roles", "controller.listener.names"}


def test_every_setting_of_kafka_is_there_and_no_other() -> None:
    own = OWN | BEYOND_TABLES
    for table, keys in TABLES.items():
        assert set(keys) - own == {fact["name"] for fact in FACTS if fact["table"] == table}
        assert all(keys[name].internal for name in OWN & set(keys)), "tools see Kafka's only"
    assert {table: len(keys.keys() - own) for table, keys in TABLES.items()} == {
        "broker": 360,
        "topic": 34,
        "group": 17,
        "client-metrics": 3,
    }


@pytest.mark.parametrize("fact", FACTS, ids=lambda fact: f"{fact['table']}-{fact['name']}")
def test_setting_has_kafkas_type_default_and_bounds(fact: dict[str, Any]) -> None:
    key = TABLES[fact["table"]][fact["name"]]
    assert key.kind.name == fact["type"]
    assert key.internal == fact["internal"]
    if key.name not in REQUIRED:
        assert key.text(key.default) == fact["default"]
    if fact["scope"] is not None:
        assert key.scope.value == fact["scope"]
    if key.default is not None and key.name not in REQUIRED:
        assert key.parse(key.text(key.default) or "") == key.default, "a default is a legal value"


def test_used_settings_are_explained() -> None:
    for keys in (BrokerConfig.keys(), TopicConfig.keys()):
        assert not [name for name, key in keys.items() if not key.doc.endswith(".")]


def test_topic_settings_and_their_broker_settings_exist() -> None:
    assert set(FROM_BROKER) <= set(SYNONYMS) <= set(TopicConfig.keys())
    assert not [name for name in FROM_BROKER.values() if not hasattr(BrokerConfig, name)]
    assert not [name for name in SYNONYMS.values() if name not in all_broker_keys()]


@pytest.mark.parametrize(
    ("name", "text", "value"),
    [
        ("log.cleaner.min.cleanable.ratio", ".5f", 0.5),
        ("log.cleaner.min.cleanable.ratio", " 5e-1D\t", 0.5),
        ("log.cleaner.io.max.bytes.per.second", "1_000", None),
        ("log.cleaner.io.max.bytes.per.second", "inf", None),
        ("log.cleaner.io.max.bytes.per.second", "\u0663", None),  # a digit, but not Java's
        ("log.retention.bytes", "\u00a07", None),  # a blank that Java does not trim
        ("broker.rack", "\u00a0r ", "\u00a0r"),
    ],
)
def test_values_are_read_as_by_apache_kafka(name: str, text: str, value: object) -> None:
    """Apache Kafka's brokers in the same cluster must be able to read what is altered here."""
    key = all_broker_keys()[name]
    if value is None:
        with pytest.raises(BadValue):
            key.parse(text)
    else:
        assert key.parse(text) == value


def test_settings_that_nothing_reads_are_marked() -> None:
    """An operator would otherwise expect an effect of a setting that is only shown."""
    sources = [path.read_text() for path in Path(kwire.__file__).parent.rglob("*.py")]
    words = Counter(re.findall(r"\w+", "\n".join(sources)))
    declared = Counter(re.findall(r"^    (\w+) = ", "\n".join(sources), re.MULTILINE))
    unread = {
        name
        for table in ("broker", "topic")
        for name, key in TABLES[table].items()
        if key.effective and words[key.attribute] == declared[key.attribute]
    }
    # The names of these follow from those of groups' own settings (kwire.configs.group).
    of_groups = [name.partition(".") for name in TABLES["group"]]
    derived = {
        f"group.{kind}.{limit}{name}"
        for kind, _, name in of_groups
        for limit in ("", "min.", "max.")
    }
    assert unread - derived == ALIKE
