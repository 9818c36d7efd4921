"""DeleteAcls (API key 31): its request and its response."""

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


@message(api_key=31, versions="1-3", flexible="2+")
class DeleteAclsRequest(Request["DeleteAclsResponse"]):
    @struct
    class DeleteAclsFilter:
        resource_type_filter: Int8 = field("0+")
        resource_name_filter: NullableString = field("0+", nullable="0+")
        pattern_type_filter: Int8 = field("1+", default=3)
        principal_filter: NullableString = field("0+", nullable="0+")
        host_filter: NullableString = field("0+", nullable="0+")
        operation: Int8 = field("0+")
        permission_type: Int8 = field("0+")

    filters: Array[DeleteAclsFilter] = field("0+", factory=list)


@message(api_key=31, versions="1-3", flexible="2+")
class DeleteAclsResponse:
    throttle_time_ms: Int32 = field("0+", default=0)

    @struct
    class DeleteAclsFilterResult:
        error_code: Int16 = field("0+", default=0)
        error_message: NullableString = field("0+", default=None, nullable="0+")

        @struct
        class DeleteAclsMatchingAcl:
            error_code: Int16 = field("0+", default=0)
            error_message: NullableString = field("0+", default=None, nullable="0+")
            resource_type: Int8 = field("0+")
            resource_name: String = field("0+")
            pattern_type: Int8 = field("1+", default=3)
            principal: String = field("0+")
            host: String = field("0+")
            operation: Int8 = field("0+")
            permission_type: Int8 = field("0+")

        matching_acls: Array[DeleteAclsMatchingAcl] = field("0+", factory=list)

    filter_results: Array[DeleteAclsFilterResult] = field("0+", factory=list)


def widen_request(request: DeleteAclsRequest, version: int) -> DeleteAclsRequest:
    """Reject codes of 0, which mean unknown; Kafka closes the connection, too."""
    for each in request.filters:
        codes = (each.resource_type_filter, each.pattern_type_filter, each.operation)
        if 0 in (*codes, each.permission_type):
            raise MalformedError("a filter with an unknown element")
    return request
