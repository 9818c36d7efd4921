"""IncrementalAlterConfigs (API key 44): settings changed at run time.

Settings are set, deleted, appended to and subtracted from. One bad resource fails alone.
"""

from collections.abc import Callable
from copy import copy

from kwire.codec.messages.incremental_alter_configs import (
    IncrementalAlterConfigsRequest,
    IncrementalAlterConfigsResponse,
)
from kwire.errors import KafkaError
from kwire.handlers.describing import check_alter, check_broker
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


def not_ours(context: Context, request: IncrementalAlterConfigsRequest) -> list[Result]:
    """Takes settings of other brokers out of a request that is passed on, and refuses them."""
    return _without(request, lambda asked: check_broker(context, *_resource(asked)))


def _resource(asked: Asked | Result) -> tuple[int, str]:
    return asked.resource_type, asked.resource_name


def _without(
    request: IncrementalAlterConfigsRequest, check: Callable[[Asked], None]
) -> list[Result]:
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


@handles(IncrementalAlterConfigsRequest, versions="0-1", failed=failed, refused=not_ours)
async def incremental_alter_configs(
    context: Context, request: IncrementalAlterConfigsRequest
) -> IncrementalAlterConfigsResponse:
    order = [_resource(asked) for asked in request.resources]
    request = copy(request)  # as it came, it may have to be passed on
    denied = _without(request, lambda asked: check_alter(context, *_resource(asked)))
    response = await context.controller.call(decide_incremental_alter, request)
    response.responses += denied
    response.responses.sort(key=lambda result: order.index(_resource(result)))
    return response
