"""ControllerRegistration (API key 70): a controller reports its addresses and features."""

from typing import Final

from kwire import errors
from kwire.codec.messages.controller_registration import (
    ControllerRegistrationRequest,
    ControllerRegistrationResponse,
)
from kwire.errors import KafkaError
from kwire.handlers.shared.context import CLUSTER, Context
from kwire.handlers.shared.handler import handles
from kwire.raftmeta.controller.brokers import decide_register_controller

WRONG_CONTROLLER: Final = "This is not the correct controller for this cluster."


def refuse(
    request: ControllerRegistrationRequest, error: KafkaError
) -> ControllerRegistrationResponse:
    text = WRONG_CONTROLLER if isinstance(error, errors.NotController) else error.text
    return ControllerRegistrationResponse(error_code=error.code, error_message=text)


@handles(ControllerRegistrationRequest, refuse=refuse)
async def controller_registration(
    context: Context, request: ControllerRegistrationRequest
) -> ControllerRegistrationResponse:
    context.check_allowed("ClusterAction", "Cluster", CLUSTER)
    return await context.decide(decide_register_controller, request)
