"""The names of share partitions."""

from typing import NamedTuple

from kwire.types import uuid_text


class SharePartition(NamedTuple):
    """A partition of a topic, as consumed by one share group."""

    group_id: str
    topic_id: bytes
    partition: int

    @property
    def key(self) -> str:
        """The key whose hash selects the coordinator."""
        return f"{self.group_id}:{uuid_text(self.topic_id)}:{self.partition}"
