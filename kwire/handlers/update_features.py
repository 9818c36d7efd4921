"""UpdateFeatures (API key 57): feature levels up or down, all that are asked for or none."""

from kwire import errors
from kwire.codec.messages.update_features import UpdateFeaturesRequest, UpdateFeaturesResponse
from kwire.errors import KafkaError
from kwire.handlers.describing import CLUSTER
from kwire.handlers.dispatch import Context, handles
from kwire.raftmeta.controller_limits import decide_update_features


def failed(request: UpdateFeaturesRequest, error: KafkaError) -> UpdateFeaturesResponse:
    return UpdateFeaturesResponse(error_code=error.code, error_message=error.text)


@handles(UpdateFeaturesRequest, versions="0-2", failed=failed)
async def update_features(
    context: Context, request: UpdateFeaturesRequest
) -> UpdateFeaturesResponse:
    if not context.authorize("Alter", "Cluster", CLUSTER):
        raise errors.ClusterAuthorizationFailed
    return await context.controller.call(decide_update_features, request)
