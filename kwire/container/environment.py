"""The settings that a container's environment describes, by the rules of Apache Kafka's image.

Pure. ``KAFKA_LOG_RETENTION_MS`` is ``log.retention.ms``: one underscore stands for a dot, two for
an underscore, three for a dash. The variables are the lines of a properties file, so a backslash
escapes there too. They override the mounted file; the defaults apply only without both. A broker
whose listeners are not set listens on the ports that it advertises.

Two rules are wider than those of Apache's image, so that more files work unchanged. All variables
about logging and JMX are left out, even those that Java does not read. A comma at the end of the
advertised listeners is dropped: testcontainers for .NET adds it, and Kafka 4.3 rejects it.
"""

import re
from collections.abc import Iterable, Mapping
from typing import Final

from kwire.configs.declare import ConfigError
from kwire.configs.properties import parse_properties

CLUSTER_ID: Final = "5L6g3nShT-eMCtK--X86sw"
"""The id of a new cluster if ``CLUSTER_ID`` is not set: the default of Apache's image."""

DEFAULTS: Final[Mapping[str, str]] = {
    "process.roles": "broker,controller",
    "node.id": "1",
    "controller.quorum.voters": "1@localhost:9093",
    "listeners": "PLAINTEXT://:9092,CONTROLLER://:9093",
    "inter.broker.listener.name": "PLAINTEXT",
    "advertised.listeners": "PLAINTEXT://localhost:9092",
    "controller.listener.names": "CONTROLLER",
    "log.dirs": "/tmp/kraft-combined-logs",
    "offsets.topic.replication.factor": "1",
    "transaction.state.log.replication.factor": "1",
    "transaction.state.log.min.isr": "1",
    "share.coordinator.state.topic.replication.factor": "1",
    "share.coordinator.state.topic.min.isr": "1",
}
"""The settings of Apache's image when none are given, unless they are Kafka's defaults anyway."""

_PREFIX: Final = "KAFKA_"
_NO_SETTINGS: Final = frozenset(
    {
        "KAFKA_GC_LOG_OPTS",
        "KAFKA_HEAP_OPTS",
        "KAFKA_JVM_PERFORMANCE_OPTS",
        "KAFKA_OPTS",
        "KAFKA_TOOLS_LOG4J_LOGLEVEL",
        "KAFKA_VERSION",
    }
)
_NO_SETTINGS_PREFIXES: Final = ("KAFKA_JMX_", "KAFKA_LOG4J_")
_HOST: Final = re.compile(r"://[^:]*:")
_LEVELS: Final = {
    "ALL": "DEBUG",
    "TRACE": "DEBUG",
    "DEBUG": "DEBUG",
    "WARN": "WARNING",
    "ERROR": "ERROR",
    "FATAL": "ERROR",
    "OFF": "ERROR",
}


def with_assignments(
    environment: Mapping[str, str], assignments: Iterable[str]
) -> Mapping[str, str]:
    """Return the environment with the ``NAME=VALUE`` arguments of the image's command."""
    changed = dict(environment)
    for assignment in assignments:
        name, equals, value = assignment.partition("=")
        if not equals or not name:
            raise ConfigError(f"{assignment}: expected NAME=VALUE, as KAFKA_NODE_ID=1")
        changed[name] = value
    return changed


def settings(environment: Mapping[str, str], mounted: str | None) -> dict[str, str]:
    """Return the node's properties.

    ``mounted`` is the text of the properties file in the container's configuration directory.
    Raises ConfigError if the text is not a properties file, or asks for ZooKeeper.
    """
    properties = {} if mounted is None else parse_properties(mounted)
    properties.update(parse_properties("\n".join(_lines(environment))))
    if not properties:
        return dict(DEFAULTS)
    _check_zookeeper(properties)
    advertised = properties.pop("advertised.listeners", "").rstrip(", ")
    if advertised:
        properties["advertised.listeners"] = advertised
        if not properties.get("listeners") and properties.get("process.roles") != "controller":
            properties["listeners"] = _HOST.sub("://0.0.0.0:", advertised)
    return properties


def _lines(environment: Mapping[str, str]) -> Iterable[str]:
    for name, value in environment.items():
        if is_setting(name):
            yield f"{property_name(name)}={value}"


def is_setting(variable: str) -> bool:
    """Return whether a variable sets a Kafka setting; options of Java and logging do not."""
    return (
        variable.startswith(_PREFIX)
        and variable not in _NO_SETTINGS
        and not variable.startswith(_NO_SETTINGS_PREFIXES)
    )


def property_name(variable: str) -> str:
    """Return the setting that a variable names."""
    dotted = variable.removeprefix(_PREFIX).lower().replace("_", ".")
    return dotted.replace("...", "-").replace("..", "_")


def _check_zookeeper(properties: Mapping[str, str]) -> None:
    if properties.get("zookeeper.connect") and not properties.get("process.roles"):
        raise ConfigError(
            "KAFKA_ZOOKEEPER_CONNECT is set, but neither Kafka 4 nor kwire has ZooKeeper; set "
            "KAFKA_PROCESS_ROLES=broker,controller (in container libraries: with_kraft, withKraft)"
        )


def log_level(environment: Mapping[str, str]) -> str:
    """Return the log level, which Apache's image takes from a variable; INFO by default."""
    level = environment.get("KAFKA_LOG4J_ROOT_LOGLEVEL", "").strip().upper()
    return _LEVELS.get(level, "INFO")
