"""Builds the requests that undo clients' run-time changes of settings and quotas. Pure."""

from collections.abc import Mapping
from typing import Final

from kwire.codec.messages.alter_client_quotas import AlterClientQuotasRequest
from kwire.codec.messages.incremental_alter_configs import IncrementalAlterConfigsRequest
from kwire.configs.resource_types import TOPIC
from kwire.raftmeta.metadata.image import MetadataImage

_SET: Final = 0
_DELETE: Final = 1
"""Operations of IncrementalAlterConfigs; DELETE restores the default."""

Configs = Mapping[tuple[int, str], Mapping[str, str]]
"""Settings by the type and the name of their resource."""


def reset_configs(image: MetadataImage, initial: Configs) -> IncrementalAlterConfigsRequest | None:
    """Return the request that restores the initial settings; None if none is needed.

    Settings of topics are deleted with the topics. A new cluster has a setting that clients may not
    delete (KIP-966), so the request names only settings that differ.
    """
    shape = IncrementalAlterConfigsRequest.AlterConfigsResource
    resources = []
    for kind, name in {*image.configs, *initial}:
        settings = image.config(kind, name)
        before = initial.get((kind, name), {})
        changes = {
            setting: before.get(setting)
            for setting in {*settings, *before}
            if settings.get(setting) != before.get(setting)
        }
        if kind != TOPIC and changes:
            configs = [
                shape.AlterableConfig(
                    name=setting, config_operation=_DELETE if value is None else _SET, value=value
                )
                for setting, value in changes.items()
            ]
            resources.append(shape(resource_type=kind, resource_name=name, configs=configs))
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
