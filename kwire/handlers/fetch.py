"""Fetch (API key 1): ranges of logs, for consumers and followers.

Records are sent as file regions, without being read. :mod:`kwire.replica.fetching` reads the
partitions and waits for ``min_bytes``; this module decodes the request, runs it in its session
(KIP-227), which leaves out unchanged partitions, and builds the response.

One append may complete the waits of several consumers. If their requests are equal, they share a
partition's answer (its fields and bytes) while the state of the partition stays the same. Each
request still has its own session, byte budget and permission to read the topic.

One partition costs 35 us, from decoding to the pieces to send (``benchmarks/data_path.py``).
"""

from collections.abc import Callable, Generator
from functools import partial
from typing import Final

from kwire.codec.messages.fetch import FetchRequest, FetchResponse
from kwire.configs.broker import RACK_AWARE_SELECTOR
from kwire.drive import run_in_slices, run_steps
from kwire.handlers.shared.client_quotas import FETCHED
from kwire.handlers.shared.context import CLUSTER, Context
from kwire.handlers.shared.handler import handles
from kwire.handlers.shared.leader_hints import add_leader_hint
from kwire.log.region import FileRegion
from kwire.replica.byte_waits import FetchIsolation
from kwire.replica.fetch_pass import CONSUMER, FetchOptions, FetchPass
from kwire.replica.fetch_sessions import FetchContext, FetchPartition, Ref
from kwire.replica.fetching import TURN_PARTITIONS, read_partitions
from kwire.replica.leader import Leader
from kwire.replica.read_replicas import ReadReplica, select
from kwire.types import ZERO_UUID
from kwire.waits import Steps

RequestTopic = FetchRequest.FetchTopic
TopicAnswer = FetchResponse.FetchableTopicResponse
Answer = TopicAnswer.PartitionData

_READ_COMMITTED: Final = 1


def discard(response: FetchResponse) -> None:
    """Close the files of a response that will not be sent."""
    for topic in response.responses:
        for partition in topic.partitions:
            if isinstance(partition.records, FileRegion):
                partition.records.close()


@handles(FetchRequest, discard=discard)
def fetch(context: Context, request: FetchRequest) -> Steps[FetchResponse]:
    replicas, options = context.replicas, _options(context, request)
    sessions, now = replicas.sessions, replicas.now()
    count = sum(len(topic.partitions) for topic in request.topics)
    requested = _requested_partitions(request.topics)
    if count <= TURN_PARTITIONS:
        partitions = run_steps(requested)
    else:
        partitions = yield partial(run_in_slices, requested)
    fetch_context = sessions.begin(
        session_id=request.session_id,
        epoch=request.session_epoch,
        partitions=partitions,
        removals=_removed_partitions(request),
        privileged=options.reader >= 0,
        now=now,
    )
    try:
        return (yield from _answer(context, request, fetch_context, options))
    except BaseException:
        sessions.cancel(fetch_context)
        raise


def _answer(
    context: Context, request: FetchRequest, fetch_context: FetchContext, options: FetchOptions
) -> Steps[FetchResponse]:
    replicas, session = context.replicas, fetch_context.session
    watch = None if session is None else replicas.fetch_waits.watch(session, options.reader)
    if watch is not None and request.forgotten_topics_data:
        watch.remove(_removed_partitions(request))
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
        replicas, fetch_context, options, watch, request.max_wait_ms
    )
    try:
        reading.count_bytes()
        answers = reading.answers
        finishing = replicas.sessions.finishing(fetch_context, answers, replicas.now())
        if len(answers) <= TURN_PARTITIONS:
            session_id, sent = run_steps(finishing)
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


def _options(context: Context, request: FetchRequest) -> FetchOptions:
    config, state = context.config, request.replica_state
    reader = request.replica_id if request.replica_id >= 0 else max(state.replica_id, CONSUMER)
    if reader >= 0:
        isolation = FetchIsolation.LOG_END
    elif request.isolation_level == _READ_COMMITTED:
        isolation = FetchIsolation.STABLE
    else:
        isolation = FetchIsolation.HIGH_WATERMARK
    max_bytes = min(request.max_bytes, config.fetch_max_bytes)
    reads_followers = reader == CONSUMER and request.reads_followers
    options = FetchOptions(
        isolation=isolation,
        min_bytes=min(request.min_bytes, max_bytes),
        max_bytes=max_bytes,
        reader=reader,
        broker_epoch=state.replica_epoch,
        zstd_allowed=request.zstd_allowed,
        reads_followers=reads_followers,
        may_read=_permission(context, reader),
    )
    rack = request.rack_id if reads_followers else ""
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
