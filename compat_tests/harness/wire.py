"""Connections of tests that send each request themselves."""

from __future__ import annotations

from compat_tests.harness.wait import eventually
from kwire.codec.messages.find_coordinator import FindCoordinatorRequest
from kwire.testing.wire import WireClient

GROUP = 0
"""The type of a key that is a group's id."""


def connect(address: str) -> WireClient:
    """Connect to the first broker of an address."""
    host, port = address.partition(",")[0].rsplit(":", 1)
    return WireClient(host, int(port))


def connect_to_coordinator(address: str, group: str) -> WireClient:
    """Connect to the coordinator of a group, once there is one."""
    request = FindCoordinatorRequest(key_type=GROUP, coordinator_keys=[group])
    with connect(address) as client:

        def find() -> tuple[str, int] | None:
            (coordinator,) = client.call(request, 4).coordinators
            return None if coordinator.error_code else (coordinator.host, coordinator.port)

        return WireClient(*eventually(find, f"a coordinator of {group}"))
