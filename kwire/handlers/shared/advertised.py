"""The APIs and versions that a listener advertises, computed from the table of handlers."""

from functools import cache

from kwire.codec.messages.api_versions import ApiVersionsResponse
from kwire.errors import UnsupportedVersion
from kwire.handlers import ListenerType, Row, served_on

ApiVersion = ApiVersionsResponse.ApiVersion


def _advertised(row: Row) -> ApiVersion:
    first = row.first if row.advertised_min is None else row.advertised_min
    return ApiVersion(api_key=row.key, min_version=first, max_version=row.last)


@cache
def all_advertised(side: ListenerType) -> list[ApiVersion]:
    """Return the APIs of a kind of listener; the same list for every client."""
    return [_advertised(row) for row in served_on(side).values()]


def version_refused() -> ApiVersionsResponse:
    """Return the answer to an unknown version of ApiVersions: only that API is listed."""
    return ApiVersionsResponse(
        error_code=UnsupportedVersion.code, api_keys=[_advertised(served_on(ListenerType.BOTH)[18])]
    )
