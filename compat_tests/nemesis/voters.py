"""Faults of the voters of the metadata quorum, where these can be changed (KIP-853).

Rules: one voter at a time is removed, and is added again at the latest when all else is healed; so
the others can always form a majority. No client library has these requests, so they are kwire's.
"""

from __future__ import annotations

import re
import shutil
from collections.abc import Callable, Sequence
from typing import Any, Final

import attrs

from compat_tests.cluster.nodes import Cluster, Node
from compat_tests.harness.wait import eventually
from compat_tests.nemesis.directories import data, log_directories
from compat_tests.nemesis.faults import REPLACED, End, Nemesis
from compat_tests.nemesis.group_clients import ask
from kwire.codec.messages.add_raft_voter import AddRaftVoterRequest
from kwire.codec.messages.describe_quorum import DescribeQuorumRequest
from kwire.codec.messages.remove_raft_voter import RemoveRaftVoterRequest
from kwire.codec.schema import Request
from kwire.errors import BrokerNotAvailable, DuplicateVoter, VoterNotFound, error_class
from kwire.types import METADATA_TOPIC, uuid_bytes

CALL_SECONDS: Final = 10.0
HEAL_SECONDS: Final = 60.0
PASSING: Final = {DuplicateVoter.code, VoterNotFound.code, BrokerNotAvailable.code}
"""Errors if an earlier request without an answer took effect, beside those that may pass."""


Voter = tuple[int, bytes]
"""A node and its directory, by their ids: a node with another disk is another voter."""


def voters(cluster: Cluster) -> set[Voter]:
    """Return the voters as the active controller has them; empty without one."""
    topic = DescribeQuorumRequest.TopicData
    partition = topic.PartitionData(partition_index=0)
    request = DescribeQuorumRequest(
        topics=[topic(topic_name=METADATA_TOPIC, partitions=[partition])]
    )
    for node in cluster.brokers:
        answer = ask(node.address, request, 2)
        if answer is None:
            continue
        for described in (p for topic in answer.topics for p in topic.partitions):
            if not described.error_code:
                return {(v.replica_id, v.replica_directory_id) for v in described.current_voters}
    return set()


@attrs.define(eq=False)
class VoterChanges:
    """The faults of voters; ``problems`` has what went wrong."""

    nemesis: Nemesis
    directories: int = 1
    """The number of log directories of each node."""
    features: Sequence[str] = ()
    """The features that are off where a new disk is formatted."""
    problems: list[str] = attrs.field(factory=list)
    _removed: Node | None = None
    """The voter that is to be added again."""

    def faults(self) -> dict[str, Callable[[], End]]:
        faults = {"removed voter": self._remove, "removed dead voter": self._remove_dead}
        if any(not node.is_broker for node in self.nemesis.cluster.controllers):
            faults[REPLACED] = self._replace
        return faults

    def heal(self) -> None:
        """Correct the voters; a removal without an answer may have come late."""
        eventually(
            self._are_correct,
            lambda: f"all controllers are voters again: {voters(self.nemesis.cluster)}",
            HEAL_SECONDS,
        )
        self._removed = None

    def _are_correct(self) -> bool:
        """Whether the controllers with their present disks are the voters; else correct them."""
        controllers = {(n.id, self._directory_id(n)): n for n in self.nemesis.cluster.controllers}
        present = voters(self.nemesis.cluster)
        for former in sorted(present - controllers.keys()):
            self._request_removal(former)
        for voter, node in controllers.items():
            if present and voter not in present:
                self._request_addition(node)
        return present == controllers.keys()

    def _draw(self) -> Node | None:
        """Draw a voter; None while another one is removed."""
        controllers = self.nemesis.cluster.controllers
        return None if self._removed else self.nemesis.random.choice(controllers)

    def _remove(self) -> End:
        node = self._draw()
        if node is None:
            return lambda: None
        self._removed = node
        answer = self._request_removal((node.id, self._directory_id(node)))
        self.nemesis.report(f"removed voter {node.id}: {answer}")

        def end() -> None:
            if self.nemesis.random.random() < 0.5:  # Else it is added when all is healed.
                self.nemesis.report(f"voter {node.id} added again: {self._request_addition(node)}")

        return end

    def _remove_dead(self) -> End:
        node = self._draw()
        if node is None:
            return lambda: None
        self.nemesis.bring_down(node)
        self._removed = node
        answer = self._request_removal((node.id, self._directory_id(node)))
        self.nemesis.report(f"removed dead voter {node.id}: {answer}")
        return lambda: self.nemesis.launch(node)

    def _replace(self) -> End:
        """Replace the disk of a controller that is no broker, and its voter by another one."""
        controllers = [n for n in self.nemesis.cluster.controllers if not n.is_broker]
        node = self.nemesis.random.choice(controllers)
        former = (node.id, self._directory_id(node))
        self.nemesis.bring_down(node)
        answer = self._request_removal(former)
        self.nemesis.report(f"{REPLACED} {node.id}: {answer}")
        shutil.rmtree(data(node))
        node.prepare("--no-initial-controllers", features=self.features)
        return lambda: self.nemesis.launch(node)

    def _request_removal(self, voter: Voter) -> int | None:
        node_id, directory_id = voter
        request = RemoveRaftVoterRequest(
            cluster_id=None, voter_id=node_id, voter_directory_id=directory_id
        )
        return self._call(request, 0)

    def _request_addition(self, node: Node) -> int | None:
        listener = AddRaftVoterRequest.Listener(
            name="CONTROLLER", host=node.host, port=node.controller_port
        )
        request = AddRaftVoterRequest(
            cluster_id=None,
            timeout_ms=int(CALL_SECONDS * 1000),
            voter_id=node.id,
            voter_directory_id=self._directory_id(node),
            listeners=[listener],
        )
        return self._call(request, 0)

    def _call(self, request: Request[Any], version: int) -> int | None:
        """Send a request to one or two brokers; return the error code, None without an answer."""
        brokers = [node for node in self.nemesis.cluster.brokers if node.alive]
        for node in self.nemesis.random.sample(brokers, len(brokers))[:2]:
            answer = ask(node.address, request, version, CALL_SECONDS)
            if answer is None:
                continue
            code = int(answer.error_code)
            if code and code not in PASSING and not error_class(code).retriable:
                name = error_class(code).__name__
                self.problems.append(f"{type(request).__name__}: {name} {answer.error_message}")
            return code
        return None

    def _directory_id(self, node: Node) -> bytes:
        path = log_directories(node, self.directories)[0] / "meta.properties"
        match = re.search(r"directory.id=(\S+)", path.read_text())
        assert match is not None
        return uuid_bytes(match[1])
