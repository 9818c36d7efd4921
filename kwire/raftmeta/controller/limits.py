"""Infrequent requests: feature levels, producer-id blocks, client quotas."""

import re
from collections.abc import Callable, Mapping
from ipaddress import ip_address
from typing import Final

from kwire import errors
from kwire.codec.messages import metadata_records as r
from kwire.codec.messages.allocate_producer_ids import (
    AllocateProducerIdsRequest,
    AllocateProducerIdsResponse,
)
from kwire.codec.messages.alter_client_quotas import (
    AlterClientQuotasRequest,
    AlterClientQuotasResponse,
)
from kwire.codec.messages.update_features import UpdateFeaturesRequest, UpdateFeaturesResponse
from kwire.errors import KafkaError
from kwire.raftmeta.controller.features import WORKING, elr_safety_records
from kwire.raftmeta.controller.state import (
    ELR,
    ControllerState,
    Decision,
    Outcome,
    check_bound,
    outcome,
)
from kwire.raftmeta.metadata.image import QuotaEntity
from kwire.raftmeta.storage.levels import METADATA_VERSION, NEEDS

PRODUCER_IDS: Final = 1000
"""Producer ids in one block for a broker."""

_UPGRADE, _SAFE_DOWNGRADE, _UNSAFE_DOWNGRADE = 1, 2, 3

KRAFT_VERSION: Final = "kraft.version"
_NEW_RECORDS_FROM: Final = (8, 11, 13, 14, 15, 17, 23, 30)
"""Levels of metadata.version with records that the level before cannot read."""

Wrong = Callable[[str], KafkaError]


def decide_update_features(
    state: ControllerState,
    request: UpdateFeaturesRequest,
    now: float,
    *,
    kraft_version: int,
    check_kraft_version: Callable[[int], None],
) -> Decision[UpdateFeaturesResponse]:
    """Change feature levels: all that the request names, or none.

    ``kraft_version`` is the quorum's level. The quorum decides whether it can be raised, and raises
    it after the other changes are committed.
    """
    del now
    current = {**state.image.features, KRAFT_VERSION: kraft_version}
    levels = {update.feature: update.max_version_level for update in request.feature_updates}
    metadata = levels.get(METADATA_VERSION, current.get(METADATA_VERSION, 0))
    records: list[r.MetadataRecord] = []
    results = []
    failed: KafkaError | None = None
    names = [update.feature for update in request.feature_updates]
    for update in request.feature_updates:
        code, text = errors.NONE, None
        try:
            if names.count(update.feature) > 1:
                raise errors.InvalidRequest("Duplicate feature in the request.")
            records += _update(state, update, current.get(update.feature, 0), metadata)
            if update.feature == KRAFT_VERSION and update.max_version_level > kraft_version:
                _ask_the_quorum(update.max_version_level, check_kraft_version)
        except KafkaError as error:
            code, text = error.code, error.text
            failed = failed or error
        results.append(
            UpdateFeaturesResponse.UpdatableFeatureResult(
                feature=update.feature, error_code=code, error_message=text
            )
        )
    if failed is not None:
        reply = UpdateFeaturesResponse(
            error_code=failed.code,
            error_message=f"The update failed for all features since the following feature had "
            f"an error: {failed.text}",
        )
        return Decision((), reply)
    reply = UpdateFeaturesResponse(results=results)
    return Decision(() if request.validate_only else tuple(records), reply)


def _ask_the_quorum(level: int, check: Callable[[int], None]) -> None:
    try:
        check(level)
    except KafkaError as error:
        why = f"Invalid update version {level} for feature {KRAFT_VERSION}. {error.text}"
        raise errors.InvalidUpdateVersion(why) from error


def _update(
    state: ControllerState,
    update: UpdateFeaturesRequest.FeatureUpdateKey,
    current: int,
    metadata: int,
) -> list[r.MetadataRecord]:
    name, level = update.feature, update.max_version_level
    kind = _SAFE_DOWNGRADE if update.allow_downgrade else update.upgrade_type

    def wrong(why: str) -> KafkaError:
        begin = f"Invalid update version {level} for feature {name}. "
        return errors.InvalidUpdateVersion(begin + why)

    if kind not in (_UPGRADE, _SAFE_DOWNGRADE, _UNSAFE_DOWNGRADE):
        raise wrong("The controller does not support the given upgrade type.")
    if level < 0:
        raise wrong("A feature version cannot be less than 0.")
    _check_supported(state, name, level, wrong)
    _check_direction(name, level, current, kind, wrong)
    if current < level and WORKING.get(name, level) < level:
        raise wrong(f"Data at this version is served, but not more than {WORKING[name]} works yet.")
    if name == KRAFT_VERSION:
        return []
    if level and metadata < (needed := NEEDS.get(name, 0)):
        raise wrong(f"{name} {level} depends on {METADATA_VERSION} level {needed}")
    safety = elr_safety_records(state) if name == ELR and level else []
    return [*safety, r.FeatureLevelRecord(name=name, feature_level=level)]


def _check_direction(name: str, level: int, current: int, kind: int, wrong: Wrong) -> None:
    """Refuse a downgrade that is not requested as one, or that would lose metadata."""
    if level > current and kind != _UPGRADE:
        raise wrong("Can't downgrade to a newer version.")
    if level >= current:
        return
    if kind == _UPGRADE:
        raise wrong(
            "Can't downgrade the version of this feature without setting the upgrade type to "
            "either safe or unsafe downgrade."
        )
    if name == KRAFT_VERSION:
        raise wrong("Can't downgrade the version of this feature.")
    if name == METADATA_VERSION and any(level < new <= current for new in _NEW_RECORDS_FROM):
        why = "Refusing to perform the requested downgrade because it might delete metadata"
        text = f"{why} information."
        if kind == _UNSAFE_DOWNGRADE:
            text = "Unsafe metadata downgrade is not supported in this version."
        raise errors.InvalidUpdateVersion(
            f"Unsupported metadata.version downgrade from {current} to {level}. {text}"
        )


def _check_supported(state: ControllerState, name: str, level: int, wrong: Wrong) -> None:
    """Refuse a level that not every node supports."""
    own = f"Local controller {state.config.node_id}"
    if name not in state.supported_features:
        what = "Feature {} not found." if not level else "{} does not support this feature."
        raise wrong(what.format(name if not level else own))
    nodes: list[tuple[str, Mapping[str, tuple[int, int]]]] = [(own, state.supported_features)]
    nodes += [(f"Broker {b.id}", b.features) for b in state.image.brokers.values()]
    nodes += [(f"Controller {c.id}", c.features) for c in state.image.controllers.values()]
    for who, features in nodes:
        low, high = features.get(name, (0, 0))
        if not low <= level <= high:
            raise wrong(f"{who} only supports versions {low}-{high}")
    node_ids = {state.config.node_id, *state.image.controllers}
    for voter in sorted(state.config.voters):
        if voter not in node_ids:
            raise wrong(f"controller {voter} has not registered, and may not support this feature")


def decide_allocate_producer_ids(
    state: ControllerState, request: AllocateProducerIdsRequest, now: float
) -> Decision[AllocateProducerIdsResponse]:
    """Allocate a block of producer ids to a broker; no id is ever allocated twice."""
    del now
    state.broker(request.broker_id, request.broker_epoch)
    start = max(state.image.next_producer_id, 0)
    if start > (1 << 63) - 1 - PRODUCER_IDS:
        raise errors.UnknownServerError("There are no producer ids left.")
    record = r.ProducerIdsRecord(
        broker_id=request.broker_id,
        broker_epoch=request.broker_epoch,
        next_producer_id=start + PRODUCER_IDS,
    )
    reply = AllocateProducerIdsResponse(producer_id_start=start, producer_id_len=PRODUCER_IDS)
    return Decision((record,), reply)


_QUOTA_KEYS: Final = {
    "user": ("producer_byte_rate", "consumer_byte_rate", "request_percentage"),
    "ip": ("connection_creation_rate",),
}
_USER_KEYS: Final = (*_QUOTA_KEYS["user"], "controller_mutation_rate")
_WHOLE: Final = {
    "producer_byte_rate": (2.0**63, "a LONG"),
    "consumer_byte_rate": (2.0**63, "a LONG"),
    "connection_creation_rate": (2.0**31 - 1, "an INT"),
}
"""Quotas that are whole numbers, with the largest value and its type."""
_HOST: Final = re.compile(r"[A-Za-z0-9]([A-Za-z0-9.-]*[A-Za-z0-9])?")
"""The form of a host name; Kafka also asks the resolver whether the host exists."""
_ENTITY_TYPES: Final = frozenset({"user", "client-id", "ip"})


def decide_alter_quotas(
    state: ControllerState, request: AlterClientQuotasRequest, now: float
) -> Decision[AlterClientQuotasResponse]:
    """Change quotas of users, client ids and addresses; only mutation quotas are enforced.

    If an entity names a type twice, the last name counts. A second entry for an entity, and a
    second operation on one of its quotas, are refused; of two equal entities, the first one counts.
    """
    del now
    records: list[r.MetadataRecord] = []
    went: dict[QuotaEntity, Outcome] = {}
    for entry in request.entries:
        names = {part.entity_type: part.entity_name for part in entry.entity}
        entity = tuple(sorted(names.items()))
        keys = {op.key for op in entry.ops}
        try:
            if entity in went or len(keys) < len(entry.ops):
                raise errors.InvalidRequest(f"Ignoring duplicate entity {_entity_text(names)}")
            records += _quota_records(state, entity, entry.ops)
        except KafkaError as error:
            went[entity] = outcome(error)
        else:
            went[entity] = Outcome()
    check_bound(records)
    entries = [_quota_answer(entity, result) for entity, result in went.items()]
    reply = AlterClientQuotasResponse(entries=entries)
    return Decision(() if request.validate_only else tuple(records), reply)


def _entity_text(names: Mapping[str, str | None]) -> str:
    parts = (f"{kind}={'null' if name is None else name}" for kind, name in names.items())
    return f"ClientQuotaEntity(entries={{{', '.join(parts)}}})"


def _quota_answer(entity: QuotaEntity, result: Outcome) -> AlterClientQuotasResponse.EntryData:
    answer = AlterClientQuotasResponse.EntryData
    parts = [answer.EntityData(entity_type=kind, entity_name=name) for kind, name in entity]
    return answer(error_code=result.code, error_message=result.text, entity=parts)


def _quota_records(
    state: ControllerState,
    entity: QuotaEntity,
    ops: list[AlterClientQuotasRequest.EntryData.OpData],
) -> list[r.ClientQuotaRecord]:
    names = dict(entity)
    _check_entity(names)
    allowed = _QUOTA_KEYS["ip"] if "ip" in names else _USER_KEYS
    quotas: Mapping[str, float] = state.image.quotas.get(entity) or {}
    records = []
    for op in ops:
        if not op.remove:
            if op.key not in allowed:
                raise errors.InvalidRequest(f"Invalid configuration key {op.key}")
            _check_quota(op.key, op.value)
        if quotas.get(op.key) != (None if op.remove else op.value):
            records.append(_quota_record(entity, op.key, op.value, op.remove))
    return records


def _check_entity(names: Mapping[str, str | None]) -> None:
    """Refuse an entity that is not a user, a client id, both of these, or an address."""
    if not names:
        raise errors.InvalidRequest("Invalid empty client quota entity")
    for kind, name in names.items():
        if kind not in _ENTITY_TYPES:
            raise errors.InvalidRequest(f"Unhandled client quota entity type: {kind}")
        if name == "":
            raise errors.InvalidRequest(f"Empty {kind} not supported")
    if "ip" not in names:
        return
    if len(names) > 1:
        raise errors.InvalidRequest(
            "Invalid quota entity combination, IP entity shouldnot be combined with User or "
            "ClientId"
        )
    name = names["ip"]
    if name is not None and not _is_address(name) and not _HOST.fullmatch(name):
        raise errors.InvalidRequest(f"{name} is not a valid IP or resolvable host.")


def _is_address(name: str) -> bool:
    try:
        ip_address(name)
    except ValueError:
        return False
    return True


def _check_quota(key: str, value: float) -> None:
    if not value > 0:
        raise errors.InvalidRequest(f"Quota {key} must be greater than 0")
    if key not in _WHOLE:
        return
    largest, what = _WHOLE[key]
    if value > largest:
        raise errors.InvalidRequest(f"Proposed value for {key} is too large for {what}.")
    if value % 1:
        raise errors.InvalidRequest(f"{key} cannot be a fractional value.")


def _quota_record(entity: QuotaEntity, key: str, value: float, remove: bool) -> r.ClientQuotaRecord:
    return r.ClientQuotaRecord(
        entity=[
            r.ClientQuotaRecord.EntityData(entity_type=kind, entity_name=name)
            for kind, name in entity
        ],
        key=key,
        value=0.0 if remove else value,
        remove=remove,
    )
