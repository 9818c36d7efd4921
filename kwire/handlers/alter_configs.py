"""AlterConfigs (API key 33): settings changed at run time.

Settings are replaced: what is not named goes back to its default. One bad resource fails alone.
"""

from collections.abc import Callable
from copy import copy

from kwire.codec.messages.alter_configs import AlterConfigsRequest, AlterConfigsResponse
from kwire.errors import KafkaError
from kwire.handlers.describing import check_alter, check_broker
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


def not_ours(context: Context, request: AlterConfigsRequest) -> list[Result]:
    """Takes settings of other brokers out of a request that is passed on, and refuses them."""
    return _without(request, lambda asked: check_broker(context, *_resource(asked)))


def _resource(asked: Asked | Result) -> tuple[int, str]:
    return asked.resource_type, asked.resource_name


def _without(request: AlterConfigsRequest, check: Callable[[Asked], None]) -> list[Result]:
    """Leaves in the request what passes a check; answers for the others."""
    allowed, denied = [], []
    for asked in request.resources:
        try:
            check(asked)
        except KafkaError as error:
            denied.append(_wrong(asked, error))
        else:
            allowed.append(asked)
    request.resources = allowed
    return denied


@handles(AlterConfigsRequest, versions="0-2", failed=failed, refused=not_ours)
async def alter_configs(context: Context, request: AlterConfigsRequest) -> AlterConfigsResponse:
    order = [_resource(asked) for asked in request.resources]
    request = copy(request)  # as it came, it may have to be passed on
    denied = _without(request, lambda asked: check_alter(context, *_resource(asked)))
    response = await context.controller.call(decide_alter, request)
    response.responses += denied
    response.responses.sort(key=lambda result: order.index(_resource(result)))
    return response
