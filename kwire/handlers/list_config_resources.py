"""ListConfigResources (API key 74): the resources that can have settings.

Topics and brokers are always listed; groups and client-metrics subscriptions only if they have
settings. A request without kinds lists all kinds.
"""

from collections.abc import Iterator

from kwire import errors
from kwire.codec.messages.list_config_resources import (
    ListConfigResourcesRequest,
    ListConfigResourcesResponse,
)
from kwire.configs.resource_types import BROKER, BROKER_LOGGER, CLIENT_METRICS, GROUP, TOPIC
from kwire.drive import Slices
from kwire.handlers.shared.context import CLUSTER, Context
from kwire.handlers.shared.handler import handles
from kwire.raftmeta.metadata.image import MetadataImage

Resource = ListConfigResourcesResponse.ConfigResource

_KINDS = (TOPIC, BROKER, BROKER_LOGGER, CLIENT_METRICS, GROUP)


@handles(ListConfigResourcesRequest)
async def list_config_resources(
    context: Context, request: ListConfigResourcesRequest
) -> ListConfigResourcesResponse:
    context.check_allowed("DescribeConfigs", "Cluster", CLUSTER)
    kinds = request.resource_types or list(_KINDS)
    if not set(kinds) <= set(_KINDS):
        raise errors.UnsupportedVersion
    resources, slices = list[Resource](), Slices()
    for kind in dict.fromkeys(kinds):
        for name in _names(context.image, kind):
            resources.append(Resource(resource_name=name, resource_type=kind))
            await slices.pause()
    return ListConfigResourcesResponse(config_resources=resources)


def _names(image: MetadataImage, kind: int) -> Iterator[str]:
    if kind == TOPIC:
        yield from sorted(image.topic_ids)
    elif kind in (BROKER, BROKER_LOGGER):
        yield from (str(broker) for broker in sorted(image.brokers))
    else:
        yield from sorted(name for resource_type, name in image.configs if resource_type == kind)
