"""AlterClientQuotas (API key 49): changes limits of users, client ids and addresses in metadata."""

from kwire.codec.messages.alter_client_quotas import (
    AlterClientQuotasRequest,
    AlterClientQuotasResponse,
)
from kwire.errors import KafkaError
from kwire.handlers.shared.context import CLUSTER, Context
from kwire.handlers.shared.handler import handles
from kwire.raftmeta.controller.client_quotas import decide_alter_quotas

Entry = AlterClientQuotasResponse.EntryData


def refuse(request: AlterClientQuotasRequest, error: KafkaError) -> AlterClientQuotasResponse:
    entries = [
        Entry(
            error_code=error.code,
            error_message=error.text,
            entity=[
                Entry.EntityData(entity_type=part.entity_type, entity_name=part.entity_name)
                for part in entry.entity
            ],
        )
        for entry in request.entries
    ]
    return AlterClientQuotasResponse(entries=entries)


@handles(AlterClientQuotasRequest, refuse=refuse)
async def alter_client_quotas(
    context: Context, request: AlterClientQuotasRequest
) -> AlterClientQuotasResponse:
    context.check_allowed("AlterConfigs", "Cluster", CLUSTER)
    return await context.decide(decide_alter_quotas, request)
