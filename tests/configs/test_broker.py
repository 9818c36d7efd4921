"""A node's settings: precedence, combinations, and what is refused."""

import logging
from collections import Counter

import pytest

from kwire.configs import checks
from kwire.configs.authorizer import authorizer_config
from kwire.configs.broker import BrokerConfig
from kwire.configs.checks import check_changed, check_own_change
from kwire.configs.declare import ConfigError
from kwire.configs.describe import describe_broker
from kwire.configs.listeners import Address, ListenerEndpoint
from kwire.configs.load import broker_config, run_time_config
from kwire.configs.topic import TopicConfig, check_topic_config
from tests.support.configs.node import NODE, node


def test_a_usual_node() -> None:
    config = node()
    assert config.is_broker
    assert config.is_controller
    assert config.node_id == config.broker_id == 1
    assert config.endpoints == (
        ListenerEndpoint("PLAINTEXT", "", 9092),
        ListenerEndpoint("CONTROLLER", "", 9093),
    )
    assert config.broker_endpoints == (ListenerEndpoint("PLAINTEXT", "", 9092),)
    assert config.advertised_endpoints == (
        ListenerEndpoint("PLAINTEXT", "localhost", 9092),
        ListenerEndpoint("CONTROLLER", "", 9093),
    )
    assert config.voters == {1: Address("localhost", 9093)}
    assert config.data_directories == ("a", "b")
    assert config.metadata_directory == "a"
    assert config.log_segment_bytes == 1 << 30
    assert str(ListenerEndpoint("X", "::1", 9)) == "X://[::1]:9"


def test_file_of_kafkas_distribution() -> None:
    """The protocol map there names protected protocols that no listener uses."""
    protocols = "CONTROLLER:PLAINTEXT,PLAINTEXT:PLAINTEXT,SSL:SSL,SASL_SSL:SASL_SSL"
    assert node(listener_security_protocol_map=protocols).protocols["SSL"] == "SSL"
    assert node(num_network_threads="3", socket_send_buffer_bytes="102400")


@pytest.mark.parametrize(
    ("settings", "expected"),
    [
        ({}, 168 * 3_600_000),
        ({"log.retention.hours": "2"}, 7_200_000),
        ({"log.retention.hours": "2", "log.retention.minutes": "3"}, 180_000),
        ({"log.retention.ms": "4", "log.retention.minutes": "3"}, 4),  # the finer unit counts
        ({"log.retention.ms": "-1"}, -1),
        ({"log.retention.hours": "-7"}, -1),  # any negative number is never
    ],
)
def test_retention_precedence(settings: dict[str, str], expected: int) -> None:
    config = BrokerConfig({**NODE, **settings})
    assert config.log_retention_time_ms == expected
    assert TopicConfig({}, config).retention_ms == expected


def test_dynamic_settings_override_the_file() -> None:
    config = node(log_retention_ms="5000", num_partitions="7")
    changed = config.with_dynamic(
        {"log.retention.ms": "6000", "message.max.bytes": "x"}, {"log.retention.ms": "7000"}
    )
    assert changed.log_retention_time_ms == 7000, "this broker's before all brokers'"
    assert changed.message_max_bytes == 1_048_588, "an unusable one is left out"
    assert changed.num_partitions == 7
    assert config.log_retention_time_ms == 5000, "the old snapshot stays"


def test_settings_that_only_the_file_may_set_do_not_change_at_run_time() -> None:
    """Apache Kafka's controllers store them too, and its brokers ignore them."""
    stored = {"node.id": "7", "advertised.listeners": "PLAINTEXT://elsewhere:9", "log.dirs": "c"}
    config = BrokerConfig(NODE)
    changed = config.with_dynamic(stored, {**stored, "log.retention.ms": "7000"})
    assert (changed.node_id, changed.log_dirs) == (config.node_id, config.log_dirs)
    assert changed.advertised_endpoints == config.advertised_endpoints
    assert changed.log_retention_time_ms == 7000


def test_settings_of_one_broker_do_not_change_for_all_of_them() -> None:
    """Apache Kafka's controllers store them too, and its brokers ignore them."""
    stored = {
        "listeners": "PLAINTEXT://elsewhere:9,CONTROLLER://:9093",
        "listener.security.protocol.map": "PLAINTEXT:SSL,CONTROLLER:PLAINTEXT",
        "ssl.keystore.location": "all.pem",
    }
    config = BrokerConfig(NODE)
    assert not config.with_dynamic(stored, {}).cluster
    assert config.with_dynamic(stored, {}).endpoints == config.endpoints
    assert config.with_dynamic({}, stored).endpoints != config.endpoints


@pytest.mark.parametrize(
    ("protocols", "listeners"),
    [
        ("abc", None),
        ("CONTROLLER:PLAINTEXT", None),
        ("PLAINTEXT:SASL_SSL,CONTROLLER:PLAINTEXT", None),
        ("PLAINTEXT:PLAINTEXT,CONTROLLER:PLAINTEXT", "abc"),
        ("PLAINTEXT:PLAINTEXT,CONTROLLER:PLAINTEXT", "CONTROLLER://:9093"),
    ],
)
def test_listeners_that_a_broker_cannot_have_are_refused_and_ignored_where_stored(
    protocols: str, listeners: str | None
) -> None:
    """A controller stores what a tool sends to it; a broker that applied it would end."""
    config = BrokerConfig(NODE)
    own = {"listener.security.protocol.map": protocols}
    if listeners is not None:
        own["listeners"] = listeners
    with pytest.raises(ConfigError):
        check_own_change(config, config.with_dynamic({}, own), own)
    changed = run_time_config(config, {}, {**own, "log.retention.ms": "7000"})
    assert changed.endpoints == config.endpoints
    assert changed.protocols == config.protocols
    assert changed.log_retention_time_ms == 7000


def test_further_protocols_of_listeners_are_accepted() -> None:
    config = BrokerConfig(NODE)
    own = {"listener.security.protocol.map": "PLAINTEXT:PLAINTEXT,CONTROLLER:PLAINTEXT,X:SSL"}
    check_own_change(config, config.with_dynamic({}, own), own)
    assert run_time_config(config, {}, own).protocols["X"] == "SSL"


@pytest.mark.parametrize(
    "settings",
    [
        {"principal.builder.class": "com.example.Builder"},
        {"ssl.engine.factory.class": "com.example.Factory"},
        {"listener.name.external.ssl.engine.factory.class": "com.example.Factory"},
        {"group.consumer.assignment.interval.ms": "60000"},
        {"group.share.assignment.interval.ms": "60000"},
        {"group.streams.assignment.interval.ms": "60000"},
        {"log.cleaner.dedupe.buffer.size": "1048576"},
        {"log.cleaner.dedupe.buffer.size": "2097153", "log.cleaner.threads": "2"},
    ],
)
def test_what_a_file_may_not_have_cannot_be_set_at_run_time(settings: dict[str, str]) -> None:
    """Apache Kafka refuses the groups' and the cleaner's; for the others it loads the class."""
    config = BrokerConfig(NODE)
    with pytest.raises(ConfigError):
        check_changed(config.with_dynamic({}, settings), settings)
    with pytest.raises(ConfigError):
        broker_config({**NODE, **settings})


def test_groups_and_the_cleaner_are_checked_once_for_many_names(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A request may name thousands of settings, and the check of the groups takes 0.15 ms."""
    calls: Counter[str] = Counter()
    for check in ("_check_times", "_check_cleaner"):
        monkeypatch.setattr(checks, check, lambda _, check=check: calls.update([check]))
    names = [f"{kind}unknown.{n}" for kind in ("group.", "log.cleaner.") for n in range(100)]
    check_changed(BrokerConfig(NODE), names)
    assert calls == {"_check_times": 1, "_check_cleaner": 1}


def test_invalid_setting_without_an_effect_does_not_hide_the_others() -> None:
    name = "remote.list.offsets.request.timeout.ms"
    config = BrokerConfig(NODE).with_dynamic({name: "abc"}, {name: "abc"})
    assert {entry.name: entry.value for entry in describe_broker(config)}[name] == "30000"


REFUSED = [
    ({"num.partitions": "many"}, "num.partitions"),
    ({"num.partitions": "0"}, "num.partitions"),
    ({"log.segment.bytes": "1000"}, "log.segment.bytes"),  # below 1 MiB since 4.0
    ({"log.cleanup.policy": "shred"}, "log.cleanup.policy"),
    ({"compression.gzip.level": "0"}, "compression.gzip.level"),
    ({"auto.create.topics.enable": "yes"}, "auto.create.topics.enable"),
    ({"node.id": ""}, "node.id"),
    ({"broker.id": "2"}, "node.id"),
    ({"process.roles": ""}, "process.roles"),
    ({"process.roles": "zookeeper"}, "process.roles"),
    ({"controller.quorum.voters": ""}, "controller.quorum.voters"),
    ({"controller.quorum.voters": "1-localhost:9093"}, "controller.quorum.voters"),
    ({"controller.quorum.voters": "2@localhost:9093"}, "controller.quorum.voters"),
    ({"listeners": "PLAINTEXT:/9092"}, "listeners"),
    ({"listeners": "PLAINTEXT://:9092"}, "controller.listener.names"),
    ({"listeners": "PLAINTEXT://:9092,PLAINTEXT://:9093"}, "listeners"),
    ({"listeners": "OWN://:9092,CONTROLLER://:9093"}, "listener.security.protocol.map"),
    ({"process.roles": "broker"}, "listeners"),
    ({"process.roles": "controller"}, "listeners"),
    (
        {
            "process.roles": "broker",
            "listeners": "PLAINTEXT://:9092",
            "controller.quorum.voters": "2@localhost:9093",
            "controller.quorum.auto.join.enable": "true",
        },
        "controller.quorum.auto.join.enable",
    ),
    ({"inter.broker.listener.name": "OTHER"}, "inter.broker.listener.name"),
    ({"advertised.listeners": "PLAINTEXT://0.0.0.0:9092"}, "advertised.listeners"),
    ({"log.retention.ms": "0"}, "log.retention.ms"),
    ({"log.dirs": "a,,b"}, "log.dirs"),
    ({"log.dirs": ""}, "log.dirs"),
    ({"authorizer.class.name": "org.example.Authorizer"}, "authorizer.class.name"),
    ({"super.users": "User:a;root"}, "root"),
    ({"allow.everyone.if.no.acl.found": "maybe"}, "allow.everyone.if.no.acl.found"),
    ({"early.start.listeners": "OTHER"}, "early.start.listeners"),
    ({"ssl.engine.factory.class": "x"}, "ssl.engine.factory.class"),
    ({"listener.name.plaintext.ssl.provider": "x"}, "ssl.provider"),
    ({"listener.name.a.scram-sha-256.sasl.jaas.config": "x"}, "sasl.jaas.config"),
    ({"sasl.enabled.mechanisms": "PLAIN"}, "sasl.enabled.mechanisms"),
    ({"listener.security.protocol.map": "PLAINTEXT:SSL,CONTROLLER:PLAINTEXT"}, "PLAINTEXT"),
    ({"listener.security.protocol.map": "PLAINTEXT:PLAINTEXT,CONTROLLER:SSL"}, "CONTROLLER"),
    ({"create.topic.policy.class.name": "org.example.Policy"}, "create.topic.policy.class.name"),
    ({"group.consumer.session.timeout.ms": "44999"}, "group.consumer.session.timeout.ms"),
    ({"group.consumer.heartbeat.interval.ms": "15001"}, "group.consumer.heartbeat.interval.ms"),
    (
        {
            "group.consumer.min.session.timeout.ms": "5000",
            "group.consumer.session.timeout.ms": "5000",
        },
        "group.consumer.heartbeat.interval.ms",
    ),
]


@pytest.mark.parametrize(("settings", "named"), REFUSED, ids=lambda v: str(v)[:60])
def test_wrong_setting_is_named_in_one_line(settings: dict[str, str], named: str) -> None:
    with pytest.raises(ConfigError) as caught:
        broker_config({**NODE, **settings})
    assert named in str(caught.value)
    assert "\n" not in str(caught.value)


def test_protective_settings_at_their_defaults_ask_for_nothing() -> None:
    assert node(ssl_client_auth="none", sasl_mechanism_inter_broker_protocol="GSSAPI")


def test_the_authorizer_of_kafka_is_accepted() -> None:
    standard = "org.apache.kafka.metadata.authorizer.StandardAuthorizer"
    config = authorizer_config(
        node(authorizer_class_name=standard, super_users="User:a; User:CN=b,O=c;")
    )
    assert config is not None
    assert config.users == {("User", "a"), ("User", "CN=b,O=c")}
    assert not config.allow_everyone_if_no_acl_found
    assert authorizer_config(node(super_users="User:a")) is None


def test_unknown_names_are_warned_about(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING):
        node(zookeeper_connect="localhost:2181", remote_log_reader_threads="3")
    assert [record.getMessage() for record in caplog.records] == [
        "unknown setting ignored name=zookeeper.connect"
    ]


def test_any_known_setting_can_be_read_raw() -> None:
    assert node(remote_log_reader_threads="3").raw("remote.log.reader.threads") == 3
    assert node().raw("remote.log.reader.threads") == 10


def test_topic_falls_back_to_the_broker() -> None:
    broker = node(log_segment_bytes="2097152", min_insync_replicas="2")
    topic = TopicConfig({"retention.ms": "9", "cleanup.policy": "compact"}, broker)
    assert (topic.segment_bytes, topic.min_insync_replicas) == (2_097_152, 2)
    assert topic.retention_ms == 9
    assert TopicConfig({"internal.segment.bytes": "100"}).internal_segment_bytes == 100


@pytest.mark.parametrize(
    ("settings", "reason"),
    [
        ({"no.such": "1"}, "Unknown topic config name: no.such"),
        (
            {"retention.ms": "abc"},
            "Invalid value abc for configuration retention.ms: Not a number of type LONG",
        ),
        (
            {"retention.ms": "-2"},
            "Invalid value -2 for configuration retention.ms: Value must be at least -1",
        ),
        (
            {"min.cleanable.dirty.ratio": "2"},
            "Invalid value 2 for configuration min.cleanable.dirty.ratio: "
            "Value must be no more than 1",
        ),
        ({"min.compaction.lag.ms": "5", "max.compaction.lag.ms": "4"}, "min.compaction.lag.ms"),
        ({"leader.replication.throttled.replicas": "1-2"}, "leader.replication"),
        ({"remote.storage.enable": "true"}, "Tiered Storage"),
    ],
)
def test_wrong_topic_settings_are_refused(settings: dict[str, str], reason: str) -> None:
    with pytest.raises(ConfigError) as caught:
        check_topic_config(settings)
    assert reason in str(caught.value)
