"""The shared part of the two requests that change settings: which changes a node takes.

One bad resource fails alone; the results come in the order of the request's resources.
"""

from collections.abc import Callable
from copy import copy
from typing import Any

from kwire.codec.messages.alter_configs import AlterConfigsRequest
from kwire.codec.messages.incremental_alter_configs import IncrementalAlterConfigsRequest
from kwire.errors import KafkaError
from kwire.handlers.dispatch import Context
from kwire.handlers.shared.describing import check_alter, check_broker

Asked = AlterConfigsRequest | IncrementalAlterConfigsRequest


def wrong(kind: Any, resource: Any, error: KafkaError) -> Any:
    """Return the result, of type ``kind``, for a resource whose settings are not changed."""
    return kind(
        error_code=error.code,
        error_message=error.text,
        resource_type=resource.resource_type,
        resource_name=resource.resource_name,
    )


def take_out_other_brokers(context: Context, request: Asked, kind: Any) -> list[Any]:
    """Remove other brokers' settings from a request to be forwarded; return their refusals."""
    return _take_out(request, kind, lambda resource: check_broker(context, *_name(resource)))


async def alter(context: Context, request: Any, decide: Any, kind: Any) -> Any:
    """Change the settings that the client may change; refuse the others."""
    order = [_name(resource) for resource in request.resources]
    request = copy(request)  # the original may have to be forwarded
    denied = _take_out(request, kind, lambda resource: check_alter(context, *_name(resource)))
    response = await context.decide(decide, request)
    response.responses += denied
    response.responses.sort(key=lambda result: order.index(_name(result)))
    return response


def _name(resource: Any) -> tuple[int, str]:
    return resource.resource_type, resource.resource_name


def _take_out(request: Any, kind: Any, check: Callable[[Any], None]) -> list[Any]:
    """Keep the resources that pass a check in the request; return the results of the others."""
    allowed, denied = [], []
    for resource in request.resources:
        try:
            check(resource)
        except KafkaError as error:
            denied.append(wrong(kind, resource, error))
        else:
            allowed.append(resource)
    request.resources = allowed
    return denied
