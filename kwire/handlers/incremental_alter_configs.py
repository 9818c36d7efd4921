"""IncrementalAlterConfigs (API key 44): sets, deletes, appends to and subtracts from settings."""

from kwire.codec.messages.incremental_alter_configs import (
    IncrementalAlterConfigsRequest,
    IncrementalAlterConfigsResponse,
)
from kwire.errors import KafkaError
from kwire.handlers.dispatch import Context, handles
from kwire.handlers.shared.altering import alter, take_out_other_brokers, wrong
from kwire.raftmeta.controller.configs import decide_incremental_alter

Result = IncrementalAlterConfigsResponse.AlterConfigsResourceResponse


def failed(
    request: IncrementalAlterConfigsRequest, error: KafkaError
) -> IncrementalAlterConfigsResponse:
    results = [wrong(Result, resource, error) for resource in request.resources]
    return IncrementalAlterConfigsResponse(responses=results)


def not_ours(context: Context, request: IncrementalAlterConfigsRequest) -> list[Result]:
    return take_out_other_brokers(context, request, Result)


@handles(IncrementalAlterConfigsRequest, failed=failed, refused=not_ours)
async def incremental_alter_configs(
    context: Context, request: IncrementalAlterConfigsRequest
) -> IncrementalAlterConfigsResponse:
    response: IncrementalAlterConfigsResponse = await alter(
        context, request, decide_incremental_alter, Result
    )
    return response
