"""Tracks the partitions of a connection's fetch session (KIP-227), for faults. Pure.

A Fetch in a session names only the partitions that have changed, but fetches all of them. Rule: a
session belongs to the connection that began it, as with Kafka's clients; if a session continues on
another connection, only the partitions named there are considered.
"""

import attrs

from kwire.codec.frame import Body
from kwire.testing.faults import Subjects
from kwire.testing.request_bodies import TopicName

_NEW_SESSION = (0, -1)
"""The epochs of a request that names all its partitions."""


@attrs.define(eq=False, repr=False)
class FetchedPartitions:
    """The partitions that the newest Fetch of a connection fetches."""

    partitions: set[tuple[str | bytes, int]] = attrs.field(factory=set)
    """Topics as the client names them, by name or by id, with the index of a partition."""

    def follow(self, request: Body) -> None:
        """Update the partitions from a Fetch request."""
        if request.session_epoch in _NEW_SESSION:
            self.partitions.clear()
        for topic in request.topics:
            name = topic.topic or topic.topic_id
            self.partitions |= {(name, each.partition) for each in topic.partitions}
        for topic in request.forgotten_topics_data:
            name = topic.topic or topic.topic_id
            self.partitions -= {(name, index) for index in topic.partitions}

    def subjects(self, topic_name: TopicName) -> Subjects:
        """Return the partitions by the names of their topics."""
        named = (
            (topic if isinstance(topic, str) else topic_name(topic), index)
            for topic, index in self.partitions
        )
        return Subjects(frozenset((topic, index) for topic, index in named if topic is not None))
