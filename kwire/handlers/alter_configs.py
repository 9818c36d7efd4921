"""AlterConfigs (API key 33): replaces all settings of a resource; omitted settings are reset."""

from typing import Final

from kwire.codec.messages.alter_configs import AlterConfigsRequest, AlterConfigsResponse
from kwire.handlers.shared.altering import Altering
from kwire.handlers.shared.context import Context
from kwire.handlers.shared.handler import handles
from kwire.raftmeta.controller.configs import decide_alter, full_alteration

_ALTERING: Final = Altering(AlterConfigsResponse, decide_alter, full_alteration)


@handles(
    AlterConfigsRequest,
    refuse=_ALTERING.refuse,
    calls_controller=True,
)
async def alter_configs(context: Context, request: AlterConfigsRequest) -> AlterConfigsResponse:
    return await _ALTERING.alter(context, request)
