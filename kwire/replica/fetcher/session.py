"""A follower's fetch session with one leader (KIP-227): requests name only what has changed.

Pure state. Rules:

* The first request names all partitions and opens a session, if the leader has room for one. Later
  requests name the partitions whose position changed since the last request, and the partitions to
  remove from the session.
* After any failure the next request names all partitions again and closes the old session.
* The cost of a request grows with the changes since the last one, not with the partitions.
"""

from collections.abc import Collection, Generator
from typing import Final, NamedTuple

import attrs

from kwire.codec.messages.fetch import FetchRequest
from kwire.replica.fetch_sessions import INITIAL_EPOCH, NO_SESSION
from kwire.types import TopicIdPartition

Topic = FetchRequest.FetchTopic
FetchPartition = Topic.FetchPartition
ForgottenTopic = FetchRequest.ForgottenTopic

_EPOCH_MAX: Final = 0x7FFFFFFF

Key = TopicIdPartition


class Position(NamedTuple):
    """The follower's log end, and the other fields of a fetch that the leader checks."""

    fetch_offset: int
    leader_epoch: int
    """The leader epoch that this broker knows; the leader rejects any other."""
    last_fetched_epoch: int
    """The epoch of the last record, -1 for an empty log; the leader compares it with its log."""
    log_start: int


class SessionPart(NamedTuple):
    """The fields of a request that concern the session."""

    session_id: int
    session_epoch: int
    topics: list[Topic]
    removed: list[ForgottenTopic]


@attrs.define(eq=False, repr=False)
class FetcherSession:
    """The partitions that a follower fetches from one leader, and those that its session holds."""

    partition_max_bytes: int
    positions: dict[Key, Position] = attrs.field(factory=dict)
    """All partitions to fetch."""
    _id: int = NO_SESSION
    _epoch: int = INITIAL_EPOCH
    _changed: dict[Key, None] = attrs.field(factory=dict)
    """Partitions to name in the next request of the session."""
    _removed: dict[Key, None] = attrs.field(factory=dict)
    """Partitions that the next request removes from the session."""
    _sent: set[Key] = attrs.field(factory=set)
    """The partitions that the leader's side of the session holds."""

    def set(self, key: Key, position: Position) -> None:
        """Fetch a partition from this position.

        The partition moves to the end of the order in which a full request names partitions, so
        that partitions that fill the responses do not starve the others.
        """
        if self.positions.get(key) != position:
            self.positions.pop(key, None)
            self.positions[key] = position
            self._changed[key] = None
            self._removed.pop(key, None)

    def remove(self, key: Key) -> None:
        """Stop fetching a partition."""
        if self.positions.pop(key, None) is not None:
            self._changed.pop(key, None)
            if key in self._sent:
                self._removed[key] = None

    def next_request(self) -> Generator[None, None, SessionPart]:
        """Build the session fields of the next request, pausing after each partition.

        Partitions may be removed during the pauses; the following request then removes them.
        """
        removed: dict[Key, None] = {}
        keys: Collection[Key]
        if self._epoch == INITIAL_EPOCH:
            keys = list(self.positions)
            self._sent = set(keys)
        else:
            keys, removed = self._changed, self._removed
            self._sent.update(keys)
            self._sent.difference_update(removed)
        self._changed, self._removed = {}, {}
        topics = yield from self._topics(keys)
        left_out = yield from _left_out(removed)
        return SessionPart(self._id, self._epoch, topics, left_out)

    def on_response(self, session_id: int) -> None:
        """Advance the session after a successful response, or drop it if ``session_id`` is 0."""
        if session_id == NO_SESSION:
            self.reset()
            self._id = NO_SESSION
        else:
            self._id = session_id
            self._epoch = 1 if self._epoch == _EPOCH_MAX else self._epoch + 1

    def reset(self) -> None:
        """Make the next request a full one, which closes the session and opens a new one."""
        self._epoch = INITIAL_EPOCH
        self._changed, self._removed = {}, {}

    def _topics(self, keys: Collection[Key]) -> Generator[None, None, list[Topic]]:
        """Build the request's topics from these partitions."""
        topics: dict[bytes, Topic] = {}
        for key in keys:
            topic_id, index = key
            position = self.positions.get(key)
            if position is None:
                continue
            topic = topics.get(topic_id)
            if topic is None:
                topic = topics[topic_id] = Topic(topic_id=topic_id)
            topic.partitions.append(
                FetchPartition(
                    partition=index,
                    current_leader_epoch=position.leader_epoch,
                    fetch_offset=position.fetch_offset,
                    last_fetched_epoch=position.last_fetched_epoch,
                    log_start_offset=position.log_start,
                    partition_max_bytes=self.partition_max_bytes,
                )
            )
            yield
        return list(topics.values())


def _left_out(keys: Collection[Key]) -> Generator[None, None, list[ForgottenTopic]]:
    topics: dict[bytes, ForgottenTopic] = {}
    for topic_id, index in keys:
        topic = topics.setdefault(topic_id, ForgottenTopic(topic_id=topic_id))
        topic.partitions.append(index)
        yield
    return list(topics.values())
