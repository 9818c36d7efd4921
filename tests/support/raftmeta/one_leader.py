"""A quorum of one node that always leads, and an active controller on it."""

from collections.abc import Callable
from typing import Any

from kwire.raftmeta.commits import Commit
from kwire.raftmeta.controller.controller import Controller
from kwire.raftmeta.controller.state import ControllerState
from kwire.raftmeta.delivery import LeaderAndEpoch
from kwire.raftmeta.metadata.publisher import MetadataPublisher
from simulation.raft.quorums import TestClock
from tests.support.raftmeta.clusters import CLUSTER, Cluster


class OneLeader:
    """A quorum that commits at once, or else only when the test does it."""

    is_alone = False

    def __init__(self, *, at_once: bool = False) -> None:
        self.next_offset = 0
        self.at_once = at_once
        self.commits: list[Commit] = []
        self.written: list[Any] = []
        self.voters_listeners: list[Callable[[], None]] = []

    def add_record_listener(self, listener: Any) -> None:
        """Ignore the listener: it gets no notifications."""

    add_leadership_listener = add_record_listener

    def may_be_replaced(self, now: float) -> bool:
        """Return False: there is no other voter."""
        return False

    def append_nowait(self, records: Any, epoch: int, level: int, packed: object = None) -> Commit:
        del level
        last = self.next_offset + len(records) - 1
        self.commits.append(Commit(self.next_offset, last, epoch))
        self.next_offset = last + 1
        self.written += records
        if self.at_once:
            self.commits[-1].complete()
        return self.commits[-1]


def active_controller(quorum: OneLeader, cluster: Cluster) -> Controller:
    """Return an active controller with the image of ``cluster``."""
    publisher = MetadataPublisher()
    publisher._loader.image = cluster.state.image
    state = ControllerState(
        config=cluster.state.config, random=cluster.state.random, cluster_id=CLUSTER
    )
    quorum.next_offset = cluster.state.next_offset
    as_quorum: Any = quorum
    controller = Controller(as_quorum, publisher, state, TestClock())
    controller.on_leadership(LeaderAndEpoch(1, 5, is_active=True))
    return controller
