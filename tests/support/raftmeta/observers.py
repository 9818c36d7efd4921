"""A leader that holds the Fetches of many observers."""

from typing import Any

from kwire.raftmeta.raft.events import Received
from kwire.raftmeta.raft.raft import Raft
from tests.support.raftmeta.one_node import dynamic, fetch, leader, say

OBSERVERS = 1000


def fetch_of(node_id: int, raft: Raft) -> Any:
    """The Fetch of a replica that has everything and knows it to be committed."""
    state = raft.state
    end, epoch = state.log.end_offset, state.log.last_epoch
    request = fetch(node_id, epoch=state.epoch, offset=end, last_epoch=epoch)
    request.topics[0].partitions[0].high_watermark = state.high_watermark or -1
    return request


def with_observers(count: int = OBSERVERS) -> Raft:
    """Node 1 leads voters 1 and 2, has committed all, and holds one Fetch of each observer."""
    raft = leader(voters=dynamic(1, 2), kraft_version=1)
    say(raft, fetch_of(2, raft))
    for node_id in range(100, 100 + count):
        raft.step(Received(node_id, fetch_of(node_id, raft)), 0.3, 0)
    raft.step(Received(2, fetch_of(2, raft)), 0.3, 0)
    return raft
