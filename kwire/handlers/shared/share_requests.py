"""The checks and acknowledgements shared by ShareFetch and ShareAcknowledge."""

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Final, TypeAlias

from kwire.codec.messages.share_acknowledge import ShareAcknowledgeRequest
from kwire.codec.messages.share_fetch import ShareFetchRequest
from kwire.drive import run_together
from kwire.errors import (
    InvalidRequest,
    KafkaError,
    TopicAuthorizationFailed,
    UnknownTopicId,
    UnknownTopicOrPartition,
    UnsupportedVersion,
)
from kwire.handlers.shared.context import Context
from kwire.handlers.shared.served_groups import check_share_groups
from kwire.share.in_flight import REJECT, RENEW, Acknowledgement
from kwire.share.keys import SharePartition
from kwire.share.sessions import Ref, SessionKey
from kwire.share.share_partitions import ShareService

_MEMBER_ID_MAX: Final = 36

Errors: TypeAlias = dict[Ref, KafkaError | None]
"""The result of each partition: an error or success."""
_Batch: TypeAlias = (
    ShareFetchRequest.FetchTopic.FetchPartition.AcknowledgementBatch
    | ShareAcknowledgeRequest.AcknowledgeTopic.AcknowledgePartition.AcknowledgementBatch
)


def share_service(context: Context) -> ShareService:
    """Return the broker's share partitions, unless the cluster does not serve share groups."""
    share = context.broker.share
    if share is None:
        raise UnsupportedVersion
    check_share_groups(context)
    return share()


def check_request(context: Context, group_id: str | None, member_id: str | None) -> SessionKey:
    """Return the session's key, or raise the error that answers the whole request."""
    if group_id is None:
        raise InvalidRequest("Invalid group id in the request.")
    context.check_allowed("Read", "Group", group_id)
    if not member_id or len(member_id) > _MEMBER_ID_MAX:
        raise InvalidRequest("Invalid member id in the request.")
    return SessionKey(group_id, member_id)


def check_partition(context: Context, ref: Ref) -> None:
    """Raise an error unless the client may read the partition, and it exists."""
    topic = context.image.topics.get(ref[0])
    if topic is None:
        raise UnknownTopicId
    if not context.is_allowed("Read", "Topic", topic.name):
        raise TopicAuthorizationFailed
    if ref[1] not in topic.partitions:
        raise UnknownTopicOrPartition


def acknowledgements_of(batches: Sequence[_Batch], *, may_renew: bool) -> list[Acknowledgement]:
    """Return a partition's acknowledgements; raises InvalidRequest.

    ``may_renew``: the request declares that it renews locks.
    """
    end = -1
    acknowledgements = []
    for batch in batches:
        types, count = batch.acknowledge_types, batch.last_offset - batch.first_offset + 1
        if count <= 0 or batch.first_offset < end or len(types) not in (1, count):
            raise InvalidRequest
        if min(types) < 0 or max(types) > (RENEW if may_renew else REJECT):
            raise InvalidRequest
        end = batch.last_offset
        acknowledgements.append(Acknowledgement(batch.first_offset, batch.last_offset, types))
    return acknowledgements


async def acknowledge(
    context: Context,
    service: ShareService,
    key: SessionKey,
    batches: Mapping[Ref, Sequence[_Batch]],
    *,
    may_renew: bool,
) -> Errors:
    """Acknowledge records of several partitions; return the results."""

    async def acknowledge_one(ref: Ref, batches: Sequence[_Batch]) -> KafkaError | None:
        try:
            check_partition(context, ref)
            acknowledgements = acknowledgements_of(batches, may_renew=may_renew)
            of = SharePartition(key.group_id, *ref)
            await service.acknowledge(of, key.member_id, acknowledgements)
        except KafkaError as error:
            return error
        return None

    calls = [partial(acknowledge_one, ref, each) for ref, each in batches.items()]
    return dict(zip(batches, await run_together(calls), strict=True)) if calls else {}
