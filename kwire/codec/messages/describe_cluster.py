"""DescribeCluster (API key 60): its request and its response."""

from kwire.codec.schema import (
    Array,
    Bool,
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
from kwire.errors import InvalidRequest, MismatchedEndpointType


@message(api_key=60, versions="0-2", flexible="0+")
class DescribeClusterRequest(Request["DescribeClusterResponse"]):
    include_cluster_authorized_operations: Bool = field("0+")
    endpoint_type: Int8 = field("1+", default=1)
    include_fenced_brokers: Bool = field("2+", default=False)


@message(api_key=60, versions="0-2", flexible="0+")
class DescribeClusterResponse:
    throttle_time_ms: Int32 = field("0+", default=0)
    error_code: Int16 = field("0+", default=0)
    error_message: NullableString = field("0+", default=None, nullable="0+")
    endpoint_type: Int8 = field("1+", default=1)
    cluster_id: String = field("0+")
    controller_id: Int32 = field("0+", default=-1)

    @struct
    class DescribeClusterBroker:
        broker_id: Int32 = field("0+")
        host: String = field("0+")
        port: Int32 = field("0+")
        rack: NullableString = field("0+", default=None, nullable="0+")
        is_fenced: Bool = field("2+", default=False)

    brokers: Array[DescribeClusterBroker] = field("0+", factory=list)
    cluster_authorized_operations: Int32 = field("0+", default=-2147483648)


def narrow_response(
    response: DescribeClusterResponse, version: int, request: DescribeClusterRequest
) -> DescribeClusterResponse:
    """Replace the error of a wrong kind of listener in version 0, which has no kinds."""
    if version == 0 and response.error_code == MismatchedEndpointType.code:
        response.error_code = InvalidRequest.code
    return response
