"""The decision on AlterClientQuotas."""

import re
from collections.abc import Mapping
from typing import Final

from kwire import errors
from kwire.codec.messages import metadata_records as r
from kwire.codec.messages.alter_client_quotas import (
    AlterClientQuotasRequest,
    AlterClientQuotasResponse,
)
from kwire.errors import KafkaError
from kwire.raftmeta.controller.state import (
    ControllerDecision,
    ControllerState,
    Outcome,
    check_bound,
    outcome,
)
from kwire.raftmeta.metadata.image import QuotaEntity
from kwire.raftmeta.metadata.image_loader import Steps
from kwire.raftmeta.metadata.quota_lookup import client_address

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
"""Quotas that are whole numbers, each with its largest value and its type."""
_FRACTION_MAX: Final = 1e-6
"""The fraction that Kafka allows in a whole number, because clients may compute quotas."""
_HOST: Final = re.compile(r"[A-Za-z0-9]([A-Za-z0-9.-]*[A-Za-z0-9])?")
"""The form of a host name; Kafka also asks the resolver whether the host exists."""
_ENTITY_TYPES: Final = frozenset({"user", "client-id", "ip"})


def decide_alter_quotas(
    state: ControllerState, request: AlterClientQuotasRequest
) -> Steps[ControllerDecision[AlterClientQuotasResponse]]:
    """Change quotas of users, client ids and addresses.

    If an entity names a type twice, the last name is used. A second entry for an entity, and a
    second operation on one of its quotas, are rejected; the first of two equal entries is used.
    """
    records: list[r.MetadataRecord] = []
    outcomes: dict[QuotaEntity, Outcome] = {}
    for entry in request.entries:
        names = {part.entity_type: part.entity_name for part in entry.entity}
        entity = tuple(sorted(names.items()))
        keys = {op.key for op in entry.ops}
        try:
            if entity in outcomes or len(keys) < len(entry.ops):
                raise errors.InvalidRequest(f"Ignoring duplicate entity {_entity_text(names)}")
            records += _quota_records(state, entity, entry.ops)
        except KafkaError as error:
            outcomes[entity] = outcome(error)
        else:
            outcomes[entity] = Outcome()
        yield
    check_bound(records)
    entries = []
    for entity, result in outcomes.items():
        entries.append(_quota_answer(entity, result))
        yield
    reply = AlterClientQuotasResponse(entries=entries)
    return ControllerDecision(() if request.validate_only else tuple(records), reply)


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
    allowed_keys = _QUOTA_KEYS["ip"] if "ip" in names else _USER_KEYS
    quotas: Mapping[str, float] = state.image.quotas.get(entity) or {}
    records = []
    for op in ops:
        if not op.remove:
            if op.key not in allowed_keys:
                raise errors.InvalidRequest(f"Invalid configuration key {op.key}")
            _check_quota(op.key, op.value)
        if quotas.get(op.key) != (None if op.remove else op.value):
            records.append(_quota_record(entity, op.key, op.value, op.remove))
    return records


def _check_entity(names: Mapping[str, str | None]) -> None:
    """Reject an entity that is not a user, a client id, a pair of both, or an address."""
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
    if name is not None and client_address(name) is None and not _is_host(name):
        raise errors.InvalidRequest(f"{name} is not a valid IP or resolvable host.")


def _is_host(name: str) -> bool:
    """Return whether the name has the form of a host name, whose last part is not a number."""
    return bool(_HOST.fullmatch(name)) and not name.rpartition(".")[2].isdecimal()


def _check_quota(key: str, value: float) -> None:
    if not value > 0:
        raise errors.InvalidRequest(f"Quota {key} must be greater than 0")
    if key not in _WHOLE:
        return
    largest, type_name = _WHOLE[key]
    if value > largest:
        raise errors.InvalidRequest(f"Proposed value for {key} is too large for {type_name}.")
    if value % 1 > _FRACTION_MAX:
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
