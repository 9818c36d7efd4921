"""FindCoordinator (API key 10): its request and its response."""

from typing import Final

from kwire.codec.schema import (
    Array,
    Int8,
    Int16,
    Int32,
    NullableString,
    Request,
    String,
    field,
    message,
    struct,
)

_SHARE: Final = 2
_UNKNOWN: Final = -1


@message(api_key=10, versions="0-6", flexible="3+")
class FindCoordinatorRequest(Request["FindCoordinatorResponse"]):
    key: String = field("0-3", default="")
    key_type: Int8 = field("1+", default=0)
    coordinator_keys: Array[String] = field("4+", factory=list)


@message(api_key=10, versions="0-6", flexible="3+")
class FindCoordinatorResponse:
    throttle_time_ms: Int32 = field("1+", default=0, ignorable=True)
    error_code: Int16 = field("0-3", default=0)
    error_message: NullableString = field("1-3", default=None, nullable="1-3", ignorable=True)
    node_id: Int32 = field("0-3", default=0)
    host: String = field("0-3", default="")
    port: Int32 = field("0-3", default=0)

    @struct
    class Coordinator:
        key: String = field("4+", default="")
        node_id: Int32 = field("4+", default=0)
        host: String = field("4+", default="")
        port: Int32 = field("4+", default=0)
        error_code: Int16 = field("4+", default=0)
        error_message: NullableString = field("4+", default=None, nullable="4+", ignorable=True)

    coordinators: Array[Coordinator] = field("4+", factory=list)


def widen_request(request: FindCoordinatorRequest, version: int) -> FindCoordinatorRequest:
    """Turn the single key of versions before 4 into a list; only version 6 has share partitions."""
    if version < 4:
        request.coordinator_keys, request.key = [request.key], ""
    if version < 6 and request.key_type == _SHARE:
        request.key_type = _UNKNOWN
    return request


def narrow_response(
    response: FindCoordinatorResponse, version: int, request: FindCoordinatorRequest
) -> FindCoordinatorResponse:
    """Before version 4, report the only coordinator in the response's own fields."""
    if version < 4 and response.coordinators:
        coordinator = response.coordinators[0]
        response.node_id = coordinator.node_id
        response.host, response.port = coordinator.host, coordinator.port
        response.error_code = coordinator.error_code
        response.error_message = coordinator.error_message
        if not coordinator.error_code:
            response.error_message = "NONE"
        response.coordinators = []
    return response
