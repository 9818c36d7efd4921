"""The APIs that no handler serves yet, each with a reason.

All other APIs of :mod:`kwire.codec.apis` are served; docs/protocol.md shows both.
"""

from typing import Final

_TELEMETRY: Final = "not advertised without a receiver of client metrics, as in Kafka"
_LATER: Final = "not in Kafka 4.3"

UNSERVED: Final = {
    71: _TELEMETRY,  # GetTelemetrySubscriptions
    72: _TELEMETRY,  # PushTelemetry
    93: _LATER,  # StreamsGroupTopologyDescriptionUpdate
    94: _LATER,  # UnregisterController
}
"""The reason by API key."""
