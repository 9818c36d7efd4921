"""CreateAcls (API key 30): its request and its response."""

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


@message(api_key=30, versions="1-3", flexible="2+")
class CreateAclsRequest(Request["CreateAclsResponse"]):
    @struct
    class AclCreation:
        resource_type: Int8 = field("0+")
        resource_name: String = field("0+")
        resource_pattern_type: Int8 = field("1+", default=3)
        principal: String = field("0+")
        host: String = field("0+")
        operation: Int8 = field("0+")
        permission_type: Int8 = field("0+")

    creations: Array[AclCreation] = field("0+", factory=list)


@message(api_key=30, versions="1-3", flexible="2+")
class CreateAclsResponse:
    throttle_time_ms: Int32 = field("0+", default=0)

    @struct
    class AclCreationResult:
        error_code: Int16 = field("0+", default=0)
        error_message: NullableString = field("0+", default=None, nullable="0+")

    results: Array[AclCreationResult] = field("0+", factory=list)


def widen_request(request: CreateAclsRequest, version: int) -> CreateAclsRequest:
    """Reject codes of 0, which mean unknown; Kafka closes the connection, too."""
    for acl in request.creations:
        codes = (acl.resource_type, acl.resource_pattern_type, acl.operation, acl.permission_type)
        if 0 in codes:
            raise MalformedError("an ACL with an unknown element")
    return request
