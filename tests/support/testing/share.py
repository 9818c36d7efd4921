"""A member of a share group of a test broker, which fetches from partition 0 of one topic."""

import time
import uuid

import attrs

from kwire.codec.messages.find_coordinator import FindCoordinatorRequest
from kwire.codec.messages.metadata import MetadataRequest
from kwire.codec.messages.share_fetch import ShareFetchRequest
from kwire.codec.messages.share_group_heartbeat import ShareGroupHeartbeatRequest
from kwire.testing.wire import WireClient

PATIENCE_S = 60


@attrs.define
class ShareMember:
    """A member of a share group, with a share session."""

    client: WireClient
    group: str
    topic: str
    id: str = attrs.field(factory=lambda: str(uuid.uuid4()))
    member_epoch: int = 0
    session_epoch: int = 0

    def join(self) -> None:
        """Join the group, and wait until the member has the partition."""
        deadline = time.monotonic() + PATIENCE_S
        while not self._heartbeat():
            assert time.monotonic() < deadline
            time.sleep(0.01)

    def _heartbeat(self) -> bool:
        """Send a heartbeat; return whether it brought an assignment with partitions."""
        request = FindCoordinatorRequest(key_type=0, coordinator_keys=[self.group])
        self.client.call(request, 4)
        response = self.client.call(
            ShareGroupHeartbeatRequest(
                group_id=self.group,
                member_id=self.id,
                member_epoch=self.member_epoch,
                subscribed_topic_names=None if self.member_epoch else [self.topic],
            ),
            1,
        )
        if response.error_code:
            return False
        self.member_epoch = response.member_epoch
        return response.assignment is not None and bool(response.assignment.topic_partitions)

    def fetch(self) -> list[tuple[int, int]]:
        """Return the offsets of the records that the member got, with their delivery counts."""
        topics = self.client.call(MetadataRequest(topics=None), 12).topics
        (topic_id,) = [each.topic_id for each in topics if each.name == self.topic]
        shape = ShareFetchRequest.FetchTopic
        partition = shape.FetchPartition(partition_index=0, acknowledgement_batches=[])
        named = shape(topic_id=topic_id, partitions=[partition])
        response = self.client.call(
            ShareFetchRequest(
                group_id=self.group,
                member_id=self.id,
                share_session_epoch=self.session_epoch,
                topics=[] if self.session_epoch else [named],
                max_wait_ms=0,
                min_bytes=1,
                max_records=500,
                batch_size=500,
            ),
            2,
        )
        if not response.error_code:
            self.session_epoch += 1
        return [
            (offset, acquired.delivery_count)
            for answer in response.responses
            for row in answer.partitions
            for acquired in row.acquired_records
            for offset in range(acquired.first_offset, acquired.last_offset + 1)
        ]

    def wait_records(self) -> list[tuple[int, int]]:
        """Fetch until there are records."""
        deadline = time.monotonic() + PATIENCE_S
        while not (records := self.fetch()):
            assert time.monotonic() < deadline
            time.sleep(0.01)
        return records
