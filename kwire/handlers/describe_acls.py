"""DescribeAcls (API key 29): refused, since there is no authorizer, as in Kafka."""

from kwire import errors
from kwire.codec.messages.describe_acls import DescribeAclsRequest, DescribeAclsResponse
from kwire.errors import KafkaError
from kwire.handlers.dispatch import Context, handles


def failed(request: DescribeAclsRequest, error: KafkaError) -> DescribeAclsResponse:
    return DescribeAclsResponse(error_code=error.code, error_message=error.text)


@handles(DescribeAclsRequest, failed=failed)
async def describe_acls(context: Context, request: DescribeAclsRequest) -> DescribeAclsResponse:
    raise errors.SecurityDisabled("No Authorizer is configured on the broker")
