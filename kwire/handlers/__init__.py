"""The APIs that a node serves, by kind of listener.

All stable versions of an API are served, on the listeners that :mod:`kwire.codec.apis` lists,
unless :mod:`kwire.handlers.unserved` gives a reason. ApiVersions and docs/protocol.md are computed
from this. An API's handler is the function with the API's name in the module of that name. The
module is imported at the first request, so a fresh broker loads only what its clients use.
"""

from typing import Final

from kwire.codec.apis import APIS, Api, ListenerType
from kwire.handlers.unserved import UNSERVED

SERVED: Final = tuple(api for api in APIS if api.key not in UNSERVED)

_CONTROLLERS_OWN: Final = {"fetch": "fetch_metadata_log"}
"""The handlers of a controller's listener that differ from those of a broker's listener."""


def served_on(listener_type: ListenerType, has_telemetry: bool = False) -> dict[int, Api]:
    """Return the APIs that one kind of listener serves, by key.

    ``has_telemetry``: the node collects clients' metrics. Only then does it serve the APIs for
    that, which Kafka does not advertise by default.
    """
    return {
        api.key: api
        for api in SERVED
        if listener_type in api.listener_types and (has_telemetry or api.advertised is not None)
    }


def handler_name(api: Api, listener_type: ListenerType) -> str:
    """Return the name of the handler, which is also the name of its module in this package."""
    if listener_type is ListenerType.CONTROLLER:
        return _CONTROLLERS_OWN.get(api.module, api.module)
    return api.module
