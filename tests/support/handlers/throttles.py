"""The metrics about clients that a quota delays."""

from typing import Any

from kwire.metrics import QUOTA_THROTTLE_SECONDS, QUOTA_THROTTLED, Metrics


def throttles(metrics: Metrics, quota: str) -> Any:
    """Return how many answers or connections a quota has delayed, and by how much in seconds.

    The pair is compared with approximate numbers.
    """
    return (
        metrics.cell(QUOTA_THROTTLED, quota).value,
        metrics.cell(QUOTA_THROTTLE_SECONDS, quota).value,
    )
