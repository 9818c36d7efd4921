"""ApiVersions (API key 18): what this listener speaks, and the cluster's features.

Computed from the table of handlers, so nothing is advertised that is not served.
"""

import re
from functools import cache
from typing import Final

from kwire.codec.messages.api_versions import ApiVersionsRequest, ApiVersionsResponse
from kwire.errors import InvalidRequest, KafkaError, UnsupportedVersion
from kwire.handlers import Row, Side, served_on
from kwire.handlers.dispatch import Context, handles

ApiVersion = ApiVersionsResponse.ApiVersion

_SOFTWARE: Final = re.compile(r"[a-zA-Z0-9]([a-zA-Z0-9\-.]*[a-zA-Z0-9])?")


def failed(request: ApiVersionsRequest, error: KafkaError) -> ApiVersionsResponse:
    return ApiVersionsResponse(error_code=error.code)


def _advertised(row: Row) -> ApiVersion:
    first = row.first if row.told_first is None else row.told_first
    return ApiVersion(api_key=row.key, min_version=first, max_version=row.last)


@cache
def _all_advertised(side: Side) -> list[ApiVersion]:
    """The same for every client of a kind of listener."""
    return [_advertised(row) for row in served_on(side).values()]


def version_refused() -> ApiVersionsResponse:
    """Answer to a version of ApiVersions itself that does not exist: only that key is listed."""
    return ApiVersionsResponse(
        error_code=UnsupportedVersion.code, api_keys=[_advertised(served_on(Side.BOTH)[18])]
    )


def _finalized(context: Context) -> dict[str, int]:
    """The levels in force; the quorum's own one is not in the metadata's records."""
    return {**context.image.features, "kraft.version": context.quorum.kraft_version}


@handles(ApiVersionsRequest, versions="0-4", failed=failed)
async def api_versions(context: Context, request: ApiVersionsRequest) -> ApiVersionsResponse:
    for text in (request.client_software_name, request.client_software_version):
        if not _SOFTWARE.fullmatch(text):
            raise InvalidRequest
    return ApiVersionsResponse(
        api_keys=_all_advertised(context.side),
        supported_features=[
            ApiVersionsResponse.SupportedFeatureKey(
                name=name, min_version=lowest, max_version=highest
            )
            for name, (lowest, highest) in context.services.supported_features.items()
        ],
        finalized_features_epoch=context.image.applied.offset,
        finalized_features=[
            ApiVersionsResponse.FinalizedFeatureKey(
                name=name, max_version_level=level, min_version_level=level
            )
            for name, level in sorted(_finalized(context).items())
            if level > 0
        ],
    )
