"""Fetch (API key 1): ranges of logs, for consumers and followers.

Records are sent as file regions, without being read. :mod:`kwire.replica.fetching` reads the
partitions and waits for ``min_bytes``; this module decodes the request and runs it in its session
(KIP-227), which leaves out unchanged partitions. :mod:`kwire.handlers.shared.fetch_answers` builds
the response.

One append may complete the waits of several consumers. While the state of the partition stays the
same, equal requests share the partition's result (its offsets and bytes). If a response contains
only this partition, they also share the encoded response. Each request still has its own session,
byte budget and permission to read the topic.

A request in the usual shape is decoded and answered without creating message objects, whether it
names partitions or, in a session, none. Only if a partition has an error or aborted transactions,
objects are created for the response.
"""

from collections.abc import Generator
from functools import partial
from typing import Final, NamedTuple

from kwire.codec.messages.fetch import (
    FOLLOWERS_SINCE,
    TOPIC_IDS_SINCE,
    ZSTD_SINCE,
    FetchRequest,
    FetchResponse,
)
from kwire.drive import run_in_slices, run_steps
from kwire.handlers.shared.client_quotas import FETCHED
from kwire.handlers.shared.context import Context
from kwire.handlers.shared.fetch_answers import Response, discard, respond
from kwire.handlers.shared.fetch_options import options_of
from kwire.handlers.shared.handler import Flat, handles
from kwire.replica.fetch_pass import CONSUMER, FetchOptions
from kwire.replica.fetch_sessions import FetchPartition, Ref
from kwire.replica.fetching import TURN_PARTITIONS, read_partitions, wait_for_bytes
from kwire.waits import Slow, Steps, run_until_wait

RequestTopic = FetchRequest.FetchTopic


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
    topics: list[tuple[str, bytes, list[tuple[int, int, int, int, int, int, int]]]],
    rack_id: str,
    version: int,
) -> Slow[Response] | Response | None:
    """Answer a request in the usual shape.

    Return None for a follower's request that might be counted towards a consumer's quota.
    """
    reader = max(replica_id, replica_state_id, CONSUMER)
    if reader != CONSUMER and context.image.quotas:
        return None
    options = options_of(
        context,
        reader,
        replica_epoch,
        isolation_level,
        min_bytes,
        max_bytes,
        rack_id,
        zstd_allowed=version >= ZSTD_SINCE,
        reads_followers=version >= FOLLOWERS_SINCE,
    )
    by_id = version >= TOPIC_IDS_SINCE
    requested = [
        FetchPartition(
            topic,
            topic_id,
            partition,
            fetch_offset,
            partition_max_bytes,
            leader_epoch,
            last_fetched_epoch,
            log_start,
            (named, partition),
            known_high_watermark,
        )
        for topic, topic_id, partitions in topics
        for named in (topic_id if by_id else topic,)
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
    session = _SessionRequest(session_id, session_epoch, by_id, requested, [], is_usual=True)
    return run_until_wait(_run(context, options, session, max_wait_ms))


_FLAT: Final = Flat(
    function=fetch_values,
    since=7,
    takes_version=True,
    request_few=("topics", "partitions"),
    request_optional=(
        "replica_id",
        "replica_state",
        "topic",
        "topic_id",
        "current_leader_epoch",
        "last_fetched_epoch",
        "high_watermark",
        "rack_id",
    ),
    response_few=("responses", "partitions"),
    response_fields=(
        "session_id",
        "topic",
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
    options = options_of(
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
    requesting = _requested_partitions(request)
    if count <= TURN_PARTITIONS:
        requested = run_steps(requesting)
    else:
        requested = yield partial(run_in_slices, requesting)
    removals = _removed_partitions(request)
    session = _SessionRequest(
        request.session_id, request.session_epoch, request.uses_topic_ids, requested, removals
    )
    return (yield from _run(context, options, session, request.max_wait_ms))


class _SessionRequest(NamedTuple):
    """The partitions that a request names, and its session."""

    session_id: int
    epoch: int
    by_id: bool
    """True if the version identifies topics by their ids."""
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
        by_id=request.by_id,
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
        is_usual = request.is_usual
        del request  # A long poll would hold it for as long as it waits.
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
        reading = yield from read_partitions(replicas, fetch_context, options, watch)
        if max_wait_ms > 0 and reading.must_wait:
            yield from wait_for_bytes(reading, fetch_context, max_wait_ms)
        try:
            return (yield from respond(context, fetch_context, reading, limit, is_usual))
        except BaseException:
            reading.drop()
            raise
    except BaseException:
        replicas.sessions.cancel(fetch_context)
        raise


def _requested_partitions(
    request: FetchRequest,
) -> Generator[None, None, list[FetchPartition]]:
    partitions = []
    for topic in request.topics:
        topic_ref = topic.topic_id if request.uses_topic_ids else topic.topic
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
        (topic.topic_id if request.uses_topic_ids else topic.topic, partition)
        for topic in request.forgotten_topics_data
        for partition in topic.partitions
    ]
