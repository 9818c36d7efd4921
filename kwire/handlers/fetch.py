"""Fetch (API key 1): ranges of logs, for consumers and followers.

Records are sent as file regions, without being read. :mod:`kwire.replica.fetching` reads the
partitions and waits for ``min_bytes``; this module decodes the request, runs it in its session
(KIP-227), which leaves out unchanged partitions, and builds the response.

One append may complete the waits of several consumers. If their requests are equal, they share a
partition's result (its offsets and bytes) while the state of the partition stays the same, and if
it is the only one, the encoded response. Each request still has its own session, byte budget and
permission to read the topic.

A request in the usual shape is read without objects, whether it names partitions or, in a session,
none. Its response has no objects either, unless a partition has an error or aborted transactions.
"""

from collections.abc import Callable, Generator
from functools import partial
from struct import Struct
from typing import Final, NamedTuple, TypeAlias

from kwire.codec.emit_flat import Values
from kwire.codec.messages.fetch import FetchRequest, FetchResponse
from kwire.configs.broker import RACK_AWARE_SELECTOR
from kwire.drive import run_in_slices, run_steps
from kwire.handlers.shared.client_quotas import FETCHED
from kwire.handlers.shared.context import CLUSTER, Context
from kwire.handlers.shared.handler import Flat, handles
from kwire.handlers.shared.leader_hints import add_leader_hint
from kwire.handlers.shared.shared_response import SharedResponse
from kwire.log.region import FileRegion
from kwire.replica.byte_waits import FetchIsolation, SharedRead
from kwire.replica.fetch_pass import CONSUMER, FetchOptions, FetchPass
from kwire.replica.fetch_sessions import FetchContext, FetchPartition, Pair, Ref
from kwire.replica.fetching import TURN_PARTITIONS, read_partitions
from kwire.replica.leader import Leader
from kwire.replica.partition import ReadResult
from kwire.replica.read_replicas import ReadReplica, select
from kwire.replica.throttles import RateLimit
from kwire.types import ZERO_UUID
from kwire.waits import Slow, Steps, run_until_wait

RequestTopic = FetchRequest.FetchTopic
TopicAnswer = FetchResponse.FetchableTopicResponse
Answer = TopicAnswer.PartitionData
Response: TypeAlias = FetchResponse | SharedResponse | Values
"""A response, the values of one in the usual shape, or one that other requests get too."""

_NO_DIVERGENCE: Final = Answer.EpochEndOffset()
_NO_LEADER: Final = Answer.LeaderIdAndEpoch()
_NO_SNAPSHOT: Final = Answer.SnapshotId()
_USUAL_FIELDS: Final = ReadResult._fields.index("end_offset")
"""The number of fields of a result that a usual answer has."""
_READ_COMMITTED: Final = 1
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


def fetch_values(
    context: Context,
    replica_id: int,
    replica_state_id: int,
    replica_epoch: int,
    max_wait_ms: int,
    min_bytes: int,
    max_bytes: int,
    isolation_level: int,
    session_id: int,
    session_epoch: int,
    topics: list[tuple[bytes, list[tuple[int, int, int, int, int, int, int]]]],
    rack_id: str,
) -> Slow[Response] | Response | None:
    """Answer a request in the usual shape.

    Return None for one of a follower that quotas might count as a consumer's.
    """
    reader = max(replica_id, replica_state_id, CONSUMER)
    if reader != CONSUMER and context.image.quotas:
        return None
    options = _options(
        context, reader, replica_epoch, isolation_level, min_bytes, max_bytes, rack_id
    )
    requested = [
        FetchPartition(
            "",
            topic_id,
            partition,
            fetch_offset,
            partition_max_bytes,
            leader_epoch,
            last_fetched_epoch,
            log_start,
            (topic_id, partition),
            known_high_watermark,
        )
        for topic_id, partitions in topics
        for (
            partition,
            leader_epoch,
            fetch_offset,
            last_fetched_epoch,
            log_start,
            partition_max_bytes,
            known_high_watermark,
        ) in partitions
    ]
    session = _SessionRequest(session_id, session_epoch, requested, [], is_usual=True)
    return run_until_wait(_run(context, options, session, max_wait_ms))


_FLAT: Final = Flat(
    function=fetch_values,
    since=13,
    request_few=("topics", "partitions"),
    request_optional=("replica_id", "replica_state", "high_watermark"),
    response_few=("responses", "partitions"),
    response_fields=(
        "session_id",
        "topic_id",
        "partition_index",
        "high_watermark",
        "last_stable_offset",
        "log_start_offset",
        "aborted_transactions",
        "records",
        "throttle_time_ms",
    ),
    needs_request=False,
)


@handles(FetchRequest, discard=discard, flat=_FLAT)
def fetch(context: Context, request: FetchRequest) -> Steps[Response]:
    state = request.replica_state
    options = _options(
        context,
        request.replica_id if request.replica_id >= 0 else max(state.replica_id, CONSUMER),
        state.replica_epoch,
        request.isolation_level,
        request.min_bytes,
        request.max_bytes,
        request.rack_id,
        zstd_allowed=request.zstd_allowed,
        reads_followers=request.reads_followers,
    )
    count = sum(len(topic.partitions) for topic in request.topics)
    requesting = _requested_partitions(request.topics)
    if count <= TURN_PARTITIONS:
        requested = run_steps(requesting)
    else:
        requested = yield partial(run_in_slices, requesting)
    removals = _removed_partitions(request)
    session = _SessionRequest(request.session_id, request.session_epoch, requested, removals)
    return (yield from _run(context, options, session, request.max_wait_ms))


class _SessionRequest(NamedTuple):
    """The partitions that a request names, and its session."""

    session_id: int
    epoch: int
    requested: list[FetchPartition]
    removals: list[Ref]
    """The partitions to remove from the session."""
    is_usual: bool = False
    """True if the answer may be the values of a response."""


def _run(
    context: Context, options: FetchOptions, request: _SessionRequest, max_wait_ms: int
) -> Steps[Response]:
    replicas = context.replicas
    fetch_context = replicas.sessions.begin(
        session_id=request.session_id,
        epoch=request.epoch,
        partitions=request.requested,
        removals=request.removals,
        privileged=options.reader >= 0,
        now=replicas.now(),
    )
    try:
        session = fetch_context.session
        watch = None if session is None else replicas.fetch_waits.watch(session, options.reader)
        if watch is not None and request.removals:
            watch.remove(request.removals)
        limit = context.byte_limit(FETCHED) if options.reader == CONSUMER else None
        if limit is not None:
            now = replicas.now()
            excess_ms = limit.excess_ms(now)
            if excess_ms:
                context.count_throttle(FETCHED, excess_ms)
                replicas.sessions.cancel(fetch_context)
                session_id = fetch_context.session_id
                return FetchResponse(session_id=session_id, throttle_time_ms=excess_ms)
            max_bytes = min(options.max_bytes, limit.available_bytes(now))
            min_bytes = min(options.min_bytes, max_bytes)
            options = options._replace(max_bytes=max_bytes, min_bytes=min_bytes)
        reading = yield from read_partitions(replicas, fetch_context, options, watch, max_wait_ms)
        try:
            return (yield from _respond(context, fetch_context, reading, limit, request.is_usual))
        except BaseException:
            reading.drop()
            raise
    except BaseException:
        replicas.sessions.cancel(fetch_context)
        raise


def _respond(
    context: Context,
    fetch_context: FetchContext,
    reading: FetchPass,
    limit: RateLimit | None,
    is_usual: bool,
) -> Steps[Response]:
    """Return the response with what the session's answer has to contain of the results."""
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


def _values_by_topic(sent: list[Pair]) -> list[tuple[bytes, list[Values]]]:
    """Return the values of the response's topics, grouped as in :func:`_adding_answers`."""
    topics: list[tuple[bytes, list[Values]]] = []
    partitions: list[Values] = []
    previous = None
    for requested, result in sent:
        topic_id = requested.topic_id
        if topic_id != previous:
            previous, partitions = topic_id, []
            topics.append((topic_id, partitions))
        partitions.append((requested.partition, *result[:_USUAL_FIELDS]))
    return topics


def _is_shared(context: Context, shared: SharedRead, sent: list[Pair]) -> bool:
    """Return whether other responses that are sent now may equal this one but for their ids.

    The throttle time of a client with a quota is its own.
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


def _options(
    context: Context,
    reader: int,
    broker_epoch: int,
    isolation_level: int,
    min_bytes: int,
    max_bytes: int,
    rack_id: str,
    *,
    zstd_allowed: bool = True,
    reads_followers: bool = True,
) -> FetchOptions:
    """Return the arguments that apply to all partitions.

    ``reader``: the broker id of a follower, or :data:`CONSUMER`.
    ``reads_followers``: True if a consumer's version knows that followers can be read from.
    """
    config = context.config
    if reader >= 0:
        isolation, reads_followers = FetchIsolation.LOG_END, False
    elif isolation_level == _READ_COMMITTED:
        isolation = FetchIsolation.STABLE
    else:
        isolation = FetchIsolation.HIGH_WATERMARK
    max_bytes = min(max_bytes, config.fetch_max_bytes)
    options = FetchOptions(
        isolation,
        min(min_bytes, max_bytes),
        max_bytes,
        reader,
        broker_epoch,
        zstd_allowed,
        reads_followers,
        _permission(context, reader),
    )
    rack = rack_id if reads_followers else ""
    if rack and config.replica_selector_class == RACK_AWARE_SELECTOR:
        nearest_follower = partial(_nearest_follower, context, rack)
        options = options._replace(rack=rack, nearest_follower=nearest_follower)
    return options


def _permission(context: Context, reader: int) -> Callable[[str, bytes], bool] | None:
    """Return whether the client may read a topic; followers need a permission on the cluster."""
    if context.services.authorizer is None:
        return None
    if reader >= 0:
        is_broker = context.is_allowed("ClusterAction", "Cluster", CLUSTER)
        return lambda topic, topic_id: is_broker

    def may_read(topic: str, topic_id: bytes) -> bool:
        name = topic or context.topic_name(topic_id)
        return name is None or context.is_allowed("Read", "Topic", name)

    return may_read


def _requested_partitions(
    topics: list[RequestTopic],
) -> Generator[None, None, list[FetchPartition]]:
    partitions = []
    for topic in topics:
        by_id = topic.topic_id != ZERO_UUID or not topic.topic
        topic_ref = topic.topic_id if by_id else topic.topic
        for p in topic.partitions:
            partitions.append(
                FetchPartition(
                    topic.topic,
                    topic.topic_id,
                    p.partition,
                    p.fetch_offset,
                    p.partition_max_bytes,
                    p.current_leader_epoch,
                    p.last_fetched_epoch,
                    p.log_start_offset,
                    (topic_ref, p.partition),
                    p.high_watermark,
                )
            )
            yield
    return partitions


def _removed_partitions(request: FetchRequest) -> list[Ref]:
    return [
        (topic.topic or topic.topic_id, partition)
        for topic in request.forgotten_topics_data
        for partition in topic.partitions
    ]


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


def _nearest_follower(context: Context, rack: str, leader: Leader, offset: int) -> int | None:
    """Return the follower that a consumer should read from, or None for the leader (KIP-392)."""
    brokers = context.image.brokers
    own = brokers.get(leader.node)
    followers = []
    for node, follower in leader.followers.items():
        broker = brokers.get(node)
        if (
            node in leader.isr
            and follower.log_start <= offset <= follower.log_end
            and broker is not None
            and not broker.fenced
            and broker.endpoint(context.listener) is not None
        ):
            near = ReadReplica(follower.log_end, follower.caught_up_at, node, broker.rack)
            followers.append(near)
    return select(rack, None if own is None else own.rack, followers)
