"""Settings changed at run time: of topics, brokers, groups, client-metrics subscriptions.

Rules: the new settings of a resource are validated together and written all or not at all; an
error fails only its own resource; a resource that a request names twice is rejected. Passwords and
private keys are rejected, because metadata are not encrypted.
"""

import re
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from typing import Final, TypeVar

import attrs

from kwire import errors
from kwire.codec.messages import metadata_records as r
from kwire.codec.messages.alter_configs import AlterConfigsRequest, AlterConfigsResponse
from kwire.codec.messages.incremental_alter_configs import (
    IncrementalAlterConfigsRequest,
    IncrementalAlterConfigsResponse,
)
from kwire.configs.broker import BrokerConfig, all_broker_keys
from kwire.configs.checks import (
    CERTIFICATES,
    check_case,
    check_changed,
    is_for_store,
    is_of_logins,
    without_listener,
)
from kwire.configs.client_metrics import ClientMetricsConfig, check_client_metrics
from kwire.configs.declare import Config, ConfigError, Key, Kind, Scope
from kwire.configs.group import GroupConfig, check_group_config
from kwire.configs.resource_types import BROKER, CLIENT_METRICS, GROUP, TOPIC
from kwire.configs.topic import TopicConfig, check_topic_config, outdated_settings
from kwire.errors import KafkaError
from kwire.raftmeta.controller.state import (
    ControllerDecision,
    ControllerState,
    Outcome,
    check_bound,
    clear_elr,
    outcome,
)
from kwire.raftmeta.metadata.image import MetadataImage
from kwire.raftmeta.metadata.image_loader import Steps
from kwire.raftmeta.metadata.topic_names import check_topic_name

SET: Final = 0
DELETE: Final = 1
APPEND: Final = 2
SUBTRACT: Final = 3

VALUE_MAX: Final = 32767
"""The largest number of characters in a setting's value."""
_NODE_ID_MAX: Final = (1 << 31) - 1
_NODE_ID: Final = re.compile(r"[0-9]{1,10}")
"""The longest ids; Python refuses to read a number of thousands of digits."""

Answer = TypeVar("Answer")
"""The part of a response about one resource."""
Resource = tuple[int, str]
Operation = tuple[str, int, str | None]
"""A setting's name, the kind of operation, and the operand."""


@attrs.frozen(repr=False)
class ConfigAlteration:
    """The change to one resource that a request asks for."""

    resource: Resource
    names: Sequence[str]
    """The settings that the request names."""
    change: Callable[[dict[str, str]], dict[str, str]]
    """Maps the resource's current settings to its new ones."""


def incremental_alteration(
    item: IncrementalAlterConfigsRequest.AlterConfigsResource,
) -> ConfigAlteration:
    """Return the change that sets, deletes, appends to and subtracts from settings."""
    resource = (item.resource_type, item.resource_name)
    operations = [(c.name, c.config_operation, c.value) for c in item.configs]
    change = partial(operate, operations=operations, resource=resource)
    return ConfigAlteration(resource, [name for name, _, _ in operations], change)


def full_alteration(item: AlterConfigsRequest.AlterConfigsResource) -> ConfigAlteration:
    """Return the change that replaces all settings of a resource."""
    operations = [(config.name, SET, config.value) for config in item.configs]
    resource = (item.resource_type, item.resource_name)
    change = partial(_replace, operations=operations)
    return ConfigAlteration(resource, [name for name, _, _ in operations], change)


def decide_incremental_alter(
    state: ControllerState, request: IncrementalAlterConfigsRequest
) -> Steps[ControllerDecision[IncrementalAlterConfigsResponse]]:
    """Set, delete, append to and subtract from settings."""
    alterations = []
    for item in request.resources:
        alterations.append(incremental_alteration(item))
        yield
    shape = IncrementalAlterConfigsResponse.AlterConfigsResourceResponse
    responses, records = yield from _alter_all(state, alterations, shape)
    reply = IncrementalAlterConfigsResponse(responses=responses)
    return ControllerDecision(() if request.validate_only else records, reply)


def decide_alter(
    state: ControllerState, request: AlterConfigsRequest
) -> Steps[ControllerDecision[AlterConfigsResponse]]:
    """Replace all settings of a resource; settings not named return to their defaults."""
    alterations = []
    for item in request.resources:
        alterations.append(full_alteration(item))
        yield
    shape = AlterConfigsResponse.AlterConfigsResourceResponse
    responses, records = yield from _alter_all(state, alterations, shape)
    reply = AlterConfigsResponse(responses=responses)
    return ControllerDecision(() if request.validate_only else records, reply)


def _alter_all(
    state: ControllerState, alterations: Sequence[ConfigAlteration], shape: Callable[..., Answer]
) -> Steps[tuple[list[Answer], tuple[r.MetadataRecord, ...]]]:
    """Return the result for each resource, and the records of the accepted changes."""
    counts = Counter(alteration.resource for alteration in alterations)
    config_records: list[r.ConfigRecord] = []
    answers = []
    for each in alterations:
        result = _alter(state, each, counts[each.resource] > 1, config_records)
        answers.append(
            shape(
                error_code=result.code,
                error_message=result.text,
                resource_type=each.resource[0],
                resource_name=each.resource[1],
            )
        )
        yield
    check_bound(config_records)
    cleared = yield from clear_elr(state, config_records)
    return answers, (*config_records, *cleared)


def _alter(
    state: ControllerState,
    alteration: ConfigAlteration,
    is_duplicate: bool,
    records: list[r.ConfigRecord],
) -> Outcome:
    """Validate one resource's new settings as a whole, and append the records of the change.

    Broker settings that the request names are written even if unchanged, so that brokers reread the
    files to which the settings refer.
    """
    resource, requested_names = alteration.resource, alteration.names
    try:
        if is_duplicate:
            raise errors.InvalidRequest("Each resource must appear at most once.")
        _check_kind(resource[0])
        current = dict(state.image.config(*resource))
        settings = alteration.change(dict(current))
        _check_safety(state, resource, requested_names, settings)
        _check(state, alteration, current, settings)
    except ConfigError as error:
        return Outcome(errors.InvalidConfig.code, str(error))
    except KafkaError as error:
        return outcome(error)
    names = dict.fromkeys((*settings, *requested_names, *current))
    again = frozenset(requested_names) if resource[0] == BROKER else frozenset()
    records += [
        r.ConfigRecord(
            resource_type=resource[0],
            resource_name=resource[1],
            name=name,
            value=settings.get(name),
        )
        for name in names
        if current.get(name) != settings.get(name) or name in again
    ]
    return Outcome()


def _check_safety(
    state: ControllerState,
    resource: Resource,
    requested_names: Sequence[str],
    settings: dict[str, str],
) -> None:
    """Reject values that would harm the cluster, for any setting."""
    check_lengths(settings)
    name = "min.insync.replicas"
    current = state.image.config(*resource)
    if resource[0] != BROKER or not state.elr_enabled or name not in {*requested_names, *current}:
        return
    if resource[1] and (name in requested_names or name not in settings):
        raise ConfigError(
            "Broker-level min.insync.replicas cannot be altered while ELR is enabled."
        )
    if not resource[1] and name not in settings:
        raise ConfigError(
            "Cluster-level min.insync.replicas cannot be removed while ELR is enabled."
        )


def check_lengths(settings: Mapping[str, str]) -> None:
    """Raise ConfigError for a value that is too long for any setting."""
    if any(len(text) > VALUE_MAX for text in settings.values()):
        raise ConfigError(
            "The configuration value cannot be added because it exceeds the maximum value size "
            f"of {VALUE_MAX} bytes."
        )


def _replace(texts: dict[str, str], operations: Sequence[Operation]) -> dict[str, str]:
    del texts
    check_operands(operations)
    return {name: text for name, _, text in operations if text is not None}


def operate(
    texts: dict[str, str], operations: list[Operation], resource: Resource
) -> dict[str, str]:
    """Apply the operations in order and return the resulting settings."""
    check_operands(operations)
    for name, kind, text in operations:
        if kind == SET:
            texts[name] = text or ""
        elif kind == DELETE:
            texts.pop(name, None)
        elif kind in (APPEND, SUBTRACT):
            texts[name] = _splice(texts, name, kind, text or "", resource)
        else:
            raise errors.InvalidRequest(f"Unknown operation type id {kind}")
    return texts


def check_operands(operations: Sequence[Operation]) -> None:
    """Reject a setting that is named twice, or lacks the value that its operation needs."""
    names = [name for name, _, _ in operations]
    if len(set(names)) != len(names):
        raise errors.InvalidRequest("Error due to duplicate config keys")
    nulls = [name for name, kind, text in operations if text is None and kind != DELETE]
    if nulls:
        raise errors.InvalidRequest(f"Null value not supported for : {', '.join(nulls)}")


def _splice(texts: dict[str, str], name: str, kind: int, text: str, resource: Resource) -> str:
    key = keys_of(resource[0]).get(name)
    if key is None or key.kind is not Kind.LIST:
        word = "APPEND" if kind == APPEND else "SUBTRACT"
        raise errors.InvalidConfig(f"Can't {word} to key {name} because its type is not LIST.")
    current = texts[name] if name in texts else key.text(key.default) or ""
    parts, operands = [part for part in current.split(",") if part], _split(text)
    if kind == APPEND:
        former_parts = set(parts)
        parts += [part for part in dict.fromkeys(operands) if part not in former_parts]
    else:
        removals, remaining_parts = Counter(operands), []
        for part in parts:
            if removals[part]:  # Each operand removes one part.
                removals[part] -= 1
            else:
                remaining_parts.append(part)
        parts = remaining_parts
    return ",".join(parts)


def _split(text: str) -> list[str]:
    """Split a list as Java does: the empty parts at its end, unless it is empty, do not count."""
    parts = text.split(",")
    while text and parts and not parts[-1]:
        parts.pop()
    return parts


def keys_of(resource_type: int) -> dict[str, Key[object]]:
    """Return the table of settings of a resource type."""
    tables: dict[int, type[Config]] = {
        TOPIC: TopicConfig,
        GROUP: GroupConfig,
        CLIENT_METRICS: ClientMetricsConfig,
    }
    return all_broker_keys() if resource_type == BROKER else tables[resource_type].keys()


def _check_kind(kind: int) -> None:
    """Reject a resource type that has no settings."""
    if kind not in (TOPIC, BROKER, CLIENT_METRICS, GROUP):
        raise errors.InvalidRequest(f"Unknown resource type {kind}")


def _check(
    state: ControllerState,
    alteration: ConfigAlteration,
    current: dict[str, str],
    settings: dict[str, str],
) -> None:
    kind, name = alteration.resource
    if kind == TOPIC:
        if not name:
            raise errors.InvalidRequest("Default topic resources are not allowed.")
        check_topic_name(name)
        check_topic_config(_without_outdated(current, settings), state.cluster_config())
        if name not in state.image.topic_ids:
            raise errors.UnknownTopicOrPartition(f"The topic '{name}' does not exist.")
    elif kind == BROKER:
        if name and not (_NODE_ID.fullmatch(name) and int(name) <= _NODE_ID_MAX):
            raise errors.InvalidRequest(f"Unable to parse broker name as a base 10 number: {name}")
        if name and not _is_node(state, int(name)):
            raise errors.BrokerIdNotRegistered(f"No node with id {name} found.")
        check_broker_settings(state.config, state.image, alteration, settings)
    elif kind == GROUP:
        _check_group(state, name, settings)
    elif not name:
        raise errors.InvalidRequest("Subscription name can't be empty")
    else:
        check_client_metrics(settings)


def _is_node(state: ControllerState, node_id: int) -> bool:
    """Return whether the cluster has a broker or a controller with this id.

    Fixed voters count before they register. Tools that are connected to the controllers alter the
    settings of all nodes that DescribeCluster lists there, which are the controllers.
    """
    image, config = state.image, state.config
    return (
        node_id in image.brokers
        or node_id in image.controllers
        or node_id in config.voters
        or node_id == config.node_id
    )


def _without_outdated(current: dict[str, str], settings: dict[str, str]) -> dict[str, str]:
    """Return the settings to check: unchanged settings from another release are left out."""
    outdated = {setting for setting, _ in outdated_settings(current)}
    return {
        setting: text
        for setting, text in settings.items()
        if setting not in outdated or text != current[setting]
    }


def _check_group(state: ControllerState, name: str, settings: dict[str, str]) -> None:
    if not name:
        raise errors.InvalidRequest("Default group resources are not allowed.")
    keys = GroupConfig.keys()
    for setting, text in settings.items():
        if setting not in keys:
            raise ConfigError(f"Unknown group config name: {setting}")
        keys[setting].parse(text)
    check_group_config(settings, state.config)


def check_broker_settings(
    config: BrokerConfig,
    image: MetadataImage,
    alteration: ConfigAlteration,
    settings: dict[str, str],
) -> None:
    """Reject settings that cannot change at run time, or not for this kind of resource.

    Brokers check their own settings too, because Apache Kafka's controllers accept any.
    """
    current, name = image.config(*alteration.resource), alteration.resource[1]
    keys = _keys_of_listeners(settings)
    changed_names = [setting for setting in settings if current.get(setting) != settings[setting]]
    fixed = [
        setting
        for setting in changed_names
        if (setting in keys and keys[setting].scope is Scope.READ_ONLY) or is_of_logins(setting)
    ]
    if fixed:
        raise errors.InvalidRequest(
            f"Cannot update these configs dynamically: [{', '.join(sorted(fixed))}]"
        )
    _refuse_secrets(setting for setting in alteration.names if setting in settings)
    try:
        for setting in changed_names:
            check_case(setting)
    except ConfigError as error:
        raise errors.InvalidRequest(str(error)) from None
    stores = [setting for setting in changed_names if is_for_store(setting)]
    if stores:
        raise errors.InvalidRequest(
            "These security configs can be dynamically updated only per-listener using the "
            f"listener prefix: [{', '.join(sorted(stores))}]"
        )
    for setting in changed_names:
        if setting not in keys:
            continue
        if not name and keys[setting].scope is Scope.PER_BROKER:
            raise errors.InvalidRequest(
                "Cannot update these configs at default cluster level, broker id must be "
                f"specified: [{setting}]"
            )
        try:
            keys[setting].parse(settings[setting])
        except ConfigError as error:
            raise errors.InvalidRequest(str(error)) from None
    cluster, own = (image.config(BROKER, ""), settings) if name else (settings, {})
    try:
        if changed_names:
            check_changed(config.with_dynamic(cluster, own), changed_names)
    except ConfigError as error:
        raise errors.InvalidRequest(str(error)) from None


def _refuse_secrets(names: Iterable[str]) -> None:
    """Reject secrets, because metadata logs and snapshots would show them on every node."""
    names = list(names)
    keys = _keys_of_listeners(names)
    secrets = [
        name
        for name in names
        if name.endswith("sasl.jaas.config")
        or (name in keys and keys[name].sensitive and not name.endswith(CERTIFICATES))
    ]
    if secrets:
        raise errors.InvalidRequest(
            "Passwords and private keys cannot be altered, because the metadata of the cluster "
            f"would show them: [{', '.join(sorted(secrets))}]. Set them in server.properties and "
            "restart the broker; to replace a private key without a restart, write a new file over "
            "that of ssl.keystore.location, with the password of the old one."
        )


def _keys_of_listeners(settings: Iterable[str]) -> dict[str, Key[object]]:
    """Return the broker settings' table, including names that concern a single listener."""
    keys = all_broker_keys()
    plain_names = {setting: without_listener(setting) for setting in settings}
    more = {setting: keys[plain] for setting, plain in plain_names.items() if plain in keys}
    return {**keys, **more}
