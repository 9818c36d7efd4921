"""CreateAcls (API key 30): writes ACLs to the metadata log."""

from kwire import errors
from kwire.codec.messages.create_acls import CreateAclsRequest, CreateAclsResponse
from kwire.errors import KafkaError
from kwire.handlers.shared.context import CLUSTER, Context
from kwire.handlers.shared.handler import handles
from kwire.raftmeta.controller.acls import decide_create_acls

Result = CreateAclsResponse.AclCreationResult


def refuse(request: CreateAclsRequest, error: KafkaError) -> CreateAclsResponse:
    result = Result(error_code=error.code, error_message=error.text)
    return CreateAclsResponse(results=[result] * len(request.creations))


@handles(CreateAclsRequest, refuse=refuse)
async def create_acls(context: Context, request: CreateAclsRequest) -> CreateAclsResponse:
    context.check_allowed("Alter", "Cluster", CLUSTER)
    if context.services.authorizer is None:
        raise errors.SecurityDisabled("No Authorizer is configured.")
    return await context.decide(decide_create_acls, request)
