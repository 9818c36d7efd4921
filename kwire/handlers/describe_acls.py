"""DescribeAcls (API key 29): rejected because there is no authorizer, as in Kafka."""

from kwire import errors
from kwire.codec.messages.describe_acls import DescribeAclsRequest, DescribeAclsResponse
from kwire.handlers.shared.context import Context
from kwire.handlers.shared.handler import handles


@handles(DescribeAclsRequest)
async def describe_acls(context: Context, request: DescribeAclsRequest) -> DescribeAclsResponse:
    raise errors.SecurityDisabled("No Authorizer is configured on the broker")
