"""DescribeClientQuotas (API key 48): limits of users, client ids and addresses.

Each component of the filter selects an exact name, the default, or any name of an entity type;
``strict`` excludes entities with types that the filter does not name.
"""

from collections.abc import Generator
from typing import Final

from kwire import errors
from kwire.codec.messages.describe_client_quotas import (
    DescribeClientQuotasRequest,
    DescribeClientQuotasResponse,
)
from kwire.drive import run_in_slices
from kwire.handlers.shared.context import CLUSTER, Context
from kwire.handlers.shared.handler import handles
from kwire.raftmeta.metadata.image import MetadataImage, QuotaEntity

Entry = DescribeClientQuotasResponse.EntryData
Component = DescribeClientQuotasRequest.ComponentData

EXACT: Final = 0
DEFAULT: Final = 1
ANY: Final = 2
_MATCHES: Final = {
    EXACT: "MATCH_TYPE_EXACT",
    DEFAULT: "MATCH_TYPE_DEFAULT",
    ANY: "MATCH_TYPE_SPECIFIED",
}
_TYPES: Final = frozenset({"user", "client-id", "ip"})


@handles(DescribeClientQuotasRequest, refused={"entries": None})
async def describe_client_quotas(
    context: Context, request: DescribeClientQuotasRequest
) -> DescribeClientQuotasResponse:
    context.check_allowed("DescribeConfigs", "Cluster", CLUSTER)
    _check(request.components)
    entries = await run_in_slices(_select(context.image, request))
    return DescribeClientQuotasResponse(error_message="", entries=entries)


def _select(
    image: MetadataImage, request: DescribeClientQuotasRequest
) -> Generator[None, None, list[Entry]]:
    """Return the entities that match the filter, with their quotas, in small steps."""
    entries = []
    for entity, limits in image.quotas.items():
        if _matches(entity, request):
            parts = [Entry.EntityData(entity_type=kind, entity_name=name) for kind, name in entity]
            values = [Entry.ValueData(key=key, value=limits[key]) for key in sorted(limits)]
            entries.append(Entry(entity=parts, values=values))
        yield
    return entries


def _check(components: list[Component]) -> None:
    types: set[str] = set()
    for component in components:
        kind = component.entity_type
        if not kind:
            raise errors.InvalidRequest("Invalid empty entity type.")
        if kind in types:
            raise errors.InvalidRequest(
                f"Entity type {kind} cannot appear more than once in the filter."
            )
        if kind not in _TYPES:
            raise errors.UnsupportedVersion(f"Unsupported entity type {kind}")
        _check_match(component)
        types.add(kind)
    if "ip" in types and len(types) > 1:
        raise errors.InvalidRequest(
            "Invalid entity filter component combination. IP filter component should not be used "
            "with user or clientId filter component."
        )


def _check_match(component: Component) -> None:
    """Raise InvalidRequest if an exact match lacks a name, or another match has one."""
    kind, name = component.match_type, component.match
    if kind not in _MATCHES:
        raise errors.InvalidRequest(f"Unknown match type {kind}")
    if kind == EXACT and name is None:
        raise errors.InvalidRequest(
            "Request specified MATCH_TYPE_EXACT, but set match string to null."
        )
    if kind != EXACT and name is not None:
        raise errors.InvalidRequest(
            f"Request specified {_MATCHES[kind]}, but also specified a match string."
        )


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
