"""The brokers of one machine: `kwire format --processes N` and `kwire serve --processes N`.

A broker uses one core, so a machine runs several. Rules: one file describes the machine. The first
broker is the node of that file. The others are brokers only; their ids and ports are the next ones.
All have the same rack, so that the replicas of a partition are on different machines. Each data
directory in the file has a folder ``node-ID`` for each broker.
"""

import socket
from collections.abc import Mapping, Sequence

from kwire.configs.declare import ConfigError

Settings = Mapping[str, str]
_DIRECTORIES = ("log.dirs", "metadata.log.dir")
_PORTS_END = 65536


def this_machine(settings: Settings, count: int) -> list[dict[str, str]]:
    """Return what each broker overrides on this machine; raise like :func:`node_overrides`."""
    return node_overrides(settings, count, socket.gethostname())


def node_overrides(settings: Settings, count: int, host_name: str) -> list[dict[str, str]]:
    """Return what each broker overrides in the settings of the machine's file.

    ``host_name`` is the rack unless the file has another. Raises ConfigError if the file does not
    describe ``count`` brokers.
    """
    first_id = _first_id(settings)
    controllers = _names(settings.get("controller.listener.names", ""))
    listeners = settings.get("listeners", "")
    if not _names(settings.get("log.dirs", "")):
        raise ConfigError("log.dirs: name the directories in which each broker has its folder")
    if not _names(settings.get("process.roles", "")) & {"BROKER"}:
        raise ConfigError("process.roles: a machine of several brokers has the role broker")
    result = []
    for place in range(count):
        own = {"node.id": str(first_id + place), "listeners": listeners}
        if place:
            own["process.roles"] = "broker"
            own["listeners"] = _shift(listeners, place, without=controllers)
        if advertised := settings.get("advertised.listeners"):
            leave_out = controllers if place else frozenset()
            own["advertised.listeners"] = _shift(advertised, place, without=leave_out)
        for name in _DIRECTORIES:
            if name in settings:
                own[name] = ",".join(
                    f"{directory}/node-{first_id + place}" for directory in _split(settings[name])
                )
        own["broker.rack"] = settings.get("broker.rack") or host_name
        result.append(own)
    _check_ports([own["listeners"] for own in result])
    return result


def _first_id(settings: Settings) -> int:
    text = settings.get("node.id", "")
    if not (text.isascii() and text.isdigit()):
        raise ConfigError("node.id: set the id of the machine's first broker")
    return int(text)


def _split(text: str) -> list[str]:
    return [word.strip() for word in text.split(",") if word.strip()]


def _names(text: str) -> frozenset[str]:
    return frozenset(name.upper() for name in _split(text))


def _shift(listeners: str, places: int, without: frozenset[str]) -> str:
    """Return the listeners on higher ports, except those in ``without``; port 0 stays 0."""
    result = []
    for listener in _split(listeners):
        address, _, text = listener.rpartition(":")
        if address.partition("://")[0].upper() in without:
            continue
        if not text.isdigit():
            raise ConfigError(f"listeners: {listener} has no port")
        port = int(text) + places if int(text) else 0
        if port >= _PORTS_END:
            raise ConfigError(f"listeners: {listener}: broker {places + 1} has no port left")
        result.append(f"{address}:{port}")
    return ",".join(result)


def _check_ports(listeners_by_place: Sequence[str]) -> None:
    owners: dict[str, str] = {}
    for place, listeners in enumerate(listeners_by_place, 1):
        for listener in _split(listeners):
            name, _, address = listener.partition("://")
            if address in owners and not address.endswith(":0"):
                raise ConfigError(
                    f"listeners: {name} of broker {place} would listen on {address}, as "
                    f"{owners[address]} does; leave {len(listeners_by_place)} ports for each "
                    "client listener, from its own port up"
                )
            owners[address] = f"{name} of broker {place}"
