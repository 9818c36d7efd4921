"""DeleteAcls (API key 31): deletes the ACLs that match filters."""

from kwire import errors
from kwire.codec.messages.delete_acls import DeleteAclsRequest, DeleteAclsResponse
from kwire.errors import KafkaError
from kwire.handlers.shared.context import CLUSTER, Context
from kwire.handlers.shared.handler import handles
from kwire.raftmeta.controller.acls import decide_delete_acls

Result = DeleteAclsResponse.DeleteAclsFilterResult


def refuse(request: DeleteAclsRequest, error: KafkaError) -> DeleteAclsResponse:
    result = Result(error_code=error.code, error_message=error.text)
    return DeleteAclsResponse(filter_results=[result] * len(request.filters))


@handles(DeleteAclsRequest, refuse=refuse)
async def delete_acls(context: Context, request: DeleteAclsRequest) -> DeleteAclsResponse:
    context.check_allowed("Alter", "Cluster", CLUSTER)
    if context.services.authorizer is None:
        raise errors.SecurityDisabled("No Authorizer is configured.")
    return await context.decide(decide_delete_acls, request)
