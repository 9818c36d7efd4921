"""Checks whether this cluster serves groups of a kind, which a feature enables.

For consumer and streams groups, this broker must serve the protocol too.
"""

from kwire.errors import UnsupportedVersion
from kwire.handlers.shared.context import Context


def check_consumer_groups(context: Context) -> None:
    """Reject a request about consumer groups (KIP-848) that are not served."""
    protocols = context.config.group_coordinator_rebalance_protocols
    if "consumer" not in protocols or not context.image.features.get("group.version", 0):
        raise UnsupportedVersion


def check_share_groups(context: Context) -> None:
    """Reject a request about share groups (KIP-932) that are not served."""
    if not context.image.features.get("share.version", 0):
        raise UnsupportedVersion


def check_streams_groups(context: Context) -> None:
    """Reject a request about streams groups (KIP-1071) that are not served."""
    protocols = context.config.group_coordinator_rebalance_protocols
    if "streams" not in protocols or not context.image.features.get("streams.version", 0):
        raise UnsupportedVersion
