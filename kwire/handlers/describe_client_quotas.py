"""DescribeClientQuotas (API key 48): limits of users, client ids and addresses.

Each component of the filter asks for an exact name, the default, or any name of an entity type;
``strict`` leaves out entities with types that were not asked for.
"""

from typing import Final

from kwire import errors
from kwire.codec.messages.describe_client_quotas import (
    DescribeClientQuotasRequest,
    DescribeClientQuotasResponse,
)
from kwire.errors import KafkaError
from kwire.handlers.describing import CLUSTER
from kwire.handlers.dispatch import Context, handles
from kwire.raftmeta.image import QuotaEntity

Entry = DescribeClientQuotasResponse.EntryData
Component = DescribeClientQuotasRequest.ComponentData

EXACT: Final = 0
DEFAULT: Final = 1
ANY: Final = 2
_TYPES: Final = frozenset({"user", "client-id", "ip"})


def failed(request: DescribeClientQuotasRequest, error: KafkaError) -> DescribeClientQuotasResponse:
    return DescribeClientQuotasResponse(
        error_code=error.code, error_message=error.text, entries=None
    )


@handles(DescribeClientQuotasRequest, versions="0-1", failed=failed)
async def describe_client_quotas(
    context: Context, request: DescribeClientQuotasRequest
) -> DescribeClientQuotasResponse:
    if not context.authorize("DescribeConfigs", "Cluster", CLUSTER):
        raise errors.ClusterAuthorizationFailed
    _check(request.components)
    entries = [
        Entry(
            entity=[Entry.EntityData(entity_type=kind, entity_name=name) for kind, name in entity],
            values=[Entry.ValueData(key=key, value=value) for key, value in sorted(held.items())],
        )
        for entity, held in context.image.quotas.items()
        if _matches(entity, request)
    ]
    return DescribeClientQuotasResponse(error_message="", entries=entries)


def _check(components: list[Component]) -> None:
    types = [component.entity_type for component in components]
    for component in components:
        kind = component.entity_type
        if not kind:
            raise errors.InvalidRequest("Unexpected empty filter component entity type")
        if kind not in _TYPES:
            raise errors.UnsupportedVersion(f"Unsupported entity type {kind}")
        if component.match_type not in (EXACT, DEFAULT, ANY):
            raise errors.InvalidRequest(f"Unexpected match type {component.match_type}")
        if component.match_type == EXACT and component.match is None:
            raise errors.InvalidRequest("Request specified MATCH_TYPE_EXACT, but no match")
    for kind in types:
        if types.count(kind) > 1:
            raise errors.InvalidRequest(
                f"Entity type {kind} cannot appear more than once in the filter."
            )
    if "ip" in types and len(types) > 1:
        raise errors.InvalidRequest("Invalid entity filter component combination")


def _matches(entity: QuotaEntity, request: DescribeClientQuotasRequest) -> bool:
    names = dict(entity)
    for component in request.components:
        if component.entity_type not in names:
            return False
        name = names[component.entity_type]
        if component.match_type == EXACT and name != component.match:
            return False
        if component.match_type == DEFAULT and name is not None:
            return False
    return not request.strict or len(names) == len(request.components)
