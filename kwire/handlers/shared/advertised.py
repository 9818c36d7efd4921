"""The APIs and versions that a listener advertises, computed from the APIs served."""

from functools import cache

from kwire.codec.apis import BY_NAME, Api, ListenerType
from kwire.codec.messages.api_versions import ApiVersionsResponse
from kwire.errors import UnsupportedVersion
from kwire.handlers import served_on

ApiVersion = ApiVersionsResponse.ApiVersion


def _api_version(api: Api) -> ApiVersion:
    first, last = api.advertised or (api.first, api.stable)
    return ApiVersion(api_key=api.key, min_version=first, max_version=last)


@cache
def advertised_versions(
    listener_type: ListenerType, *, has_telemetry: bool = False
) -> list[ApiVersion]:
    """Return the APIs of a kind of listener; the same list for every client."""
    return [_api_version(api) for api in served_on(listener_type, has_telemetry).values()]


def refuse_version() -> ApiVersionsResponse:
    """Return the response to an unknown version of ApiVersions, which lists only that API."""
    return ApiVersionsResponse(
        error_code=UnsupportedVersion.code, api_keys=[_api_version(BY_NAME["ApiVersions"])]
    )
