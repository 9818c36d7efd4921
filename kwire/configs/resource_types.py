"""The numbers of config resource types, in requests and in metadata records."""

from typing import Final

TOPIC: Final = 2
BROKER: Final = 4
"""One broker, by its id, or all brokers, by an empty name."""
BROKER_LOGGER: Final = 8
CLIENT_METRICS: Final = 16
GROUP: Final = 32
