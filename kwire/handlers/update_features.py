"""UpdateFeatures (API key 57): changes feature levels, either all in the request or none.

The quorum stores kraft.version in separate records, and raises it after the other levels.
"""

from functools import partial

from kwire import errors
from kwire.codec.messages.update_features import UpdateFeaturesRequest, UpdateFeaturesResponse
from kwire.handlers.shared.context import CLUSTER, Context
from kwire.handlers.shared.handler import handles
from kwire.raftmeta.controller.feature_updates import KRAFT_VERSION, decide_update_features


@handles(UpdateFeaturesRequest)
async def update_features(
    context: Context, request: UpdateFeaturesRequest
) -> UpdateFeaturesResponse:
    context.check_allowed("Alter", "Cluster", CLUSTER)
    decide = partial(
        decide_update_features,
        kraft_version=context.quorum.kraft_version,
        check_kraft_version=context.quorum.check_kraft_version,
    )
    response = await context.decide(decide, request)
    if response.error_code == errors.NONE and not request.validate_only:
        await _raise_kraft_version(context, request)
    return response


async def _raise_kraft_version(context: Context, request: UpdateFeaturesRequest) -> None:
    for update in request.feature_updates:
        level = update.max_version_level
        if update.feature == KRAFT_VERSION and level > context.quorum.kraft_version:
            commit = await context.quorum.upgrade_kraft_version(level)
            await commit.wait()
