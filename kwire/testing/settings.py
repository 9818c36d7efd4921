"""The settings of test brokers: keyword arguments with Kafka's names, underscores for dots.

Pure. Rules: a name that Kafka does not have is an error, so that a typo does not go unnoticed.
Settings that the test broker decides itself (addresses, roles, directories) cannot be set.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Final

from kwire.cluster.layout import HOST, Member, Plan, properties
from kwire.configs.broker import BrokerConfig, broker_key
from kwire.configs.checks import nearest_name
from kwire.configs.declare import ConfigError
from kwire.configs.files import with_variables
from kwire.configs.load import broker_config
from kwire.configs.properties import parse_properties
from kwire.testing.errors import BrokerError

if TYPE_CHECKING:
    from kwire.secure.folder import SecureFolder

CLIENTS: Final = "PLAINTEXT"
"""The listener for clients. Brokers use another one, so that faults affect clients only."""
_BROKERS: Final = "INTERNAL"
_OWN: Final = frozenset(
    {
        *("advertised.listeners", "broker.id", "controller.listener.names"),
        *("controller.quorum.bootstrap.servers", "controller.quorum.voters"),
        *("inter.broker.listener.name", "listener.security.protocol.map", "listeners"),
        *("log.dir", "log.dirs", "metadata.log.dir", "node.id", "process.roles"),
        "security.inter.broker.protocol",
    }
)
"""Settings that the test broker decides itself."""
_FOR_TESTS: Final[Mapping[str, str]] = {
    "offsets.topic.num.partitions": "1",
    "transaction.state.log.num.partitions": "1",
    "log.segment.delete.delay.ms": "0",
}
"""Settings that save time and memory; an application does not notice them."""


def kafka_settings(arguments: Mapping[str, object]) -> dict[str, str]:
    """Return the settings given as keyword arguments; raise BrokerError for an unknown name."""
    for argument in arguments:
        name = _name(argument)
        if name in _OWN:
            raise BrokerError(f"{argument} cannot be set: the test broker sets {name} itself")
        if broker_key(name) is None:
            nearest = nearest_name(name)
            hint = "" if nearest is None else f"; did you mean {nearest.replace('.', '_')}?"
            raise BrokerError(f"{argument} is not one of Kafka's broker settings{hint}")
    return setting_texts(arguments)


def setting_texts(arguments: Mapping[str, object]) -> dict[str, str]:
    """Return names and values in Kafka's form, given as keyword arguments."""
    return {_name(argument): _text(value) for argument, value in arguments.items()}


def _name(argument: str) -> str:
    return argument.replace("_", ".")


def _text(value: object) -> str:
    match value:
        case bool():
            return str(value).lower()
        case list() | tuple():
            return ",".join(map(_text, value))
        case _:
            return str(value)


def node_config(
    plan: Plan,
    member: Member,
    port: int,
    data: Path,
    settings: Mapping[str, str],
    secure: "SecureFolder | None" = None,
) -> BrokerConfig:
    """Return the configuration of one node; raise BrokerError for an invalid setting.

    ``port`` is the clients' port; 0 means any free port. ``secure`` has the files of a protected
    node.
    """
    listeners = [f"{CLIENTS}://{HOST}:{port}"]
    if member in plan.voters:
        listeners.append(f"CONTROLLER://{HOST}:{member.controller_port}")
    if len(plan.members) > 1:
        listeners.append(f"{_BROKERS}://{HOST}:0")
    own_settings = {
        **parse_properties(properties(plan, member, data)),
        **_FOR_TESTS,
        "listeners": ",".join(listeners),
        "log.dirs": str(data),
        **settings,
    }
    if len(plan.members) > 1:
        own_settings["inter.broker.listener.name"] = _BROKERS
    try:
        all_settings = with_variables(own_settings)
        if secure is not None:
            all_settings = _protect(all_settings, secure)
        elif len(plan.members) > 1:
            names = (CLIENTS, "CONTROLLER", _BROKERS)
            protocols = ",".join(f"{name}:PLAINTEXT" for name in names)
            all_settings["listener.security.protocol.map"] = protocols
        return broker_config(all_settings)
    except ConfigError as error:
        raise BrokerError(str(error)) from error


def _protect(settings: Mapping[str, str], folder: "SecureFolder") -> dict[str, str]:
    from kwire.secure.settings import node_settings

    return node_settings(settings, folder.passwords, folder.server, folder.authority)
