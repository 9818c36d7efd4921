"""AlterConfigs (API key 33): settings changed at run time.

Settings are replaced: what is not named goes back to its default. One bad resource fails alone.
"""

from kwire.codec.messages.alter_configs import AlterConfigsRequest, AlterConfigsResponse
from kwire.errors import KafkaError
from kwire.handlers.describing import check_alter
from kwire.handlers.dispatch import Context, handles
from kwire.raftmeta.controller_configs import decide_alter

Asked = AlterConfigsRequest.AlterConfigsResource
Result = AlterConfigsResponse.AlterConfigsResourceResponse


def failed(request: AlterConfigsRequest, error: KafkaError) -> AlterConfigsResponse:
    return AlterConfigsResponse(responses=[_wrong(asked, error) for asked in request.resources])


def _wrong(asked: Asked, error: KafkaError) -> Result:
    return Result(
        error_code=error.code,
        error_message=error.text,
        resource_type=asked.resource_type,
        resource_name=asked.resource_name,
    )


@handles(AlterConfigsRequest, versions="0-2", failed=failed)
async def alter_configs(context: Context, request: AlterConfigsRequest) -> AlterConfigsResponse:
    allowed, denied = [], []
    for asked in request.resources:
        try:
            check_alter(context, asked.resource_type, asked.resource_name)
        except KafkaError as error:
            denied.append(_wrong(asked, error))
        else:
            allowed.append(asked)
    request.resources = allowed
    response = await context.controller.call(decide_alter, request)
    response.responses += denied
    return response
