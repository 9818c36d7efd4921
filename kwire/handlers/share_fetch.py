"""ShareFetch (API key 78): a member of a share group acquires records, and acknowledges others.

The acknowledgements come first, then :mod:`kwire.share.fetching` acquires records. A member lists
its partitions when its session begins, and later only changes. The first response of a session
contains all partitions; later responses contain only partitions with records, an error or an
acknowledgement.
"""

from collections.abc import Sequence
from functools import partial

from kwire.codec.messages.share_fetch import ShareFetchRequest, ShareFetchResponse
from kwire.errors import InvalidRequest, KafkaError, ShareSessionLimitReached
from kwire.handlers.shared.client_quotas import FETCHED
from kwire.handlers.shared.context import Context
from kwire.handlers.shared.handler import handles
from kwire.handlers.shared.leader_hints import add_leader_hint
from kwire.handlers.shared.share_requests import (
    Errors,
    acknowledge,
    check_partition,
    check_request,
    share_service,
)
from kwire.log.region import FileRegion
from kwire.share import fetching
from kwire.share.fetching import Options, Target
from kwire.share.sessions import FIRST_EPOCH, Ref, SessionKey, ShareSession

TopicAnswer = ShareFetchResponse.ShareFetchableTopicResponse
Answer = TopicAnswer.PartitionData
Batch = ShareFetchRequest.FetchTopic.FetchPartition.AcknowledgementBatch
_BY_RECORD = 1
"""The acquire mode in which the record limit is exact."""


def discard(response: ShareFetchResponse) -> None:
    """Close the files of a response that will not be sent."""
    for topic in response.responses:
        for partition in topic.partitions:
            if isinstance(partition.records, FileRegion):
                partition.records.close()


@handles(ShareFetchRequest, refused={"acquisition_lock_timeout_ms": 0}, discard=discard)
async def share_fetch(context: Context, request: ShareFetchRequest) -> ShareFetchResponse:
    service = share_service(context)
    key = check_request(context, request.group_id, request.member_id)
    if request.is_renew_ack and (
        request.max_bytes or request.min_bytes or request.max_records or request.max_wait_ms
    ):
        raise InvalidRequest("A request that renews locks cannot fetch records.")
    batches: dict[Ref, Sequence[Batch]] = {
        (topic.topic_id, partition.partition_index): partition.acknowledgement_batches
        for topic in request.topics
        for partition in topic.partitions
    }
    session = await _begin(context, request, key, batches)
    ended = service.sessions.find(key) if session is None else None
    acknowledged = {ref: each for ref, each in batches.items() if each}
    errors = await acknowledge(context, service, key, acknowledged, may_renew=request.is_renew_ack)
    answers: list[fetching.Answer] = []
    if ended is not None:
        await service.end_session(ended)
    elif session is not None and not request.is_renew_ack:
        answers = await _fetch(context, request, key, session)
    try:
        return _response(context, request, key, answers, errors)
    except BaseException:
        fetching.discard(answers)
        raise


async def _begin(
    context: Context,
    request: ShareFetchRequest,
    key: SessionKey,
    batches: dict[Ref, Sequence[Batch]],
) -> ShareSession | None:
    """Return the session of a request; None if the request ends the session.

    A client that gets no session waits before the answer, because it retries at once.
    """
    service = share_service(context)
    try:
        session = service.sessions.begin_fetch(
            key,
            request.share_session_epoch,
            batches,
            [
                (topic.topic_id, partition)
                for topic in request.forgotten_topics_data
                for partition in topic.partitions
            ],
            acknowledges=any(batches.values()),
            limit=context.config.group_share_max_share_sessions,
        )
    except ShareSessionLimitReached:
        await service.sleep(request.max_wait_ms / 1000)
        raise
    if request.share_session_epoch == FIRST_EPOCH and session is not None:
        on_closed = context.connection.on_closed
        on_closed[key] = partial(service.on_disconnected, session)
        session.on_ended = partial(on_closed.pop, key, None)
    return session


async def _fetch(
    context: Context, request: ShareFetchRequest, key: SessionKey, session: ShareSession
) -> list[fetching.Answer]:
    limit = context.byte_limit(FETCHED)
    max_bytes = min(request.max_bytes, context.config.fetch_max_bytes)
    if limit is not None:
        max_bytes = min(max_bytes, limit.available_bytes(context.replicas.now()))
    options = Options(
        group_id=key.group_id,
        member_id=key.member_id,
        max_wait_ms=request.max_wait_ms,
        min_bytes=min(request.min_bytes, max_bytes),
        max_bytes=max_bytes,
        max_records=request.max_records,
        batch_size=request.batch_size,
        by_record=request.share_acquire_mode == _BY_RECORD,
    )
    refs = list(session.partitions)
    turn = session.epoch % len(refs) if refs else 0  # The partitions take turns at being first.
    targets = [_find(context, ref) for ref in refs[turn:] + refs[:turn]]
    return await fetching.fetch(share_service(context), targets, options)


def _find(context: Context, ref: Ref) -> Target:
    try:
        check_partition(context, ref)
        return Target(*ref, context.replicas.partitions.look_up(*ref))
    except KafkaError as error:
        return Target(*ref, None, error)


def _response(
    context: Context,
    request: ShareFetchRequest,
    key: SessionKey,
    answers: Sequence[fetching.Answer],
    errors: Errors,
) -> ShareFetchResponse:
    lock_ms = share_service(context).settings(key.group_id).lock_ms
    response = ShareFetchResponse(acquisition_lock_timeout_ms=lock_ms)
    rows = _Rows(context, response)
    sent_bytes = 0
    for each in answers:
        if not (each.acquired or each.error or request.share_session_epoch == FIRST_EPOCH):
            continue
        row = rows.row((each.target.topic_id, each.target.partition))
        if each.error is not None:
            row.error_code, row.error_message = each.error.code, each.error.text
            rows.add_hint(each, each.error, row)
        if each.records is not None:
            row.records = each.records
            row.acquired_records = [
                Answer.AcquiredRecords(first_offset=first, last_offset=last, delivery_count=count)
                for first, last, count in each.acquired
            ]
            sent_bytes += len(each.records)
            assert each.target.replica is not None
            each.target.replica.traffic.bytes_out.value += len(each.records)
    for ref, error in errors.items():
        row = rows.row(ref)
        if error is not None:
            row.acknowledge_error_code, row.acknowledge_error_message = error.code, error.text
    limit = context.byte_limit(FETCHED)
    if limit is not None:
        now = context.replicas.now()
        limit.record(sent_bytes, now)
        response.throttle_time_ms = context.count_throttle(FETCHED, limit.excess_ms(now))
    return response


class _Rows:
    """The rows of a response, one for each partition."""

    def __init__(self, context: Context, response: ShareFetchResponse) -> None:
        self._context, self._response = context, response
        self._topics: dict[bytes, TopicAnswer] = {}
        self._rows: dict[Ref, Answer] = {}

    def row(self, ref: Ref) -> Answer:
        row = self._rows.get(ref)
        if row is None:
            topic_id, partition = ref
            topic = self._topics.get(topic_id)
            if topic is None:
                topic = self._topics[topic_id] = TopicAnswer(topic_id=topic_id)
                self._response.responses.append(topic)
            row = self._rows[ref] = Answer(
                partition_index=partition,
                acknowledge_error_code=0,
                current_leader=Answer.LeaderIdAndEpoch(leader_id=0, leader_epoch=0),
                records=b"",
            )
            topic.partitions.append(row)
        return row

    def add_hint(self, answer: fetching.Answer, error: KafkaError, row: Answer) -> None:
        add_leader_hint(
            self._context,
            error,
            topic="",
            topic_id=answer.target.topic_id,
            partition=answer.target.partition,
            answer=row,
            response=self._response,
        )
