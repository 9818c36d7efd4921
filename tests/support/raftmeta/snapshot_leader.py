"""A leader whose snapshot replaces most of its log."""

from typing import TYPE_CHECKING

import attrs
import trio

from kwire.codec.messages.fetch import FetchRequest
from kwire.codec.messages.fetch_snapshot import FetchSnapshotRequest
from kwire.raftmeta.raft import messages
from kwire.raftmeta.raft.log_state import NeedsSnapshot, SnapshotId
from kwire.raftmeta.raft.voters import Node
from tests.support.raftmeta.one_node import follower

if TYPE_CHECKING:
    from kwire.raftmeta.raft.events import OwnRequest, RaftResponse


@attrs.define(eq=False)
class LeaderOfMany:
    """Node 1, the leader: gives ``log``, then a snapshot of much more, then nothing new."""

    log: bytes
    end_offset: int
    later: SnapshotId
    content: bytes

    async def call(self, node: Node, request: "OwnRequest") -> "RaftResponse | None":
        await trio.lowlevel.checkpoint()
        state = follower(2, of=1, epoch=1).state
        if isinstance(request, FetchSnapshotRequest):
            response = messages.snapshot_response(state, self.later, piece=self.content)
            response.topics[0].partitions[0].size = len(self.content)
            return response
        if not isinstance(request, FetchRequest) or node.id != 1:
            return None
        offset = request.topics[0].partitions[0].fetch_offset
        if offset == self.later.end_offset:
            await trio.sleep_forever()
        place = NeedsSnapshot(self.later) if offset else None
        answer = messages.fetch_response(
            state, records=b"" if offset else self.log, validation=place
        )
        answer.responses[0].partitions[0].high_watermark = self.end_offset
        return answer
