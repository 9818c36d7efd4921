"""The requests that undo what clients configured at run time. Pure."""

from kwire.codec.messages.alter_client_quotas import AlterClientQuotasRequest
from kwire.codec.messages.incremental_alter_configs import IncrementalAlterConfigsRequest
from kwire.configs.resource_types import TOPIC
from kwire.raftmeta.metadata.image import MetadataImage

_DELETE = 1
"""The operation of IncrementalAlterConfigs that restores the default."""


def reset_configs(image: MetadataImage) -> IncrementalAlterConfigsRequest | None:
    """Return the request that restores all defaults but those of topics; None if none is needed."""
    shape = IncrementalAlterConfigsRequest.AlterConfigsResource
    resources = [
        shape(
            resource_type=kind,
            resource_name=name,
            configs=[
                shape.AlterableConfig(name=setting, config_operation=_DELETE, value=None)
                for setting in settings
            ],
        )
        for (kind, name), settings in image.configs.items()
        if kind != TOPIC
    ]
    return (
        IncrementalAlterConfigsRequest(resources=resources, validate_only=False)
        if resources
        else None
    )


def reset_quotas(image: MetadataImage) -> AlterClientQuotasRequest | None:
    """Return the request that removes all quotas of clients; None if there are none."""
    shape = AlterClientQuotasRequest.EntryData
    entries = [
        shape(
            entity=[shape.EntityData(entity_type=kind, entity_name=name) for kind, name in entity],
            ops=[shape.OpData(key=key, value=0.0, remove=True) for key in quotas],
        )
        for entity, quotas in image.quotas.items()
    ]
    return AlterClientQuotasRequest(entries=entries, validate_only=False) if entries else None
