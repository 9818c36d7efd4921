"""AlterConfigs (API key 33): replaces settings; those not named go back to their defaults."""

from kwire.codec.messages.alter_configs import AlterConfigsRequest, AlterConfigsResponse
from kwire.errors import KafkaError
from kwire.handlers.dispatch import Context, handles
from kwire.handlers.shared.altering import alter, take_out_other_brokers, wrong
from kwire.raftmeta.controller.configs import decide_alter

Result = AlterConfigsResponse.AlterConfigsResourceResponse


def failed(request: AlterConfigsRequest, error: KafkaError) -> AlterConfigsResponse:
    return AlterConfigsResponse(responses=[wrong(Result, r, error) for r in request.resources])


def not_ours(context: Context, request: AlterConfigsRequest) -> list[Result]:
    return take_out_other_brokers(context, request, Result)


@handles(AlterConfigsRequest, failed=failed, refused=not_ours)
async def alter_configs(context: Context, request: AlterConfigsRequest) -> AlterConfigsResponse:
    response: AlterConfigsResponse = await alter(context, request, decide_alter, Result)
    return response
