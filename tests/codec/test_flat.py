"""The usual shape of messages: the same values and bytes as in the general form, or none."""

from typing import Any, Final

from hypothesis import given
from hypothesis import strategies as st

from kwire.codec.apis import BY_KEY
from kwire.codec.compile import decoder, encode
from kwire.codec.emit_flat import ELEMENTS_MAX, flat_decoder, flat_encoder
from kwire.codec.frame import response_parts
from kwire.codec.layout import is_flexible
from kwire.codec.messages.fetch import FetchRequest, FetchResponse
from kwire.codec.messages.produce import ProduceRequest, ProduceResponse
from kwire.codec.primitives import MalformedError
from kwire.handlers.fetch import fetch
from kwire.handlers.produce import produce
from kwire.types import ZERO_UUID
from tests.support.codec.vectors import lines

Topic = ProduceRequest.TopicProduceData
Data = Topic.PartitionProduceData
TopicAnswer = ProduceResponse.TopicProduceResponse
Answer = TopicAnswer.PartitionProduceResponse
PRODUCE = 0
FLAT = produce.flat
assert FLAT is not None
VERSIONS = range(FLAT.since, BY_KEY[PRODUCE].stable + 1)
INT16 = st.integers(-(1 << 15), (1 << 15) - 1)
INT32 = st.integers(-(1 << 31), (1 << 31) - 1)
RECORDS = st.binary(max_size=200) | st.integers(0, 40_000).map(bytes)
INT64 = st.integers(-(1 << 63), (1 << 63) - 1)


def read(data: bytes, version: int, position: int = 0) -> tuple[Any, ...] | None:
    """Return the values of a request, with its records as bytes."""
    assert FLAT is not None
    ones, few, texts = FLAT.request_ones, FLAT.request_few, FLAT.request_texts
    decode = flat_decoder(ProduceRequest, version, ones, few, texts)
    values = decode(memoryview(data), position)
    if values is None:
        return None
    transactional_id, acks, timeout_ms, topics = values
    return (
        transactional_id,
        acks,
        timeout_ms,
        [(topic, [(index, bytes(data)) for index, data in datas]) for topic, datas in topics],
    )


def is_long(text: str | None, message: type, version: int) -> bool:
    """Return whether the length of a text takes more than one byte in a flexible version."""
    return is_flexible(message, version) and len((text or "").encode()) > 126


def values_of(request: ProduceRequest, version: int) -> tuple[Any, ...] | None:
    """Return the values of a request in the usual shape, otherwise None."""
    topics = request.topic_data
    datas = [data for topic in topics for data in topic.partition_data]
    messages: list[Any] = [request, *topics, *datas]
    if (
        is_long(request.transactional_id, ProduceRequest, version)
        or len(topics) + len(datas) > ELEMENTS_MAX
        or any(message.unknown_tags for message in messages)
        or any(data.records is None for data in datas)
        or any(is_long(topic.name, ProduceRequest, version) for topic in topics)
    ):
        return None
    return (
        request.transactional_id,
        request.acks,
        request.timeout_ms,
        [
            (
                topic.name if version < 13 else topic.topic_id,
                [(data.index, bytes(data.records)) for data in topic.partition_data],
            )
            for topic in topics
        ],
    )


datas = st.lists(st.builds(Data, index=INT32, records=st.none() | RECORDS), max_size=3)
requests = st.builds(
    ProduceRequest,
    transactional_id=st.none() | st.text(max_size=130),
    acks=INT16,
    timeout_ms=INT32,
    topic_data=st.lists(
        st.builds(
            Topic,
            name=st.text(max_size=130),
            topic_id=st.binary(min_size=16, max_size=16),
            partition_data=datas,
        ),
        max_size=3,
    ),
)
small = st.lists(
    st.builds(Data, index=INT32, records=st.binary(max_size=3)), min_size=1, max_size=40
)
wide_requests = st.builds(
    ProduceRequest,
    acks=INT16,
    timeout_ms=INT32,
    topic_data=st.lists(
        st.builds(Topic, name=st.just("t"), partition_data=small),
        min_size=1,
        max_size=4,
    ),
)
"""Requests of which some have too many elements."""
usual_requests = st.builds(
    ProduceRequest,
    transactional_id=st.none() | st.text(max_size=20),
    acks=INT16,
    timeout_ms=INT32,
    topic_data=st.lists(
        st.builds(
            Topic,
            name=st.text(max_size=30),
            topic_id=st.binary(min_size=16, max_size=16),
            partition_data=st.lists(
                st.builds(Data, index=INT32, records=RECORDS),
                min_size=1,
                max_size=3,
            ),
        ),
        min_size=1,
        max_size=2,
    ),
)


@given(requests | usual_requests | wide_requests, st.sampled_from(VERSIONS))
def test_values_of_a_request_are_those_of_its_general_form(
    request: ProduceRequest, version: int
) -> None:
    data = encode(request, version)
    general, _ = decoder(ProduceRequest, version)(data, 0)
    assert read(data, version) == values_of(general, version)
    assert read(b"head" + data + b"tail", version, 4) == values_of(general, version)


FETCH = 1
FETCH_FLAT = fetch.flat
assert FETCH_FLAT is not None
FETCH_VERSIONS = range(FETCH_FLAT.since, BY_KEY[FETCH].stable + 1)
LIMITS: Final = {
    "max_wait_ms": INT32,
    "min_bytes": INT32,
    "max_bytes": INT32,
    "isolation_level": st.integers(-128, 127),
    "session_id": INT32,
    "session_epoch": INT32,
}
"""The first fields of a fetch, in the order of the wire."""
POSITION: Final = {
    "partition": INT32,
    "current_leader_epoch": INT32,
    "fetch_offset": INT64,
    "last_fetched_epoch": INT32,
    "log_start_offset": INT64,
    "partition_max_bytes": INT32,
}
UNKNOWN_HIGH_WATERMARK: Final = (1 << 63) - 1
"""The default of a tagged field since version 18."""
TOPIC: Final = st.tuples(st.text(min_size=1, max_size=40), st.binary(min_size=16, max_size=16))
"""A topic's name and id, of which a version sends one."""


def sent_topic(topic: tuple[str, bytes], version: int) -> dict[str, Any]:
    """Return the field by which a version identifies a topic."""
    name, topic_id = topic
    return {"topic_id": topic_id} if version >= 13 else {"topic": name}


def sent_position(position: dict[str, int], version: int) -> dict[str, Any]:
    """Return the fields of a position that a version sends."""
    absent = {"high_watermark": 18, "last_fetched_epoch": 12, "current_leader_epoch": 9}
    return {name: n for name, n in position.items() if version >= absent.get(name, 0)}


@given(
    st.fixed_dictionaries(LIMITS),
    st.lists(
        st.tuples(
            TOPIC,
            st.lists(
                st.fixed_dictionaries(
                    {**POSITION, "high_watermark": st.just(UNKNOWN_HIGH_WATERMARK) | INT64}
                ),
                max_size=3,
            ),
        ),
        max_size=3,
    ),
    st.text(max_size=40),
    st.tuples(INT32, INT64),
    st.sampled_from(FETCH_VERSIONS),
)
def test_values_of_a_fetch_are_those_of_its_fields(
    limit: dict[str, Any],
    topics: list[tuple[tuple[str, bytes], list[dict[str, Any]]]],
    rack_id: str,
    follower: tuple[int, int],
    version: int,
) -> None:
    """In a session a request may name no partition. A follower's has two tagged fields."""
    shape = FetchRequest.FetchTopic
    request = FetchRequest(
        topics=[
            shape(
                **sent_topic(topic, version),
                partitions=[
                    shape.FetchPartition(**sent_position(each, version)) for each in places
                ],
            )
            for topic, places in topics
        ],
        rack_id=rack_id,
        **limit,
    )
    if version >= 15:
        request.replica_state.replica_id, request.replica_state.replica_epoch = follower
    else:
        request.replica_id = follower[0]
    assert FETCH_FLAT is not None
    few, optional = FETCH_FLAT.request_few, FETCH_FLAT.request_optional
    decode = flat_decoder(FetchRequest, version, FETCH_FLAT.request_ones, few, optional=optional)
    values = decode(encode(request, version), 0)
    if is_long(rack_id, FetchRequest, version) or any(
        is_long(name, FetchRequest, version) for (name, _), _ in topics if version < 13
    ):
        assert values is None
    else:
        first = [limit[name] for name in LIMITS]
        unknown = {
            "high_watermark": UNKNOWN_HIGH_WATERMARK,
            "last_fetched_epoch": -1,
            "current_leader_epoch": -1,
        }
        named = [
            (
                "" if version >= 13 else name,
                topic_id if version >= 13 else ZERO_UUID,
                [
                    tuple(
                        sent_position(each, version).get(field, unknown.get(field))
                        for field in (*POSITION, "high_watermark")
                    )
                    for each in places
                ],
            )
            for (name, topic_id), places in topics
        ]
        replica = (-1, *follower) if version >= 15 else (follower[0], -1, -1)
        assert values == (*replica, *first, named, rack_id if version >= 11 else "")
    if is_flexible(FetchRequest, version):
        request.unknown_tags = ((7, b"x"),)
        assert decode(encode(request, version), 0) is None
    elif values is not None:
        data = encode(request, version)
        assert decode(data[:-1], 0) is None


@given(
    st.sampled_from(FETCH_VERSIONS),
    st.lists(
        st.tuples(
            TOPIC,
            st.lists(
                st.tuples(
                    INT32,
                    INT64,
                    INT64,
                    INT64,
                    st.sampled_from([None, ()]),
                    st.none()
                    | st.binary(min_size=1, max_size=200)
                    | st.integers(1, 40_000).map(bytes)
                    | st.integers(1, 40_000).map(bytearray),
                ),
                max_size=4,
            ),
        ),
        max_size=3,
    ),
    INT32,
    INT32,
    INT32,
)
def test_response_to_a_fetch_has_the_parts_of_its_general_form(
    version: int, topics: Any, session_id: int, throttle_time_ms: int, correlation_id: int
) -> None:
    """Here a bytearray stands for the region of a file, which is a part of its own."""
    shape = FetchResponse.FetchableTopicResponse
    response = FetchResponse(session_id=session_id, throttle_time_ms=throttle_time_ms)
    values = []
    for topic, places in topics:
        (identity,) = sent_topic(topic, version).values()
        values.append((identity, places))
        response.responses.append(shape(**sent_topic(topic, version)))
        for index, high_watermark, stable, start, aborted, records in places:
            answer = shape.PartitionData(
                partition_index=index,
                high_watermark=high_watermark,
                last_stable_offset=stable,
                log_start_offset=start,
                aborted_transactions=None if aborted is None else [],
                records=b"" if records is None else records,
            )
            response.responses[-1].partitions.append(answer)
    assert FETCH_FLAT is not None
    few, names = FETCH_FLAT.response_few, FETCH_FLAT.response_fields
    encode_flat = flat_encoder(FetchResponse, version, few, names)
    parts = encode_flat(correlation_id, session_id, values, throttle_time_ms)
    general = response_parts(FETCH, version, correlation_id, response)
    assert b"".join(map(bytes, parts)) == b"".join(map(bytes, general))
    assert [p for p in parts if type(p) is bytearray] == [
        p for p in general if type(p) is bytearray
    ]


@given(usual_requests, st.sampled_from(VERSIONS), st.data())
def test_damaged_request_has_no_values_unless_its_general_form_has_them(
    request: ProduceRequest, version: int, drawn: st.DataObject
) -> None:
    data = bytearray(encode(request, version))
    for _ in range(drawn.draw(st.integers(0, 2))):
        place = drawn.draw(st.integers(0, min(len(data), 60) - 1))
        data[place] = drawn.draw(st.integers(0, 255))
    del data[drawn.draw(st.integers(0, len(data))) :]
    values = read(bytes(data), version)
    try:
        general, _ = decoder(ProduceRequest, version)(bytes(data), 0)
    except MalformedError:
        assert values is None
    else:
        assert values == values_of(general, version)


def test_request_with_tagged_fields_has_no_values() -> None:
    data = Data(index=0, records=b"records")
    topic = Topic(name="t", partition_data=[data])
    request = ProduceRequest(acks=1, timeout_ms=1, topic_data=[topic])
    messages: list[Any] = [request, topic, data]
    for message in messages:
        message.unknown_tags = ((7, b"x"),)
        assert read(encode(request, 9), 9) is None
        message.unknown_tags = ()
    assert read(encode(request, 9), 9) is not None


def test_request_with_many_batches_has_no_values() -> None:
    """Its topics count too; the general form can be read in slices."""
    data = Data(index=0, records=b"")

    def with_batches(*counts: int) -> bytes:
        topics = [Topic(name="t", partition_data=[data] * count) for count in counts]
        return encode(ProduceRequest(acks=1, timeout_ms=1, topic_data=topics), 9)

    assert read(with_batches(31, 31), 9) is not None
    assert read(with_batches(31, 32), 9) is None
    assert read(with_batches(64), 9) is None


def test_requests_that_kafka_encoded_have_the_values_of_their_general_form() -> None:
    for line in lines("messages"):
        if line["name"] == "ProduceRequest" and line["version"] in VERSIONS:
            wire = bytes.fromhex(line["hex"])
            general, _ = decoder(ProduceRequest, line["version"])(wire, 0)
            assert read(wire, line["version"]) == values_of(general, line["version"]), line["id"]


def values_of_fetch(request: FetchRequest, version: int) -> tuple[Any, ...] | None:
    """Return the values of a fetch in the usual shape, otherwise None."""
    places = [place for topic in request.topics for place in topic.partitions]
    messages: list[Any] = [request, request.replica_state, *request.topics, *places]
    if (
        request.cluster_id is not None
        or request.forgotten_topics_data
        or len(request.topics) + len(places) > ELEMENTS_MAX
        or any(message.unknown_tags for message in messages)
        or any(place.replica_directory_id != bytes(16) for place in places)
        or is_long(request.rack_id, FetchRequest, version)
        or any(is_long(topic.topic, FetchRequest, version) for topic in request.topics)
    ):
        return None
    state = request.replica_state
    return (
        request.replica_id,
        state.replica_id,
        state.replica_epoch,
        *(getattr(request, name) for name in LIMITS),
        [
            (
                topic.topic,
                topic.topic_id,
                [
                    (*(getattr(place, name) for name in POSITION), place.high_watermark)
                    for place in topic.partitions
                ],
            )
            for topic in request.topics
        ],
        request.rack_id,
    )


def test_fetches_that_kafka_encoded_have_the_values_of_their_general_form() -> None:
    assert FETCH_FLAT is not None
    few, optional = FETCH_FLAT.request_few, FETCH_FLAT.request_optional
    usual_count = 0
    for line in lines("messages"):
        version = line["version"]
        if line["name"] == "FetchRequest" and version in FETCH_VERSIONS:
            wire = bytes.fromhex(line["hex"])
            general, _ = decoder(FetchRequest, version)(wire, 0)
            values = flat_decoder(FetchRequest, version, (), few, optional=optional)(wire, 0)
            assert values == values_of_fetch(general, version), line["id"]
            usual_count += values is not None
    assert usual_count


answers = st.lists(
    st.tuples(
        st.text(max_size=30),
        st.binary(min_size=16, max_size=16),
        st.lists(st.tuples(INT32, INT64, INT64, INT64), max_size=4),
    ),
    max_size=3,
)
"""Topics, by name and id, with the numbers of their partitions."""


@given(st.sampled_from(VERSIONS), answers, INT32, INT32)
def test_response_has_the_bytes_of_its_general_form(
    version: int,
    topics: list[tuple[str, bytes, list[tuple[int, int, int, int]]]],
    throttle_time_ms: int,
    correlation_id: int,
) -> None:
    response = ProduceResponse(throttle_time_ms=throttle_time_ms)
    values = []
    for name, topic_id, numbers in topics:
        answer = TopicAnswer(name=name, topic_id=topic_id)
        answer.partition_responses = [
            Answer(index=i, base_offset=base, log_append_time_ms=time_ms, log_start_offset=start)
            for i, base, time_ms, start in numbers
        ]
        response.responses.append(answer)
        values.append((name if version < 13 else topic_id, numbers))
    assert FLAT is not None
    encode_flat = flat_encoder(ProduceResponse, version, FLAT.response_few, FLAT.response_fields)
    (frame,) = encode_flat(correlation_id, values, throttle_time_ms)
    assert frame == b"".join(
        bytes(part) for part in response_parts(PRODUCE, version, correlation_id, response)
    )
