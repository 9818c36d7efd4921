"""ListConfigResources (API key 74): its request and its response."""

from typing import Final

from kwire.codec.schema import Array, Int8, Int16, Int32, Request, String, field, message, struct

_CLIENT_METRICS: Final = 16


@message(api_key=74, versions="0-1", flexible="0+")
class ListConfigResourcesRequest(Request["ListConfigResourcesResponse"]):
    resource_types: Array[Int8] = field("1+", factory=list)


@message(api_key=74, versions="0-1", flexible="0+")
class ListConfigResourcesResponse:
    throttle_time_ms: Int32 = field("0+", default=0)
    error_code: Int16 = field("0+", default=0)

    @struct
    class ConfigResource:
        resource_name: String = field("0+")
        resource_type: Int8 = field("1+", default=16, ignorable=True)

    config_resources: Array[ConfigResource] = field("0+", factory=list)


def widen_request(request: ListConfigResourcesRequest, version: int) -> ListConfigResourcesRequest:
    """Ask for client metrics in version 0, which lists nothing else."""
    if version == 0:
        request.resource_types = [_CLIENT_METRICS]
    return request
