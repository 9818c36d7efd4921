"""Fetch (API key 1): ranges of logs, for consumers and followers.

Records are sent as file regions, without being read. :mod:`kwire.replica.fetching` reads the
partitions and waits for ``min_bytes``; this module decodes the request, runs it in its session
(KIP-227), which leaves out unchanged partitions, and builds the response.

One append may complete the waits of several consumers. If their requests are equal, they share a
partition's answer (its fields and bytes) while the state of the partition stays the same, and if it
is the only one, the encoded response. Each request still has its own session, byte budget and
permission to read the topic.

One partition costs 35 us, from decoding to the pieces to send (``benchmarks/data_path.py``).
"""

from collections.abc import Callable, Generator
from functools import partial
from struct import Struct
from typing import Final, NamedTuple, TypeAlias

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
from kwire.replica.fetch_sessions import FetchContext, FetchPartition, Ref
from kwire.replica.fetching import TURN_PARTITIONS, read_partitions
from kwire.replica.leader import Leader
from kwire.replica.read_replicas import ReadReplica, select
from kwire.types import ZERO_UUID
from kwire.waits import Slow, Steps, run_until_wait

RequestTopic = FetchRequest.FetchTopic
TopicAnswer = FetchResponse.FetchableTopicResponse
Answer = TopicAnswer.PartitionData
Response: TypeAlias = FetchResponse | SharedResponse

_READ_COMMITTED: Final = 1
_UNKNOWN_HIGH_WATERMARK: Final = (1 << 63) - 1
"""The default of a field that consumers do not send."""


_SESSIONS_SINCE: Final = 7
_THROTTLE_ERROR_SESSION: Final = Struct(">ihi")
"""The first fields of a response since that version: throttle time, error code, session id."""


def discard(response: FetchResponse) -> None:
    """Close the files of a response that will not be sent."""
    for topic in response.responses:
        for partition in topic.partitions:
            if isinstance(partition.records, FileRegion):
                partition.records.close()


class _Fetch(NamedTuple):
    """The arguments of a fetch."""

    options: FetchOptions
    partitions: list[FetchPartition]
    removals: list[Ref]
    """The partitions to remove from the session."""
    session_id: int
    session_epoch: int
    max_wait_ms: int


def fetch_one(
    context: Context,
    max_wait_ms: int,
    min_bytes: int,
    max_bytes: int,
    isolation_level: int,
    session_id: int,
    session_epoch: int,
    topic_id: bytes,
    partition: int,
    leader_epoch: int,
    fetch_offset: int,
    last_fetched_epoch: int,
    log_start: int,
    partition_max_bytes: int,
    rack_id: str,
) -> Slow[Response] | Response:
    """Answer a consumer's request that names one partition."""
    client = _Reader(CONSUMER, -1, isolation_level, min_bytes, max_bytes, rack_id)
    requested = FetchPartition(
        "",
        topic_id,
        partition,
        fetch_offset,
        partition_max_bytes,
        leader_epoch,
        last_fetched_epoch,
        log_start,
        True,
        _UNKNOWN_HIGH_WATERMARK,
    )
    arguments = _Fetch(
        _options(context, client), [requested], [], session_id, session_epoch, max_wait_ms
    )
    return run_until_wait(_run(context, arguments))


@handles(
    FetchRequest,
    discard=discard,
    flat=Flat(fetch_one, since=15, request_ones=("topics", "partitions"), needs_request=False),
)
def fetch(context: Context, request: FetchRequest) -> Steps[Response]:
    state = request.replica_state
    reader = _Reader(
        request.replica_id if request.replica_id >= 0 else max(state.replica_id, CONSUMER),
        state.replica_epoch,
        request.isolation_level,
        request.min_bytes,
        request.max_bytes,
        request.rack_id,
        request.zstd_allowed,
        request.reads_followers,
    )
    count = sum(len(topic.partitions) for topic in request.topics)
    requested = _requested_partitions(request.topics)
    if count <= TURN_PARTITIONS:
        partitions = run_steps(requested)
    else:
        partitions = yield partial(run_in_slices, requested)
    arguments = _Fetch(
        _options(context, reader),
        partitions,
        _removed_partitions(request),
        request.session_id,
        request.session_epoch,
        request.max_wait_ms,
    )
    return (yield from _run(context, arguments))


def _run(context: Context, arguments: _Fetch) -> Steps[Response]:
    replicas = context.replicas
    fetch_context = replicas.sessions.begin(
        session_id=arguments.session_id,
        epoch=arguments.session_epoch,
        partitions=arguments.partitions,
        removals=arguments.removals,
        privileged=arguments.options.reader >= 0,
        now=replicas.now(),
    )
    try:
        return (yield from _answer(context, arguments, fetch_context))
    except BaseException:
        replicas.sessions.cancel(fetch_context)
        raise


def _answer(context: Context, arguments: _Fetch, fetch_context: FetchContext) -> Steps[Response]:
    replicas, session, options = context.replicas, fetch_context.session, arguments.options
    watch = None if session is None else replicas.fetch_waits.watch(session, options.reader)
    if watch is not None and arguments.removals:
        watch.remove(arguments.removals)
    limit = context.byte_limit(FETCHED) if options.reader == CONSUMER else None
    if limit is not None:
        now = replicas.now()
        excess_ms = limit.excess_ms(now)
        if excess_ms:
            replicas.sessions.cancel(fetch_context)
            session_id = fetch_context.session_id
            return FetchResponse(session_id=session_id, throttle_time_ms=excess_ms)
        max_bytes = min(options.max_bytes, limit.available_bytes(now))
        min_bytes = min(options.min_bytes, max_bytes)
        options = options._replace(max_bytes=max_bytes, min_bytes=min_bytes)
    reading = yield from read_partitions(
        replicas, fetch_context, options, watch, arguments.max_wait_ms
    )
    try:
        reading.count_bytes()
        answers = reading.answers
        finishing = replicas.sessions.finishing(fetch_context, answers, replicas.now())
        if len(answers) <= TURN_PARTITIONS:
            session_id, sent = run_steps(finishing)
            if reading.shared is not None and _is_shared(context, reading.shared, sent):
                return _shared_response(reading.shared, sent, session_id)
            topics = run_steps(_grouping_by_topic(sent))
        else:
            session_id, sent = yield partial(run_in_slices, finishing)
            topics = yield partial(run_in_slices, _grouping_by_topic(sent))
        response = FetchResponse(session_id=session_id, responses=topics)
        if limit is not None:
            now = replicas.now()
            limit.record(reading.total_bytes, now)
            response.throttle_time_ms = limit.excess_ms(now)
        if reading.refused:
            _add_hints(context, reading, response)
    except BaseException:
        reading.drop()
        raise
    return response


def _is_shared(
    context: Context, shared: SharedRead, sent: list[tuple[FetchPartition, Answer]]
) -> bool:
    """Return whether other responses that are sent now may equal this one but for their ids.

    The throttle time of a client with a quota is its own.
    """
    return len(sent) == 1 and sent[0][1] is shared.answer and not context.image.quotas


def _shared_response(
    shared: SharedRead, sent: list[tuple[FetchPartition, Answer]], session_id: int
) -> SharedResponse:
    """Return a response that is encoded once for all requests which share the read."""

    def build() -> FetchResponse:
        return FetchResponse(session_id=session_id, responses=run_steps(_grouping_by_topic(sent)))

    own = _THROTTLE_ERROR_SESSION.pack(0, 0, session_id)
    return SharedResponse(build, shared.frames, own, _SESSIONS_SINCE)


class _Reader(NamedTuple):
    """The fetching client or follower, and what it asks for."""

    id: int
    """The broker id of a follower, or :data:`CONSUMER`."""
    broker_epoch: int
    isolation_level: int
    min_bytes: int
    max_bytes: int
    rack_id: str
    zstd_allowed: bool = True
    reads_followers: bool = True
    """True if a consumer's version knows that followers can be read from."""


def _options(context: Context, reader: _Reader) -> FetchOptions:
    config = context.config
    if reader.id >= 0:
        isolation = FetchIsolation.LOG_END
    elif reader.isolation_level == _READ_COMMITTED:
        isolation = FetchIsolation.STABLE
    else:
        isolation = FetchIsolation.HIGH_WATERMARK
    max_bytes = min(reader.max_bytes, config.fetch_max_bytes)
    reads_followers = reader.id == CONSUMER and reader.reads_followers
    options = FetchOptions(
        isolation=isolation,
        min_bytes=min(reader.min_bytes, max_bytes),
        max_bytes=max_bytes,
        reader=reader.id,
        broker_epoch=reader.broker_epoch,
        zstd_allowed=reader.zstd_allowed,
        reads_followers=reads_followers,
        may_read=_permission(context, reader.id),
    )
    rack = reader.rack_id if reads_followers else ""
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
                    by_id,
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


def _grouping_by_topic(
    sent: list[tuple[FetchPartition, Answer]],
) -> Generator[None, None, list[TopicAnswer]]:
    """Group the answers by topic in the session's order; only adjacent partitions are merged."""
    topics: list[TopicAnswer] = []
    previous: FetchPartition | None = None
    for requested, answer in sent:
        yield
        if (
            previous is not None
            and requested.topic_id == previous.topic_id
            and requested.topic == previous.topic
        ):
            topics[-1].partitions.append(answer)
        else:
            topics.append(
                TopicAnswer(topic=requested.topic, topic_id=requested.topic_id, partitions=[answer])
            )
        previous = requested
    return topics


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


def _add_hints(context: Context, reading: FetchPass, response: FetchResponse) -> None:
    for requested, (answer, error) in reading.refused.items():
        add_leader_hint(
            context,
            error,
            topic=requested.topic,
            topic_id=requested.topic_id,
            partition=requested.partition,
            answer=answer,
            response=response,
        )
