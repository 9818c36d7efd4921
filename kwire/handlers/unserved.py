"""The APIs that no handler serves yet, each with its reason.

All other APIs of :mod:`kwire.codec.apis` are served; docs/protocol.md shows both.
"""

from typing import Final

_LATER: Final = "not in Kafka 4.3"

UNSERVED: Final = {
    93: _LATER,  # StreamsGroupTopologyDescriptionUpdate
    94: _LATER,  # UnregisterController
}
"""The reason by API key."""
