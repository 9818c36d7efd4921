"""Environment variables of a container become Kafka's properties, by the rules of Apache's image.

`compat_tests/containers/test_environment.py` asks the same of Apache Kafka's own program.
"""

import pytest

from kwire.configs.declare import ConfigError
from kwire.configs.load import broker_config
from kwire.container.environment import (
    DEFAULTS,
    is_setting,
    log_level,
    property_name,
    settings,
    with_assignments,
)

SINGLE = {
    "KAFKA_PROCESS_ROLES": "broker,controller",
    "KAFKA_NODE_ID": "1",
    "KAFKA_LISTENERS": "PLAINTEXT://:9092,CONTROLLER://:9093",
    "KAFKA_CONTROLLER_LISTENER_NAMES": "CONTROLLER",
    "KAFKA_CONTROLLER_QUORUM_VOTERS": "1@localhost:9093",
}


@pytest.mark.parametrize(
    ("variable", "name"),
    [
        ("KAFKA_LOG_RETENTION_MS", "log.retention.ms"),
        ("KAFKA_A__B", "a_b"),
        ("KAFKA_A___B", "a-b"),
        ("KAFKA_A____B", "a-.b"),
        ("KAFKA_A_____B", "a-_b"),
        ("KAFKA_LISTENER_NAME_KAFKA_PORT", "listener.name.kafka.port"),
        ("KAFKA_Mixed_Case", "mixed.case"),
    ],
)
def test_underscores_stand_for_dots_underscores_and_dashes(variable: str, name: str) -> None:
    assert property_name(variable) == name


@pytest.mark.parametrize(
    "variable",
    [
        "CLUSTER_ID",
        "KAFKA",
        "KAFKA_HEAP_OPTS",
        "KAFKA_OPTS",
        "KAFKA_GC_LOG_OPTS",
        "KAFKA_JVM_PERFORMANCE_OPTS",
        "KAFKA_JMX_PORT",
        "KAFKA_JMX_HOSTNAME",
        "KAFKA_LOG4J_LOGGERS",
        "KAFKA_LOG4J_ROOT_LOGLEVEL",
        "KAFKA_TOOLS_LOG4J_LOGLEVEL",
        "KAFKA_VERSION",
        "kafka_log_dirs",
    ],
)
def test_variables_of_java_and_of_others_are_no_settings(variable: str) -> None:
    assert not is_setting(variable)
    assert settings({variable: "x"}, None) == DEFAULTS


def test_without_settings_a_broker_and_controller_listens_on_9092() -> None:
    config = broker_config(settings({"PATH": "/bin", "CLUSTER_ID": "x"}, None))
    assert config.is_broker
    assert config.is_controller
    assert [str(e) for e in config.broker_endpoints] == ["PLAINTEXT://:9092"]
    assert str(config.advertised_endpoints[0]) == "PLAINTEXT://localhost:9092"


def test_any_setting_replaces_all_defaults() -> None:
    assert settings({"KAFKA_NODE_ID": "7"}, None) == {"node.id": "7"}
    assert settings({}, "node.id=8\n") == {"node.id": "8"}
    assert settings({}, "# nothing\n") == DEFAULTS


def test_variables_override_the_mounted_file() -> None:
    mounted = "node.id=1\nnum.partitions=3\n"
    assert settings({"KAFKA_NODE_ID": "2"}, mounted) == {"node.id": "2", "num.partitions": "3"}


def test_values_are_read_as_lines_of_a_properties_file() -> None:
    environment = {"KAFKA_A": r"x\ty", "KAFKA_B": "  z ", "KAFKA_C": "", "KAFKA_D": "1\ne.f=2"}
    assert settings(environment, None) == {"a": "x\ty", "b": "z ", "c": "", "d": "1", "e.f": "2"}


def test_node_without_listeners_listens_where_it_advertises() -> None:
    environment = {"KAFKA_ADVERTISED_LISTENERS": "PLAINTEXT://kafka:9092,OUT://localhost:19092"}
    assert settings(environment, None)["listeners"] == (
        "PLAINTEXT://0.0.0.0:9092,OUT://0.0.0.0:19092"
    )
    explicit = settings({**environment, "KAFKA_LISTENERS": "PLAINTEXT://:1"}, None)
    assert explicit["listeners"] == "PLAINTEXT://:1"
    controller = settings({**environment, "KAFKA_PROCESS_ROLES": "controller"}, None)
    assert "listeners" not in controller


def test_advertised_listeners_may_end_with_a_comma() -> None:
    """testcontainers for .NET leaves the comma when a test adds no listeners."""
    advertised = {"KAFKA_ADVERTISED_LISTENERS": "PLAINTEXT://localhost:32768,"}
    config = broker_config(settings({**SINGLE, **advertised}, None))
    assert [e.port for e in config.advertised_endpoints] == [32768, 9093]


def test_zookeeper_is_an_error_that_says_what_to_do() -> None:
    with pytest.raises(ConfigError, match="KAFKA_PROCESS_ROLES=broker,controller"):
        settings({"KAFKA_ZOOKEEPER_CONNECT": "localhost:2181", "KAFKA_BROKER_ID": "1"}, None)
    assert settings({**SINGLE, "KAFKA_ZOOKEEPER_CONNECT": "localhost:2181"}, None)


def test_arguments_are_further_variables() -> None:
    environment = with_assignments({"KAFKA_A": "1", "B": "2"}, ["KAFKA_A=3", "KAFKA_C=x=y"])
    assert environment == {"KAFKA_A": "3", "B": "2", "KAFKA_C": "x=y"}
    with pytest.raises(ConfigError, match="NAME=VALUE"):
        with_assignments({}, ["serve"])


@pytest.mark.parametrize(
    ("variable", "level"),
    [("", "INFO"), ("warn", "WARNING"), ("TRACE", "DEBUG"), ("OFF", "ERROR"), ("loud", "INFO")],
)
def test_log_level_is_that_of_the_root_logger(variable: str, level: str) -> None:
    assert log_level({"KAFKA_LOG4J_ROOT_LOGLEVEL": variable}) == level
