"""IncrementalAlterConfigs (API key 44): sets and deletes settings, and edits lists of values.

The levels of loggers are changed in this process; all other settings are in the metadata.
"""

from typing import Final

from kwire.codec.messages.incremental_alter_configs import (
    IncrementalAlterConfigsRequest,
    IncrementalAlterConfigsResponse,
)
from kwire.handlers.shared.altering import Altering
from kwire.handlers.shared.context import Context
from kwire.handlers.shared.handler import handles
from kwire.handlers.shared.loggers import alter_levels
from kwire.raftmeta.controller.configs import decide_incremental_alter, incremental_alteration

_ALTERING: Final = Altering(
    IncrementalAlterConfigsResponse, decide_incremental_alter, incremental_alteration, alter_levels
)


@handles(
    IncrementalAlterConfigsRequest,
    refuse=_ALTERING.refuse,
    calls_controller=True,
)
async def incremental_alter_configs(
    context: Context, request: IncrementalAlterConfigsRequest
) -> IncrementalAlterConfigsResponse:
    return await _ALTERING.alter(context, request)
