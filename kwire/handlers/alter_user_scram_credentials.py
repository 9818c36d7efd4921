"""AlterUserScramCredentials (API key 51): changes the SCRAM credentials of users in metadata."""

from kwire.codec.messages.alter_user_scram_credentials import (
    AlterUserScramCredentialsRequest,
    AlterUserScramCredentialsResponse,
)
from kwire.errors import KafkaError
from kwire.handlers.shared.context import CLUSTER, Context
from kwire.handlers.shared.handler import handles
from kwire.raftmeta.controller.scram_credentials import decide_alter_scram


def refuse(
    request: AlterUserScramCredentialsRequest, error: KafkaError
) -> AlterUserScramCredentialsResponse:
    shape = AlterUserScramCredentialsResponse.AlterUserScramCredentialsResult
    names = [item.name for item in request.deletions] + [item.name for item in request.upsertions]
    results = [
        shape(user=user, error_code=error.code, error_message=error.text)
        for user in dict.fromkeys(names)
    ]
    return AlterUserScramCredentialsResponse(results=results)


@handles(AlterUserScramCredentialsRequest, refuse=refuse)
async def alter_user_scram_credentials(
    context: Context, request: AlterUserScramCredentialsRequest
) -> AlterUserScramCredentialsResponse:
    context.check_allowed("Alter", "Cluster", CLUSTER)
    return await context.decide(decide_alter_scram, request)
