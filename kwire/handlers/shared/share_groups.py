"""Checks whether this cluster serves share groups (KIP-932)."""

from typing import Final

from kwire.errors import UnsupportedVersion
from kwire.handlers.shared.context import Context

_FEATURE: Final = "share.version"


def check_enabled(context: Context) -> None:
    """Reject a request if `share.version` is 0."""
    if not context.image.features.get(_FEATURE, 0):
        raise UnsupportedVersion
