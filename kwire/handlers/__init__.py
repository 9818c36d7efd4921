"""The APIs that a node serves, by kind of listener.

An API is served in all its stable versions and on the listeners that :mod:`kwire.codec.apis` gives,
unless :mod:`kwire.handlers.unserved` says why not.  ApiVersions and docs/protocol.md are computed
from this.  Its handler is the function of the API's name in the module of that name; the module is
imported at the first request, so a fresh broker loads only what its clients use.
"""

from typing import Final

from kwire.codec.apis import APIS, Api, ListenerType
from kwire.handlers.unserved import UNSERVED

SERVED: Final = tuple(api for api in APIS if api.key not in UNSERVED)

_CONTROLLERS_OWN: Final = {"fetch": "fetch_metadata_log"}
"""The handlers of a controller's listener where a broker's listener has another one."""


def served_on(listener_type: ListenerType) -> dict[int, Api]:
    """Return the APIs that one kind of listener serves, by key."""
    return {api.key: api for api in SERVED if listener_type in api.listener_types}


def handler_name(api: Api, listener_type: ListenerType) -> str:
    """Return the name of the handler's module in this package, and of the handler in it."""
    if listener_type is ListenerType.CONTROLLER:
        return _CONTROLLERS_OWN.get(api.module, api.module)
    return api.module
