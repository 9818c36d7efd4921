"""The coordinator of a transactional id or share partition."""

from __future__ import annotations

from compat_tests.cluster.nodes import Cluster, Node
from compat_tests.harness.wait import eventually
from kwire.codec.messages.find_coordinator import FindCoordinatorRequest
from kwire.testing.wire import Closed


def coordinator(cluster: Cluster, name: str, kind: int = 1) -> Node:
    """Wait for a coordinator and return its node."""

    def find() -> int | None:
        request = FindCoordinatorRequest(key_type=kind, coordinator_keys=[name])
        try:
            with cluster.living[0].client() as client:
                (answer,) = client.call(request, 6).coordinators
        except (OSError, Closed):
            return None  # It has just been started.
        return None if answer.error_code else answer.node_id

    node_id = eventually(find, lambda: f"a coordinator: {cluster.tails()}")
    assert node_id is not None
    return cluster.nodes[node_id]
