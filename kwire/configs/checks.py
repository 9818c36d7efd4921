"""Checks of a node's settings together, and of settings for features that kwire lacks.

A file that asks for protection must never result in an open broker: encryption, authentication,
policies and authorizers that kwire does not have are errors, not warnings.
"""

from collections.abc import Iterable, Iterator, Mapping
from typing import Final

from kwire.configs.authorizer import authorizer_key, check_authorizer
from kwire.configs.broker import BrokerConfig, all_broker_keys, broker_key
from kwire.configs.declare import ConfigError, Kind
from kwire.configs.listeners import has_sasl, has_tls
from kwire.configs.remedies import REQUIRED
from kwire.configs.share import LIMITED
from kwire.configs.telemetry import check_telemetry

_PROTECTIVE: Final = frozenset(
    {
        "alter.config.policy.class.name",
        "client.quota.callback.class",
        "create.topic.policy.class.name",
        "principal.builder.class",
        "security.providers",
    }
)


_OPEN: Final = "and let only networks that you trust reach the node"
_LISTENERS_OWN: Final = "listener.name."
"""The prefix of the settings of one listener, which precedes the listener's name."""
_LOGIN: Final = frozenset(
    {
        "sasl.enabled.mechanisms",
        "sasl.mechanism.controller.protocol",
        "sasl.mechanism.inter.broker.protocol",
        "sasl.server.max.receive.size",
    }
)
"""Settings of listeners whose clients must log in."""
_STORES: Final = ("ssl.keystore.", "ssl.truststore.")
CERTIFICATES: Final = ("ssl.keystore.certificate.chain", "ssl.truststore.certificates")
"""Settings that Kafka never shows, although they are public."""
_CONNECTIONS: Final = frozenset({"max.connections", "max.connection.creation.rate"})
"""Limits that would keep everybody out if they were 0."""
LISTENERS: Final = frozenset({"listener.security.protocol.map", "listeners"})
"""Settings that decide on the listeners of one broker."""
_THREADS: Final = frozenset(
    {
        "background.threads",
        "log.cleaner.threads",
        "num.io.threads",
        "num.network.threads",
        "num.recovery.threads.per.data.dir",
        "num.replica.fetchers",
    }
)
_PROVIDERS: Final = "config.providers."
"""The prefix of the classes and parameters of config providers."""
_JAAS: Final = "sasl.jaas.config"
_HANDLER: Final = ".callback.handler.class"
_TOKENS: Final = "oauthbearer."
"""The prefix of the settings of a listener's mechanism OAUTHBEARER."""


def check_protection(properties: Mapping[str, str]) -> None:
    """Reject settings that ask for protection that kwire lacks."""
    for name, text in properties.items():
        plain = without_listener(name)
        check_case(name)
        if plain not in _PROTECTIVE and "ssl." not in plain and "sasl." not in plain:
            continue
        if is_for_login(name):
            continue
        key = broker_key(plain)
        is_misplaced = plain.endswith(_HANDLER)
        if key is None or is_misplaced or (not key.effective and key.parse(text) != key.default):
            raise ConfigError(
                f"{name} asks for protection that kwire does not have yet; remove it, {_OPEN}"
            )


def check_case(name: str) -> None:
    """Reject a listener's setting that would have no effect, because it is not in lower case.

    Apache Kafka ignores such a setting, so that the listener lacks the protection.
    """
    if not name.startswith(_LISTENERS_OWN) or not ("ssl." in name or "sasl." in name):
        return
    listener, _, rest = name.removeprefix(_LISTENERS_OWN).partition(".")
    lower = f"{_LISTENERS_OWN}{listener.lower()}.{rest}"
    _require(name == lower, f"{name} names its listener in capitals; write {lower}")


def without_listener(name: str) -> str:
    """Return the name of a setting without the listener that it concerns, if it names one.

    The mechanism ``oauthbearer`` is removed too, unless it belongs to the plain name.
    """
    if not name.startswith(_LISTENERS_OWN):
        return name
    plain = name.split(".", 3)[-1]
    is_jaas = plain.endswith(_JAAS)
    return plain if is_jaas else plain.removeprefix(_TOKENS)


def is_for_login(name: str) -> bool:
    """Return whether a setting concerns authentication, on one listener or on all of them."""
    plain = without_listener(name)
    is_jaas = plain.endswith(f".{_JAAS}") and plain != name
    return is_jaas or plain in _LOGIN or _is_for_tokens(name, plain)


def is_of_logins(name: str) -> bool:
    """Return whether a setting concerns authentication, and so cannot change while a node runs.

    Apache Kafka accepts changes of some of these settings, but the changes have no effect, not even
    after a restart. Settings for Kerberos have no effect in kwire, so they can change as in Kafka.
    """
    if "sasl.kerberos." in name:
        return False
    return "sasl." in name or name.endswith("connections.max.reauth.ms")


def is_for_store(name: str) -> bool:
    """Return whether a setting names a key store or a trust store for all listeners."""
    return name.startswith(_STORES) or name == "ssl.key.password"


def is_secret(name: str) -> bool:
    """Return whether a setting has a value that others must not see, such as a password."""
    plain = without_listener(name)
    key = broker_key(plain)
    is_hidden = key is not None and key.sensitive and plain not in CERTIFICATES
    return is_hidden or plain.endswith(_JAAS)


def secrets_warnings(names: Iterable[str]) -> Iterator[str]:
    """Yield a warning if settings of a command line are secrets."""
    if secrets := sorted(filter(is_secret, names)):
        yield (
            f"secrets on the command line names={','.join(secrets)}; every user of this machine "
            "can see them there: move them to server.properties"
        )


def _is_for_tokens(name: str, plain: str) -> bool:
    """Return whether a setting concerns OAUTHBEARER and has an effect.

    As in Kafka, the classes of handlers have an effect only for one listener's mechanism.
    """
    if "sasl.login." not in plain and "sasl.oauthbearer." not in plain and "handler" not in plain:
        return False
    from kwire.configs.oauth import OAuthConfig

    is_own = f".{_TOKENS}sasl." in name
    names = OAuthConfig.keys()
    return plain in names and (is_own or not plain.endswith(_HANDLER))


def check_values(properties: Mapping[str, str]) -> None:
    """Reject invalid values, even of settings without effect, as Kafka does."""
    for name, text in properties.items():
        _require("\0" not in text, f"{name} contains the character NUL; remove \\u0000 from it")
        key = broker_key(without_listener(name)) or authorizer_key(name)
        if key is not None:
            key.parse(text)


def warnings(properties: Mapping[str, str]) -> Iterator[str]:
    """Yield warnings about properties that do not keep the node from starting."""
    for name, text in properties.items():
        plain = without_listener(name)
        key = broker_key(plain if plain.startswith("ssl.") else name) or authorizer_key(name)
        if key is None and name.startswith(_LISTENERS_OWN):
            key = broker_key(plain)
            if key is not None or is_for_login(name):
                continue
        if key is None and name.startswith(_PROVIDERS):
            continue
        if key is None:
            nearest = nearest_name(name)
            hint = "" if nearest is None else f" nearest={nearest}"
            yield f"unknown setting ignored name={name}{hint}"
        elif key.kind is Kind.LIST and not key.repeats:
            count = len(text.split(",")) if text.strip() else 0
            value = key.parse(text)
            if isinstance(value, tuple) and len(value) < count:
                yield f"duplicate values removed name={name} value={key.text(value)}"


def nearest_name(name: str) -> str | None:
    """Return the setting with the most similar name; None if none is similar."""
    import difflib

    names = all_broker_keys()
    return next(iter(difflib.get_close_matches(name, sorted(names), n=1, cutoff=0.8)), None)


def check_node(config: BrokerConfig) -> None:
    """Reject combinations that cannot work."""
    _check_roles(config)
    _check_listeners(config)
    _check_logins(config)
    check_authorizer(config)
    _check_tls(config)
    _check_quorum(config)
    _check_log(config)
    _check_times(config)
    check_telemetry(config)


def _require(holds: bool, why: str) -> None:
    if not holds:
        raise ConfigError(why)


def _check_roles(config: BrokerConfig) -> None:
    roles = config.process_roles
    _require_given("process.roles", bool(roles))
    _require_given("node.id", config.node_id >= 0)
    if config.is_set("broker.id") and config.broker_id >= 0:
        _require(
            config.broker_id == config.node_id,
            "node.id and broker.id must be the same; remove broker.id, the older name",
        )


def _require_given(name: str, holds: bool) -> None:
    """Reject the settings if a setting without a default is missing."""
    _require(holds, f"Missing required configuration {name}; {REQUIRED[name]}")


def _check_listeners(config: BrokerConfig) -> None:
    protocols = config.protocols
    controllers = [name.upper() for name in config.controller_listener_names]
    _require_given("controller.listener.names", bool(controllers))
    for name in controllers:
        _require(
            protocols.get(name) is not None,
            f"controller.listener.names: {name} is not in listener.security.protocol.map; "
            f"add {name}:PLAINTEXT to it",
        )
    _check_controller_listeners(config)
    if config.is_broker:
        _check_broker_listeners(config)
    elif others := {endpoint.name for endpoint in config.broker_endpoints}:
        raise ConfigError(
            "listeners of a controller must all be in controller.listener.names; remove "
            f"{_join(others)} from listeners, or add broker to process.roles"
        )


def _check_logins(config: BrokerConfig) -> None:
    """Reject incomplete settings for authentication, and those of listeners without SASL."""
    protocols, static = config.protocols, config.static
    own = [endpoint.name for endpoint in config.endpoints if has_sasl(endpoint.protocol)]
    controllers = [name.upper() for name in config.controller_listener_names]
    listeners = {*own, *(name for name in controllers if has_sasl(protocols[name]))}
    in_cluster = listeners | _listeners_of_brokers(config)
    if listeners:
        from kwire.configs.sasl import (
            broker_account,
            check_controller_mechanism,
            controller_account,
            mechanisms_of,
        )

        if controllers[0] in listeners:
            controller_account(static, controllers[0])
        if controllers[0] in own:
            check_controller_mechanism(static, controllers[0])
        if config.is_broker and config.inter_broker_listener in listeners:
            broker_account(static, config.inter_broker_listener)
        for listener in own:
            mechanisms_of(static, listener)
    for name, text in static.items():
        key = broker_key(without_listener(name))
        if not is_for_login(name) or (key is not None and key.parse(text) == key.default):
            continue
        listener = name.removeprefix(_LISTENERS_OWN).split(".")[0].upper()
        _require(
            listener in in_cluster if name.startswith(_LISTENERS_OWN) else bool(in_cluster),
            f"{name} is for clients that log in, but no such listener has SASL; map one to "
            f"SASL_PLAINTEXT in listener.security.protocol.map, or remove it, {_OPEN}",
        )


def _listeners_of_brokers(config: BrokerConfig) -> set[str]:
    """Return the listeners with SASL that only other nodes open, if the node serves no clients.

    All nodes of a cluster may share the settings of listeners. The default map names listeners that
    no node has, so only a map in the file counts.
    """
    if config.is_broker or not config.is_set("listener.security.protocol.map"):
        return set()
    return {name for name, protocol in config.protocols.items() if has_sasl(protocol)}


def _check_tls(config: BrokerConfig) -> None:
    """Reject TLS listeners that could not serve, and settings of listeners that do not exist."""
    for name in config.static:
        listener = name.split(".")[2].upper() if name.startswith("listener.name.") else ""
        _require(
            not listener or "ssl." not in name or listener in config.protocols,
            f"{name} is for the listener {listener}, which listener.security.protocol.map lacks; "
            f"correct the name, or add {listener}:SSL to the map",
        )
    endpoints = [endpoint for endpoint in config.endpoints if has_tls(endpoint.protocol)]
    if not endpoints:
        return
    from kwire.configs.listener_tls import listener_tls

    for endpoint in endpoints:
        _require(
            listener_tls(config, endpoint.name).has_keystore,
            f"listener {endpoint.name} asks for {endpoint.protocol} and has no certificate; set "
            "ssl.keystore.type=PEM and ssl.keystore.location to a file with the private key and "
            "its certificates",
        )


def _check_controller_listeners(config: BrokerConfig) -> None:
    own = {endpoint.name for endpoint in config.controller_endpoints}
    unheard = {name.upper() for name in config.controller_listener_names} - own
    if config.is_controller:
        _require(
            not unheard,
            f"controller.listener.names names {_join(unheard)}, which listeners lacks; "
            f"add {min(unheard, default='')}://HOST:PORT to listeners",
        )
    elif own:
        raise ConfigError(
            "listeners of a broker must not be in controller.listener.names; remove "
            f"{_join(own)} from listeners, or add controller to process.roles"
        )


def _check_broker_listeners(config: BrokerConfig) -> None:
    own = {endpoint.name for endpoint in config.broker_endpoints}
    controllers = {name.upper() for name in config.controller_listener_names}
    advertised = [e for e in config.advertised_endpoints if e.name not in controllers]
    names = {endpoint.name for endpoint in advertised}
    _require(
        bool(own),
        "listeners has none for clients: all are in controller.listener.names; "
        "add PLAINTEXT://HOST:PORT to listeners",
    )
    _require(
        names <= own,
        f"advertised.listeners names {_join(names - own)}, which listeners lacks; "
        f"it may name {_join(own)}",
    )
    _require(
        bool(names),
        "advertised.listeners has none for clients: all are in controller.listener.names; "
        f"add {min(own)}://HOST:PORT to it",
    )
    _require(
        config.inter_broker_listener in names,
        f"inter.broker.listener.name {config.inter_broker_listener} is not one of "
        f"advertised.listeners; name one of these: {_join(names)}",
    )
    _require(
        config.inter_broker_listener_name != "",
        f"inter.broker.listener.name is empty; name one of {_join(names)}, or leave it out",
    )
    both = ("inter.broker.listener.name", "security.inter.broker.protocol")
    _require(
        not all(map(config.is_set, both)), f"Only one of {_join(both)} should be set; remove one"
    )
    for endpoint in advertised:
        _require(
            not (config.advertised_listeners or config.listeners) or endpoint.host != "0.0.0.0",
            "advertised.listeners cannot use the address 0.0.0.0, nor listeners without it; "
            f"give one that can be reached, as advertised.listeners={endpoint.name}://HOST:PORT",
        )


def _check_quorum(config: BrokerConfig) -> None:
    voters, servers = config.voters, config.bootstrap_servers
    _require(
        bool(voters or servers),
        "either controller.quorum.voters or controller.quorum.bootstrap.servers must be set; "
        "list the controllers of the cluster as controller.quorum.bootstrap.servers=HOST:PORT,…",
    )
    if voters and config.is_controller:
        _require(
            config.node_id in voters,
            f"controller.quorum.voters must include this controller, node.id {config.node_id}; "
            f"add {config.node_id}@HOST:PORT to it",
        )
    _require(
        config.is_controller or not config.controller_quorum_auto_join_enable,
        "controller.quorum.auto.join.enable is for controllers, and process.roles names none; "
        "remove one, or add controller to the other",
    )
    if voters and not config.is_controller:
        _require(
            config.node_id not in voters,
            f"controller.quorum.voters must not include node.id {config.node_id}, a mere broker; "
            "remove it there, or add controller to process.roles",
        )


def check_changed(config: BrokerConfig, names: Iterable[str]) -> None:
    """Reject a run-time change of ``names`` that would stop the node or lock out clients."""
    names = list(names)
    _check_ages(config)
    if any(name.startswith("group.") for name in names):
        _check_times(config)
    if any(name.startswith("log.cleaner.") for name in names):
        _check_cleaner(config)
    for name in names:
        plain, text = without_listener(name), config.own.get(name) or config.cluster.get(name)
        if text is not None and (plain in _PROTECTIVE or "ssl." in plain):
            check_protection({name: text})
        if plain in _CONNECTIONS:
            _require(text is None or int(text) >= 1, f"{name} must be at least 1")
    _check_per_address(config)


def check_own_change(current: BrokerConfig, changed: BrokerConfig, names: Iterable[str]) -> None:
    """Reject a run-time change of ``names`` that only the broker itself can judge.

    The bounds are Kafka's: a number of threads can at most be doubled or halved at a time.
    """
    if not LISTENERS.isdisjoint(names):
        check_listener_change(current, changed)
    for name in sorted(_THREADS.intersection(names)):
        before, after = current.raw_integer(name), changed.raw_integer(name)
        failure = f"Dynamic thread count update validation failed for {name}={after}, value should"
        _require(
            after <= 2 * before, f"{failure} not be greater than double the current value {before}"
        )
        _require(after >= before // 2, f"{failure} be at least half the current value {before}")


def check_listener_change(current: BrokerConfig, changed: BrokerConfig) -> None:
    """Reject other listeners that the broker could not have, or not at run time."""
    protocols = {endpoint.name: endpoint.protocol for endpoint in current.endpoints}
    for endpoint in changed.endpoints:
        _require(
            protocols.get(endpoint.name, endpoint.protocol) == endpoint.protocol,
            f"Security protocol cannot be updated for existing listener {endpoint.name}",
        )
    _check_listeners(changed)


def _check_per_address(config: BrokerConfig) -> None:
    _require(
        config.max_connections_per_ip > 0 or bool(config.max_connections_per_ip_overrides),
        "max.connections.per.ip can be zero only with max.connections.per.ip.overrides",
    )


def _check_ages(config: BrokerConfig) -> None:
    _require(config.log_retention_time_ms != 0, "log.retention.ms must be -1 (never) or at least 1")
    _require(config.log_roll_time_ms >= 1, "log.roll.ms must be at least 1")
    _require(config.log_roll_jitter_time_ms >= 0, "log.roll.jitter.ms must be at least 0")


def _check_cleaner(config: BrokerConfig) -> None:
    _require(
        config.log_cleaner_dedupe_buffer_size // max(config.log_cleaner_threads, 1) > 1 << 20,
        "log.cleaner.dedupe.buffer.size must be at least 1MB per cleaner thread",
    )


def _check_log(config: BrokerConfig) -> None:
    _check_ages(config)
    _check_cleaner(config)
    queued = config.queued_max_request_bytes
    _require(
        queued <= 0 or queued >= config.socket_request_max_bytes,
        "queued.max.request.bytes must be at least socket.request.max.bytes",
    )


def _check_times(config: BrokerConfig) -> None:
    _require(
        config.replica_fetch_wait_max_ms <= config.replica_lag_time_max_ms,
        "replica.fetch.wait.max.ms must not be above replica.lag.time.max.ms",
    )
    _require(
        config.group_min_session_timeout_ms <= config.group_max_session_timeout_ms,
        "group.min.session.timeout.ms must not be above group.max.session.timeout.ms",
    )
    for kind in ("consumer", "share", "streams"):
        _check_groups(config, kind)
    _check_share_partitions(config)
    _require(
        config.group_streams_num_standby_replicas <= config.group_streams_max_standby_replicas,
        "group.streams.num.standby.replicas must not be above group.streams.max.standby.replicas",
    )
    _check_per_address(config)


def _check_share_partitions(config: BrokerConfig) -> None:
    """Reject limits of share partitions that are outside their configured bounds."""
    for name in LIMITED:
        value, low, high = (
            getattr(config, f"group.share.{prefix}{name}".replace(".", "_"))
            for prefix in ("", "min.", "max.")
        )
        _require(
            low <= value <= high,
            f"group.share.{name} must be between group.share.min.{name} and group.share.max.{name}",
        )


def _check_groups(config: BrokerConfig, kind: str) -> None:
    """Reject intervals of one type of group that are outside their configured bounds."""
    group = f"group.{kind}"

    def value(name: str) -> int:
        setting: int = getattr(config, f"{group}.{name}".replace(".", "_"))
        return setting

    for name in ("session.timeout.ms", "heartbeat.interval.ms", "assignment.interval.ms"):
        _require(
            value(f"min.{name}") <= value(name) <= value(f"max.{name}"),
            f"{group}.{name} must be between {group}.min.{name} and {group}.max.{name}",
        )
    _require(
        value("heartbeat.interval.ms") < value("session.timeout.ms"),
        f"{group}.heartbeat.interval.ms must be below {group}.session.timeout.ms",
    )


def _join(names: Iterable[str]) -> str:
    return ", ".join(sorted(names))
