"""DescribeAcls (API key 29): its request and its response."""

from kwire.codec.primitives import MalformedError
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


@message(api_key=29, versions="1-3", flexible="2+")
class DescribeAclsRequest(Request["DescribeAclsResponse"]):
    resource_type_filter: Int8 = field("0+")
    resource_name_filter: NullableString = field("0+", nullable="0+")
    pattern_type_filter: Int8 = field("1+", default=3)
    principal_filter: NullableString = field("0+", nullable="0+")
    host_filter: NullableString = field("0+", nullable="0+")
    operation: Int8 = field("0+")
    permission_type: Int8 = field("0+")


@message(api_key=29, versions="1-3", flexible="2+")
class DescribeAclsResponse:
    throttle_time_ms: Int32 = field("0+", default=0)
    error_code: Int16 = field("0+", default=0)
    error_message: NullableString = field("0+", default=None, nullable="0+")

    @struct
    class DescribeAclsResource:
        resource_type: Int8 = field("0+")
        resource_name: String = field("0+")
        pattern_type: Int8 = field("1+", default=3)

        @struct
        class AclDescription:
            principal: String = field("0+")
            host: String = field("0+")
            operation: Int8 = field("0+")
            permission_type: Int8 = field("0+")

        acls: Array[AclDescription] = field("0+", factory=list)

    resources: Array[DescribeAclsResource] = field("0+", factory=list)


def widen_request(request: DescribeAclsRequest, version: int) -> DescribeAclsRequest:
    """Reject codes of 0, which mean unknown; Kafka closes the connection, too."""
    codes = (request.resource_type_filter, request.pattern_type_filter, request.operation)
    if 0 in (*codes, request.permission_type):
        raise MalformedError("a filter with an unknown element")
    return request
