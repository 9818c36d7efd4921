"""The settings of a client-metrics subscription (KIP-714), and the clients that it selects.

A pattern is a client attribute and a regular expression that must match its whole value. A client
has to match the patterns of all attributes; the last pattern for an attribute counts. The
expressions have RE2's syntax: unlike Java's, they match in linear time.
"""

from collections.abc import Mapping
from typing import Final

from kwire.configs.declare import Config, ConfigError, integer, strings
from kwire.errors import InvalidRequest
from kwire.regexes import BadExpression, Match, NoCompiler, compile_regex

ALL_METRICS: Final = "*"
DEFAULT_INTERVAL_MS: Final = 300_000
_INTERVALS_MS: Final = range(100, 3_600_001)
ATTRIBUTES: Final = (
    "client_instance_id",
    "client_id",
    "client_software_name",
    "client_software_version",
    "client_source_address",
    "client_source_port",
)


class ClientMetricsConfig(Config):
    """The settings of a client-metrics subscription: DescribeConfigs's CLIENT_METRICS resource."""

    # fmt: off
    interval_ms = integer(
        DEFAULT_INTERVAL_MS, "How often clients push their metrics, from 100 to 3600000.")
    match = strings((), "Which clients: attribute=regular expression; empty for all clients.")
    metrics = strings((), "Which metrics, by the beginnings of their names; * for all metrics.")
    # fmt: on


def check_client_metrics(settings: Mapping[str, str]) -> None:
    """Reject invalid settings of a subscription; raises ConfigError or InvalidRequest."""
    keys = ClientMetricsConfig.keys()
    for name in settings:
        if name not in keys:
            raise InvalidRequest(f"Unknown client metrics configuration: {name}")
    config = ClientMetricsConfig(settings)
    if config.interval_ms not in _INTERVALS_MS:
        raise InvalidRequest(
            f"Invalid value {config.interval_ms} for interval.ms, interval must be between "
            "100 and 3600000 (1 hour)"
        )
    parse_patterns(config.match)


def parse_patterns(patterns: tuple[str, ...]) -> dict[str, Match]:
    """Return the regular expressions of the setting ``match``, by attribute; raises ConfigError."""
    matches: dict[str, Match] = {}
    for pattern in patterns:
        parts = pattern.rstrip("=").split("=")
        attribute = parts[0].strip()
        if len(parts) != 2 or attribute not in ATTRIBUTES:
            raise ConfigError(f"Illegal client matching pattern: {pattern}")
        try:
            matches[attribute] = compile_regex(parts[1].strip())
        except NoCompiler as error:
            raise ConfigError(str(error)) from None
        except BadExpression:
            raise ConfigError(f"Illegal client matching pattern: {pattern}") from None
    return matches
