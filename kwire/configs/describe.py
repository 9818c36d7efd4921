"""The answers of DescribeConfigs: settings with their values, sources and synonyms.

A setting's source is that of its first synonym: its own override, then the run-time settings for
this broker and for all brokers, then the file, then the table's default. Kafka drops the synonyms
before the first one with the setting's own name, so a file's ``log.retention.hours`` is not listed
under ``log.retention.ms``; kwire does the same.
"""

from collections.abc import Iterable, Iterator, Mapping
from functools import lru_cache
from itertools import dropwhile
from typing import Final, NamedTuple

import attrs

from kwire.configs.broker import BrokerConfig, all_broker_keys, family
from kwire.configs.client_metrics import ClientMetricsConfig
from kwire.configs.declare import Key, Scope
from kwire.configs.group import GroupConfig
from kwire.configs.topic import SYNONYMS, TopicConfig

TOPIC_SOURCE: Final = 1
DYNAMIC_BROKER: Final = 2
DYNAMIC_DEFAULT: Final = 3
STATIC_BROKER: Final = 4
DEFAULT: Final = 5
CLIENT_METRICS_SOURCE: Final = 7
GROUP_SOURCE: Final = 8
UNKNOWN_KIND: Final = 0


class Synonym(NamedTuple):
    """One source of a setting's value."""

    name: str
    value: str | None
    source: int


@attrs.frozen(kw_only=True, repr=False)
class Entry:
    """One setting as DescribeConfigs shows it."""

    name: str
    value: str | None
    source: int
    read_only: bool = False
    sensitive: bool = False
    synonyms: tuple[Synonym, ...] = ()
    kind: int = UNKNOWN_KIND
    doc: str | None = None


def describe_topic(overrides: Mapping[str, str], broker: BrokerConfig) -> list[Entry]:
    """Return a topic's settings, sorted by name."""
    return _override(_inherit(broker), overrides, broker)


@lru_cache(maxsize=4)
def _inherit(broker: BrokerConfig) -> tuple[Entry, ...]:
    """Return a topic's inherited settings; thousands of topics share the result."""
    config = TopicConfig({}, broker)
    entries = []
    for name, key in sorted(TopicConfig.keys().items()):
        if key.internal:
            continue
        server = SYNONYMS.get(name)
        synonyms = [] if server is None else _broker_synonyms(server, broker, sensitive=False)
        entries.append(_entry(key, key.text(config.value(key)), synonyms))
    return tuple(entries)


def _override(
    inherited: tuple[Entry, ...], overrides: Mapping[str, str], broker: BrokerConfig
) -> list[Entry]:
    """Return the inherited settings, overridden by a topic's own, sorted by name.

    Settings that only earlier releases had are left out, as in Apache Kafka.
    """
    if not overrides:
        return list(inherited)
    entries = {entry.name: entry for entry in inherited}
    config, keys = TopicConfig(overrides, broker, stored=True), TopicConfig.keys()
    for name in overrides.keys() & keys.keys():
        key = keys[name]
        value = key.text(config.value(key))
        behind = entries[name].synonyms if name in entries else ()
        entries[name] = _entry(key, value, [Synonym(name, value, TOPIC_SOURCE), *behind])
    return [entry for _, entry in sorted(entries.items())]


def describe_broker(broker: BrokerConfig) -> list[Entry]:
    """Return this node's settings, sorted by name, followed by those that no table has."""
    keys = all_broker_keys()
    set_names = broker.static.keys() | broker.cluster.keys() | broker.own.keys()
    entries = []
    for name, key in keys.items():
        if key.internal and name not in set_names:
            continue
        value = key.text(_value(broker, name, key))
        synonyms = _broker_synonyms(name, broker, sensitive=key.sensitive)
        shown = _entry(key, None if key.sensitive else value, synonyms)
        entries.append(attrs.evolve(shown, read_only=key.scope is Scope.READ_ONLY))
    return entries + [_set_entry(name, broker) for name in sorted(set_names - keys.keys())]


def describe_broker_default(broker: BrokerConfig) -> list[Entry]:
    """Return the settings that were set at run time for all brokers."""
    entries = []
    for name, text in sorted(broker.cluster.items()):
        entry = _set_entry(name, broker)
        synonyms = tuple(s for s in entry.synonyms if s.source == DYNAMIC_DEFAULT)
        value = None if entry.sensitive else text
        entries.append(attrs.evolve(entry, value=value, source=DYNAMIC_DEFAULT, synonyms=synonyms))
    return entries


def _set_entry(name: str, broker: BrokerConfig) -> Entry:
    """Return a setting whose value somebody has set, even if no table has its name.

    A setting of one listener has the type of the setting for all listeners. The value of a setting
    without a type is hidden, because it may be a secret of a plugin. As in Kafka, only settings
    that are in a table count as changeable, although those of a listener can be changed too.
    """
    keys = all_broker_keys()
    own, general = keys.get(name), keys.get(_synonyms_of(name)[-1])
    typed = own or general
    sensitive = typed is None or typed.sensitive
    synonyms = _broker_synonyms(name, broker, sensitive=sensitive)
    return Entry(
        name=name,
        value=synonyms[0].value,
        source=synonyms[0].source,
        read_only=own is None or own.scope is Scope.READ_ONLY,
        sensitive=sensitive,
        synonyms=tuple(synonyms),
        kind=UNKNOWN_KIND if typed is None else typed.kind,
        doc=None if own is None else own.doc,
    )


def describe_group(overrides: Mapping[str, str], broker: BrokerConfig) -> list[Entry]:
    """Return a group's settings; unset ones come from the broker's ``group.`` settings."""
    config = GroupConfig(overrides)
    entries = []
    for name, key in sorted(GroupConfig.keys().items()):
        server = f"group.{name}" if f"group.{name}" in all_broker_keys() else None
        is_override = name in overrides
        raw = config.value(key) if is_override or server is None else broker.raw(server)
        value = key.text(raw)
        synonyms = [Synonym(name, value, GROUP_SOURCE)] if is_override else []
        if server is not None:
            synonyms += _broker_synonyms(server, broker, sensitive=False)
        else:
            synonyms.append(Synonym(name, key.text(key.default), DEFAULT))
        entries.append(_entry(key, value, synonyms))
    return entries


def describe_client_metrics(overrides: Mapping[str, str]) -> list[Entry]:
    """Return a client-metrics subscription's settings."""
    config = ClientMetricsConfig(overrides)
    entries = []
    for name, key in sorted(ClientMetricsConfig.keys().items()):
        value = key.text(config.value(key))
        is_override = name in overrides
        synonyms = [Synonym(name, value, CLIENT_METRICS_SOURCE)] if is_override else []
        entries.append(_entry(key, value, synonyms))
    return entries


def describe_new_topic(overrides: Mapping[str, str], broker: BrokerConfig) -> list[Entry]:
    """Return the settings in a CreateTopics response, whose source may be a synonym in any unit."""
    return _override(_inherit_new(broker), overrides, broker)


@lru_cache(maxsize=4)
def _inherit_new(broker: BrokerConfig) -> tuple[Entry, ...]:
    return tuple(
        attrs.evolve(entry, source=_first_source(SYNONYMS[entry.name], broker))
        if entry.name in SYNONYMS
        else entry
        for entry in _inherit(broker)
    )


def _first_source(name: str, broker: BrokerConfig) -> int:
    for texts, source in (
        (broker.own, DYNAMIC_BROKER),
        (broker.cluster, DYNAMIC_DEFAULT),
        (broker.static, STATIC_BROKER),
    ):
        if any(other in texts for other in family(name)):
            return source
    return DEFAULT


def _entry(key: Key[object], value: str | None, synonyms: list[Synonym]) -> Entry:
    return Entry(
        name=key.name,
        value=value,
        source=synonyms[0].source if synonyms else DEFAULT,
        sensitive=key.sensitive,
        synonyms=tuple(synonyms),
        kind=key.kind,
        doc=key.doc,
    )


def _value(broker: BrokerConfig, name: str, key: Key[object]) -> object:
    own_key = BrokerConfig.keys().get(name)
    return broker.raw(name) if own_key is None else broker.value(own_key)


_OF_MECHANISMS: Final = (
    "sasl.jaas.config",
    "sasl.login.callback.handler.class",
    "sasl.login.class",
    "sasl.server.callback.handler.class",
    "connections.max.reauth.ms",
)
"""Settings whose names can have a listener and a SASL mechanism in front."""


def _synonyms_of(name: str) -> tuple[str, ...]:
    """Return a broker setting's name and the names of the settings that count in its place."""
    if not name.startswith("listener.name.") or name.count(".") < 3:
        return family(name)
    plain = name.split(".", 3)[-1]
    return name, next((other for other in _OF_MECHANISMS if plain.endswith(other)), plain)


def _broker_synonyms(name: str, broker: BrokerConfig, *, sensitive: bool) -> list[Synonym]:
    names = _synonyms_of(name)
    static = dict(broker.static)
    if "node.id" in static:
        static["broker.id"] = static["node.id"]
    synonyms: Iterator[Synonym] = (
        Synonym(other, None if sensitive else texts[other], source)
        for texts, source in (
            (broker.own, DYNAMIC_BROKER),
            (broker.cluster, DYNAMIC_DEFAULT),
            (static, STATIC_BROKER),
            (_defaults(names), DEFAULT),
        )
        for other in names
        if other in texts
    )
    return list(dropwhile(lambda synonym: synonym.name != name, synonyms))


_NO_DEFAULT: Final = frozenset({"node.id", "process.roles", "controller.listener.names"})


def _defaults(names: Iterable[str]) -> dict[str, str]:
    keys = all_broker_keys()
    shown = [name for name in names if name in keys and name not in _NO_DEFAULT]
    texts = {name: keys[name].text(keys[name].default) for name in shown}
    return {name: text for name, text in texts.items() if text is not None}
