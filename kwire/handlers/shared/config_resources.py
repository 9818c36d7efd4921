"""The resources that have settings: which of them a client may read or change, and on which node.

In requests that change settings, the resources and their results are in the client's order.
"""

import re
from collections.abc import Iterable, Sequence
from typing import Final, Protocol, TypeVar

from kwire.codec.apis import ListenerType
from kwire.configs.resource_types import BROKER, GROUP, TOPIC
from kwire.errors import InvalidRequest
from kwire.handlers.shared.context import CLUSTER, Context

_ID: Final = re.compile(r"[+-]?[0-9]{1,20}")
_ID_END: Final = 1 << 31
ResourceName = tuple[int, str]
"""A resource's type and its name."""


class ConfigResource(Protocol):
    """A resource in a request that changes settings, or the result for it."""

    resource_type: int
    resource_name: str


class AlteringRequest(Protocol):
    """A request that changes the settings of resources."""

    @property
    def resources(self) -> Sequence[ConfigResource]: ...


Result = TypeVar("Result", bound=ConfigResource)


def check_config_allowed(context: Context, operation: str, resource_type: int, name: str) -> None:
    """Raise unless the client may perform ``operation`` on a resource's settings.

    Settings of topics and groups are checked for that topic or group, all others for the cluster.
    """
    if resource_type == TOPIC:
        context.check_allowed(operation, "Topic", name)
    elif resource_type == GROUP:
        context.check_allowed(operation, "Group", name)
    else:
        context.check_allowed(operation, "Cluster", CLUSTER)


def check_may_alter(context: Context, resource_type: int, name: str) -> None:
    """Raise a KafkaError unless the client may change a resource's settings on this node."""
    if context.listener_type is ListenerType.BROKER:
        _check_not_other_broker(context, resource_type, name)
    check_config_allowed(context, "AlterConfigs", resource_type, name)


def _check_not_other_broker(context: Context, resource_type: int, name: str) -> None:
    """Raise InvalidRequest if a resource is another broker; an empty name means all brokers."""
    if resource_type != BROKER or not name:
        return
    own = context.config.node_id
    if parse_id(name, "Node") != own:
        raise InvalidRequest(f"Unexpected broker id, expected {own}, but received {name}")


def parse_id(name: str, word: str) -> int:
    """Return the id in a resource's name; raise InvalidRequest, whose text begins with ``word``."""
    if _ID.fullmatch(name) and -_ID_END <= (number := int(name)) < _ID_END:
        return number
    raise InvalidRequest(f"{word} id must be an integer, but it is: {name}")


def resources_of(request: AlteringRequest) -> list[ResourceName]:
    """Return the resources of a request, in order."""
    return [_name(resource) for resource in request.resources]


def add_results(results: list[Result], others: Iterable[Result], order: list[ResourceName]) -> None:
    """Add the results for resources that were answered earlier, in the request's order."""
    positions: dict[ResourceName, int] = {}
    for position, name in enumerate(order):
        positions.setdefault(name, position)
    results += others
    results.sort(key=lambda result: positions[_name(result)])


def _name(item: ConfigResource) -> ResourceName:
    return item.resource_type, item.resource_name
