"""DescribeConfigs, beyond the answers that are compared with Kafka's as a whole."""

import pytest

from kwire.configs.broker import BrokerConfig
from kwire.configs.declare import Kind
from kwire.configs.describe import (
    describe_broker,
    describe_broker_default,
    describe_group,
    describe_new_topic,
    describe_topic,
)
from tests.support.configs.node import NODE


def test_description_has_every_setting_that_is_not_internal() -> None:
    """A Kafka 4.3.1 node shows 340 settings, 241 of them read-only."""
    entries = {entry.name: entry for entry in describe_broker(BrokerConfig(NODE))}
    assert len(entries) == 340
    assert sum(entry.read_only for entry in entries.values()) == 241
    assert not entries["log.segment.bytes"].read_only
    assert entries["ssl.key.password"].sensitive
    assert (entries["log.dirs"].value, entries["log.dirs"].source) == ("a,b", 4)
    assert (entries["broker.id"].value, entries["broker.id"].source) == ("1", 4)
    assert (entries["log.retention.ms"].value, entries["log.retention.ms"].synonyms) == (None, ())


def test_values_of_unknown_settings_are_hidden() -> None:
    entries = describe_broker(BrokerConfig({**NODE, "own.secret": "x"}))
    last = next(entry for entry in entries if entry.name == "own.secret")
    assert (last.value, last.sensitive, last.read_only) == (None, True, True)


def test_settings_of_a_listener_are_shown_with_their_sources() -> None:
    """The values, sources and synonyms are those of a Kafka 4.3.1 node."""
    connections = "listener.name.plaintext.max.connections"
    stores = "listener.name.internal.ssl.truststore."
    broker = BrokerConfig({**NODE, connections: "500"}).with_dynamic(
        {connections: "700"},
        {connections: "600", f"{stores}type": "PKCS12", f"{stores}location": "/temp/test.jks"},
    )
    entries = {entry.name: entry for entry in describe_broker(broker)}
    limit = entries[connections]
    assert (limit.value, limit.source, limit.kind) == ("600", 2, Kind.INT)
    assert (limit.read_only, limit.sensitive, limit.doc) == (True, False, None)
    assert limit.synonyms == (
        (connections, "600", 2),
        (connections, "700", 3),
        (connections, "500", 4),
        ("max.connections", "2147483647", 5),
    )
    kind = entries[f"{stores}type"]
    assert kind.synonyms == ((kind.name, "PKCS12", 2), ("ssl.truststore.type", "JKS", 5))
    location = entries[f"{stores}location"]
    assert (location.value, location.source) == ("/temp/test.jks", 2)
    assert location.synonyms == ((location.name, "/temp/test.jks", 2),)
    (default,) = describe_broker_default(broker)
    assert (default.name, default.value, default.source) == (connections, "700", 3)
    assert (default.read_only, default.sensitive, default.kind) == (True, False, Kind.INT)
    assert default.synonyms == ((connections, "700", 3),)


@pytest.mark.parametrize(
    "name",
    [
        "listener.name.plaintext.ssl.keystore.password",
        "listener.name.plaintext.plain.sasl.jaas.config",
        "listener.name.plaintext.oauthbearer.sasl.oauthbearer.client.credentials.client.secret",
        "listener.name.plaintext",
    ],
)
def test_secrets_of_a_listener_are_hidden(name: str) -> None:
    broker = BrokerConfig({**NODE, name: "secret"})
    entry = {entry.name: entry for entry in describe_broker(broker)}[name]
    assert (entry.value, entry.sensitive, entry.source) == (None, True, 4)
    assert entry.synonyms == ((name, None, 4),)


def test_unknown_settings_made_at_run_time_are_listed_without_values() -> None:
    """Else nobody could see that they are stored, and delete them."""
    broker = BrokerConfig({**NODE, "own.secret": "x"}).with_dynamic(
        {"invalid": "1", "other": "3"}, {"invalid": "2", "own.secret": "y"}
    )
    entries = {entry.name: entry for entry in describe_broker(broker)}
    shown = [entries[name] for name in ("invalid", "other", "own.secret")]
    assert {(e.value, e.sensitive, e.read_only, e.kind) for e in shown} == {(None, True, True, 0)}
    assert [entry.source for entry in shown] == [2, 3, 2]
    assert entries["invalid"].synonyms == (("invalid", None, 2), ("invalid", None, 3))
    assert entries["own.secret"].synonyms == (("own.secret", None, 2), ("own.secret", None, 4))
    defaults = describe_broker_default(broker)
    assert [(e.name, e.value, e.read_only) for e in defaults] == [
        ("invalid", None, True),
        ("other", None, True),
    ]
    assert [e.synonyms for e in defaults] == [(("invalid", None, 3),), (("other", None, 3),)]


@pytest.mark.parametrize(
    ("static", "cluster", "own", "source"),
    [
        ({}, {}, {}, 5),
        ({"message.max.bytes": "1"}, {}, {}, 4),
        ({"message.max.bytes": "1"}, {"message.max.bytes": "2"}, {}, 3),
        ({}, {"message.max.bytes": "2"}, {"message.max.bytes": "3"}, 2),
    ],
)
def test_source_of_a_setting_is_that_of_its_first_synonym(
    static: dict[str, str], cluster: dict[str, str], own: dict[str, str], source: int
) -> None:
    broker = BrokerConfig({**NODE, **static}).with_dynamic(cluster, own)
    entry = {e.name: e for e in describe_topic({}, broker)}["max.message.bytes"]
    expected = {5: "1048588", 4: "1", 3: "2", 2: "3"}[source]
    assert (entry.source, entry.value) == (source, expected)
    assert entry.synonyms[0].value == expected
    assert entry.synonyms[-1] == ("message.max.bytes", "1048588", 5)
    topic = {e.name: e for e in describe_topic({"max.message.bytes": "9"}, broker)}
    assert (topic["max.message.bytes"].source, topic["max.message.bytes"].value) == (1, "9")


def test_other_units_count_for_new_topics_only() -> None:
    """Kafka's CreateTopics names the file as the source, its DescribeConfigs the default."""
    broker = BrokerConfig({**NODE, "log.retention.hours": "2"})
    of_new_topic = {e.name: e for e in describe_new_topic({}, broker)}["retention.ms"]
    of_topic = {e.name: e for e in describe_topic({}, broker)}["retention.ms"]
    assert (of_new_topic.value, of_new_topic.source) == (of_topic.value, 4)
    assert (of_topic.value, of_topic.source) == ("7200000", 5)


def test_topic_settings_of_another_release_are_shown_as_they_are_in_force() -> None:
    """Below the minimum counts as the minimum; what this release does not know is left out."""
    stored = {
        "segment.bytes": "14",
        "cleanup.policy": "shred",
        "message.format.version": "2.8-IV1",
    }
    entries = {entry.name: entry for entry in describe_topic(stored, BrokerConfig(NODE))}
    assert (entries["segment.bytes"].value, entries["segment.bytes"].source) == ("1048576", 1)
    assert entries["cleanup.policy"].value == "delete"
    assert "message.format.version" not in entries


def test_overridden_setting_of_a_group_shows_the_default_behind_it() -> None:
    """Kafka shows it also for the settings that no setting of the broker stands behind."""
    name = "share.auto.offset.reset"
    broker = BrokerConfig(NODE)
    unset = {entry.name: entry for entry in describe_group({}, broker)}[name]
    assert unset.synonyms == ((name, "latest", 5),)
    overridden = {entry.name: entry for entry in describe_group({name: "earliest"}, broker)}[name]
    assert (overridden.value, overridden.source) == ("earliest", 8)
    assert overridden.synonyms == ((name, "earliest", 8), (name, "latest", 5))
