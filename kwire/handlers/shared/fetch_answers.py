"""Responses to Fetch requests, in three forms. Rules:

* The response to a request in the usual shape consists of plain values, without message objects,
  unless a partition has an error or aborted transactions, or the client has a quota.
* Requests that the same append completes share the encoded response if it contains only the same
  range of one partition. These responses differ only in their correlation and session ids.
* All other requests get a response of objects, which is built in slices if it is large.
* Partitions are in the session's order; only adjacent partitions of a topic are grouped, as in
  Kafka.
* :func:`discard` closes the files of a response that will not be sent.
"""

from collections.abc import Generator
from functools import partial
from struct import Struct
from typing import Final, TypeAlias

from kwire.codec.emit_flat import Values
from kwire.codec.messages.fetch import FetchResponse
from kwire.drive import run_in_slices, run_steps
from kwire.handlers.shared.client_quotas import FETCHED
from kwire.handlers.shared.context import Context
from kwire.handlers.shared.leader_hints import add_leader_hint
from kwire.handlers.shared.shared_response import SharedResponse
from kwire.log.region import FileRegion
from kwire.replica.fetch_pass import FetchPass
from kwire.replica.fetch_sessions import FetchContext, FetchPartition, Pair
from kwire.replica.fetching import TURN_PARTITIONS
from kwire.replica.partition import ReadResult, SharedRead
from kwire.replica.throttles import RateLimit
from kwire.waits import Steps

TopicAnswer = FetchResponse.FetchableTopicResponse
Answer = TopicAnswer.PartitionData
Response: TypeAlias = FetchResponse | SharedResponse | Values
"""A response, the values of a response in the usual shape, or a shared response."""

_NO_DIVERGENCE: Final = Answer.EpochEndOffset()
_NO_LEADER: Final = Answer.LeaderIdAndEpoch()
_NO_SNAPSHOT: Final = Answer.SnapshotId()
_USUAL_FIELDS: Final = ReadResult._fields.index("end_offset")
"""The number of a result's fields that a usual response contains."""
_SESSIONS_SINCE: Final = 7
_THROTTLE_ERROR_SESSION: Final = Struct(">ihi")
"""The first fields of a response since that version: throttle time, error code, session id."""


def discard(response: FetchResponse | Values) -> None:
    """Close the files of a response that will not be sent."""
    if isinstance(response, tuple):
        _, topics = response
        records = [partition[-1] for _, partitions in topics for partition in partitions]
    else:
        records = [each.records for topic in response.responses for each in topic.partitions]
    for region in records:
        if isinstance(region, FileRegion):
            region.close()


def respond(
    context: Context,
    fetch_context: FetchContext,
    reading: FetchPass,
    limit: RateLimit | None,
    is_usual: bool,
) -> Steps[Response]:
    """Return the response, with those results that the session requires."""
    replicas = reading.replicas
    reading.count_bytes()
    finishing = replicas.sessions.finishing(fetch_context, reading.results, replicas.now())
    if len(reading.results) <= TURN_PARTITIONS:
        session_id, sent = run_steps(finishing)
        if reading.shared is not None and _is_shared(context, reading.shared, sent):
            return _shared_response(context, reading.shared, sent, session_id)
        if is_usual and reading.is_usual and limit is None:
            return session_id, _values_by_topic(sent)
        response = FetchResponse(session_id=session_id)
        run_steps(_adding_answers(context, response, sent))
    else:
        session_id, sent = yield partial(run_in_slices, finishing)
        response = FetchResponse(session_id=session_id)
        yield partial(run_in_slices, _adding_answers(context, response, sent))
    if limit is not None:
        now = replicas.now()
        limit.record(reading.total_bytes, now)
        response.throttle_time_ms = context.count_throttle(FETCHED, limit.excess_ms(now))
    return response


def _values_by_topic(sent: list[Pair]) -> list[tuple[bytes | str, list[Values]]]:
    """Return the values of the response's topics, grouped as in :func:`_adding_answers`."""
    topics: list[tuple[bytes | str, list[Values]]] = []
    partitions: list[Values] = []
    previous = None
    for requested, result in sent:
        topic = requested.ref[0]
        if topic != previous:
            previous, partitions = topic, []
            topics.append((topic, partitions))
        partitions.append((requested.partition, *result[:_USUAL_FIELDS]))
    return topics


def _is_shared(context: Context, shared: SharedRead, sent: list[Pair]) -> bool:
    """Return whether other responses sent now may differ from this one only in their ids.

    A client with a quota has its own throttle time.
    """
    return len(sent) == 1 and sent[0][1] is shared.result and not context.image.quotas


def _shared_response(
    context: Context, shared: SharedRead, sent: list[Pair], session_id: int
) -> SharedResponse:
    """Return a response that is encoded once for all requests which share the read."""

    def build() -> FetchResponse:
        response = FetchResponse(session_id=session_id)
        run_steps(_adding_answers(context, response, sent))
        return response

    own = _THROTTLE_ERROR_SESSION.pack(0, 0, session_id)
    return SharedResponse(build, shared.frames, own, _SESSIONS_SINCE)


def _adding_answers(
    context: Context, response: FetchResponse, sent: list[Pair]
) -> Generator[None, None, None]:
    """Add the answers by topic in the session's order; only adjacent partitions are merged."""
    previous: FetchPartition | None = None
    for requested, result in sent:
        answer = _answer_of(requested, result)
        if (
            previous is not None
            and requested.topic_id == previous.topic_id
            and requested.topic == previous.topic
        ):
            response.responses[-1].partitions.append(answer)
        else:
            topic = TopicAnswer(
                topic=requested.topic, topic_id=requested.topic_id, partitions=[answer]
            )
            response.responses.append(topic)
        if result.error is not None:
            add_leader_hint(
                context,
                result.error,
                topic=requested.topic,
                topic_id=requested.topic_id,
                partition=requested.partition,
                answer=answer,
                response=response,
            )
        previous = requested
        yield


def _answer_of(requested: FetchPartition, result: ReadResult) -> Answer:
    diverging, aborted = _NO_DIVERGENCE, result.aborted
    if result.diverging is not None:
        epoch, end = result.diverging
        diverging = Answer.EpochEndOffset(epoch=epoch, end_offset=end)
    return Answer(
        partition_index=requested.partition,
        error_code=0 if result.error is None else result.error.code,
        high_watermark=result.high_watermark,
        last_stable_offset=result.last_stable,
        log_start_offset=result.log_start,
        diverging_epoch=diverging,
        current_leader=_NO_LEADER,
        snapshot_id=_NO_SNAPSHOT,
        aborted_transactions=aborted
        if aborted is None
        else [
            Answer.AbortedTransaction(producer_id=each.producer_id, first_offset=each.first_offset)
            for each in aborted
        ],
        preferred_read_replica=result.preferred_replica,
        records=b"" if result.records is None else result.records,
    )
