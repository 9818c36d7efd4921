"""The broker's settings for the metrics that clients push (KIP-714), a part of its table."""

from importlib.util import find_spec
from typing import Final

from kwire.configs.declare import Config, ConfigError, integer

_MODULES: Final = ("opentelemetry.proto.metrics.v1", "google.protobuf", "re2")


class TelemetryConfig(Config):
    """The settings for receiving client metrics."""

    # fmt: off
    kwire_client_metrics_max_series = integer(
        0, "How many series of the clients' own metrics the metrics page shows; 0: clients are not "
        "asked for any.", low=0, internal=True)
    telemetry_max_bytes = integer(
        1_048_576, "The most bytes that a client pushes at once, packed or unpacked.", low=1)
    # fmt: on


def check_telemetry(config: TelemetryConfig) -> None:
    """Reject settings that enable client metrics if a required package is missing."""
    if config.kwire_client_metrics_max_series and not all(map(_is_installed, _MODULES)):
        raise ConfigError(
            f"{TelemetryConfig.kwire_client_metrics_max_series.name} is set, but reading the "
            "metrics of clients needs the packages opentelemetry-proto and google-re2; install "
            "kwire[telemetry]"
        )


def _is_installed(module: str) -> bool:
    try:
        return find_spec(module) is not None
    except ModuleNotFoundError:  # from the package that contains the module
        return False
