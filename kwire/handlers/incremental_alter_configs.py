"""IncrementalAlterConfigs (API key 44): settings changed at run time.

Settings are set, deleted, appended to and subtracted from. One bad resource fails alone.
"""

from kwire.codec.messages.incremental_alter_configs import (
    IncrementalAlterConfigsRequest,
    IncrementalAlterConfigsResponse,
)
from kwire.errors import KafkaError
from kwire.handlers.describing import check_alter
from kwire.handlers.dispatch import Context, handles
from kwire.raftmeta.controller_configs import decide_incremental_alter

Asked = IncrementalAlterConfigsRequest.AlterConfigsResource
Result = IncrementalAlterConfigsResponse.AlterConfigsResourceResponse


def failed(
    request: IncrementalAlterConfigsRequest, error: KafkaError
) -> IncrementalAlterConfigsResponse:
    return IncrementalAlterConfigsResponse(
        responses=[_wrong(asked, error) for asked in request.resources]
    )


def _wrong(asked: Asked, error: KafkaError) -> Result:
    return Result(
        error_code=error.code,
        error_message=error.text,
        resource_type=asked.resource_type,
        resource_name=asked.resource_name,
    )


@handles(IncrementalAlterConfigsRequest, versions="0-1", failed=failed)
async def incremental_alter_configs(
    context: Context, request: IncrementalAlterConfigsRequest
) -> IncrementalAlterConfigsResponse:
    allowed, denied = [], []
    for asked in request.resources:
        try:
            check_alter(context, asked.resource_type, asked.resource_name)
        except KafkaError as error:
            denied.append(_wrong(asked, error))
        else:
            allowed.append(asked)
    request.resources = allowed
    response = await context.controller.call(decide_incremental_alter, request)
    response.responses += denied
    return response
