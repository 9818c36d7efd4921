"""Mistakes that applications often make with Kafka, each of which SHOP_BUG=NAME plants in the shop.

Every branch on :func:`has_bug` shows the mistake beside the right way.
"""

import os

BUGS = {
    "commit-before-processing": "an order is lost if the process crashes while it charges it",
    "poison-loop": "one order that cannot be read ends the process, at each start again",
    "rebalance-double-processing": "orders are charged again when a second process joins",
    "retry-duplicate": "an order is written twice if the broker's response is lost",
    "sent-before-acknowledged": "an order is never written if the process crashes in an outage",
    "offsets-outside-transaction": "a process that hung for a while writes invoices once more",
    "abort-without-rewind": "the orders of an aborted transaction get no invoice",
}


def has_bug(name: str) -> bool:
    """Return whether a bug is planted."""
    assert name in BUGS, name
    return os.environ.get("SHOP_BUG") == name
