"""Topics that a client's Metadata request or a coordinator creates on first use."""

import logging
from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Final

import attrs
import trio

from kwire import errors
from kwire.raftmeta.controller.active_controller import ActiveController
from kwire.raftmeta.controller.mutation_quota import Requester
from kwire.raftmeta.metadata.internal_topics import REPLICATION_FACTORS, creatable
from kwire.raftmeta.metadata.publisher import MetadataPublisher

if TYPE_CHECKING:
    from kwire.codec.messages.create_topics import CreateTopicsRequest, CreateTopicsResponse

    Topic = CreateTopicsRequest.CreatableTopic
    Created = CreateTopicsResponse.CreatableTopicResult

logger = logging.getLogger(__name__)

FOLLOW_SECONDS: Final = 5.0
"""Seconds to wait until this node knows a topic that another controller created."""


@attrs.define(eq=False, repr=False)
class AutoTopicCreation:
    """The topic creations on first use that this node requests from the active controller."""

    active: ActiveController
    publisher: MetadataPublisher
    _creating: dict[str, trio.Event] = attrs.field(factory=dict)
    """Topics being created, each with the event that is set when its creation ends."""
    _refusals: dict[str, str | None] = attrs.field(factory=dict)
    """The last logged reason why each topic was not created."""

    async def ensure_topics(
        self, names: Sequence[str], requester: Requester | None = None
    ) -> "dict[str, Created]":
        """Create topics on first use and return the results; existing topics are left out.

        Internal topics get their own settings. Concurrent requests for a topic share one creation,
        which is charged to the first requester, or to this broker.
        """

        def creatable_of(name: str) -> "Topic":
            return creatable(name, self.active.local.state.cluster_config())

        return await self.create(names, creatable_of, requester)

    async def create(
        self,
        names: Sequence[str],
        creatable_of: "Callable[[str], Topic]",
        requester: Requester | None = None,
    ) -> "dict[str, Created]":
        """Create topics like :meth:`ensure_topics`, each with the request from ``creatable_of``."""
        while under_way := [self._creating[name] for name in names if name in self._creating]:
            await under_way[0].wait()
        applied = self.publisher.applied
        missing = [name for name in dict.fromkeys(names) if applied.topic(name) is None]
        if not missing:
            return {}
        from kwire.codec.messages.create_topics import CreateTopicsRequest
        from kwire.raftmeta.controller.topics import decide_create_topics

        controller = self.active.local
        config = controller.state.cluster_config()
        done = trio.Event()
        self._creating.update(dict.fromkeys(missing, done))
        try:
            topics = [creatable_of(name) for name in missing]
            request = CreateTopicsRequest(topics=topics, timeout_ms=30_000)
            broker = Requester(("User", "ANONYMOUS"), str(config.node_id))
            permit = controller.permit(requester or broker, strict=True)
            response = await self.active.call(
                partial(decide_create_topics, permit=permit), request, requester
            )
        finally:
            for name in missing:
                del self._creating[name]
            done.set()
        exists = errors.TopicAlreadyExists.code
        await self._wait_visible(
            [topic.name for topic in response.topics if topic.error_code in (errors.NONE, exists)]
        )
        return {topic.name: topic for topic in response.topics if topic.error_code != exists}

    async def ensure_topic(self, name: str) -> "Created | None":
        """Create one topic on first use; None if it already exists."""
        topic = (await self.ensure_topics([name])).get(name)
        reason = None if topic is None or topic.error_code == errors.NONE else topic.error_message
        if reason is not None and reason != self._refusals.get(name):
            logger.warning("topic not created topic=%s reason=%s%s", name, reason, _remedy(topic))
        self._refusals[name] = reason
        return topic

    async def _wait_visible(self, names: Sequence[str]) -> None:
        """Wait until this node knows new topics, at most :data:`FOLLOW_SECONDS`."""
        with trio.move_on_after(FOLLOW_SECONDS):
            await self.publisher.wait_for(
                lambda image: all(name in image.topic_ids for name in names)
            )


def _remedy(topic: "Created | None") -> str:
    """Return what the operator can do, to append to the reason; empty if that is not known."""
    if topic is None or topic.error_code != errors.InvalidReplicationFactor.code:
        return ""
    setting = REPLICATION_FACTORS.get(topic.name, "default.replication.factor")
    return f" Start more brokers, or lower {setting}."
