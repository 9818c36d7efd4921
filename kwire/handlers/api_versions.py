"""ApiVersions (API key 18): the APIs and versions of this listener, and the cluster's features.

They are computed from the table of handlers, so only served APIs are advertised.
"""

import re
from typing import Final

from kwire.codec.messages.api_versions import ApiVersionsRequest, ApiVersionsResponse
from kwire.errors import InvalidRequest
from kwire.handlers.shared.advertised import advertised_versions
from kwire.handlers.shared.context import Context
from kwire.handlers.shared.handler import handles

_SOFTWARE: Final = re.compile(r"[a-zA-Z0-9]([a-zA-Z0-9\-.]*[a-zA-Z0-9])?")


def _finalized_features(context: Context) -> dict[str, int]:
    """Return the finalized feature levels; kraft.version comes from the quorum, not the image."""
    return {**context.image.features, "kraft.version": context.quorum.kraft_version}


@handles(ApiVersionsRequest)
def api_versions(context: Context, request: ApiVersionsRequest) -> ApiVersionsResponse:
    for text in (request.client_software_name, request.client_software_version):
        if not _SOFTWARE.fullmatch(text):
            raise InvalidRequest
    connection = context.connection
    connection.software_name = request.client_software_name
    connection.software_version = request.client_software_version
    return ApiVersionsResponse(
        api_keys=advertised_versions(
            context.listener_type, has_telemetry=context.services.has_telemetry
        ),
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
            for name, level in sorted(_finalized_features(context).items())
            if level > 0
        ],
    )
