"""Checks whether this cluster serves consumer groups (KIP-848)."""

from typing import Final

from kwire.errors import UnsupportedVersion
from kwire.handlers.shared.context import Context

_FEATURE: Final = "group.version"
_PROTOCOL: Final = "consumer"


def check_enabled(context: Context) -> None:
    """Reject a request if `group.version` is 0, or this broker does not serve the protocol."""
    protocols = context.config.group_coordinator_rebalance_protocols
    if _PROTOCOL not in protocols or not context.image.features.get(_FEATURE, 0):
        raise UnsupportedVersion
