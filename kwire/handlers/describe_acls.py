"""DescribeAcls (API key 29): the ACLs that match a filter, by resource."""

from collections.abc import Generator, Iterable

from kwire import errors
from kwire.codec.messages.describe_acls import DescribeAclsRequest, DescribeAclsResponse
from kwire.drive import run_in_slices
from kwire.handlers.shared.context import CLUSTER, Context
from kwire.handlers.shared.handler import handles
from kwire.security.acl_filters import filter_of, selecting
from kwire.security.acls import Acl

Resource = DescribeAclsResponse.DescribeAclsResource


@handles(DescribeAclsRequest)
async def describe_acls(context: Context, request: DescribeAclsRequest) -> DescribeAclsResponse:
    context.check_allowed("Describe", "Cluster", CLUSTER)
    if context.services.authorizer is None:
        raise errors.SecurityDisabled("No Authorizer is configured on the broker")
    acls = await run_in_slices(selecting(context.image.acls, filter_of(request)))
    resources = await run_in_slices(_by_resource(acl for _, acl in acls))
    return DescribeAclsResponse(error_message="", resources=resources)


def _by_resource(acls: Iterable[Acl]) -> Generator[None, None, list[Resource]]:
    """Group ACLs by their resource patterns, step by step."""
    resources: dict[tuple[int, str, int], Resource] = {}
    for acl in acls:
        pattern = acl.resource_type, acl.resource_name, acl.pattern_type
        resource = resources.get(pattern)
        if resource is None:
            resource_type, name, pattern_type = pattern
            resource = resources[pattern] = Resource(
                resource_type=resource_type, resource_name=name, pattern_type=pattern_type
            )
        resource.acls.append(
            Resource.AclDescription(
                principal=acl.principal,
                host=acl.host,
                operation=acl.operation,
                permission_type=acl.permission_type,
            )
        )
        yield
    return list(resources.values())
