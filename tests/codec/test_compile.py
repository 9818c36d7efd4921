"""Properties of the compiled encoders and decoders that the vectors do not show."""

import traceback
from contextlib import suppress
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kwire.codec.__main__ import main
from kwire.codec.compile import decode, decoder, encode, encoder
from kwire.codec.layout import Field, Shape, is_flexible, layout_of
from kwire.codec.messages.add_raft_voter import AddRaftVoterRequest
from kwire.codec.messages.create_topics import CreateTopicsRequest
from kwire.codec.messages.fetch import FetchRequest, FetchResponse
from kwire.codec.messages.join_group import JoinGroupRequest
from kwire.codec.messages.list_offsets import ListOffsetsRequest, ListOffsetsResponse
from kwire.codec.messages.metadata import MetadataResponse
from kwire.codec.messages.metadata_records import PartitionRecord
from kwire.codec.messages.offset_fetch import OffsetFetchResponse
from kwire.codec.messages.produce import ProduceRequest, ProduceResponse
from kwire.codec.messages.streams_group_heartbeat import StreamsGroupHeartbeatRequest
from kwire.codec.messages.transaction_records import TransactionLogValue
from kwire.codec.primitives import EncodeError, MalformedError, read_uvarint, uvarint
from kwire.codec.schema import spec_of
from tests.support.codec.message_json import from_json, to_json

SAMPLE = [
    AddRaftVoterRequest,
    CreateTopicsRequest,
    FetchRequest,
    FetchResponse,
    JoinGroupRequest,
    ListOffsetsResponse,
    MetadataResponse,
    OffsetFetchResponse,
    PartitionRecord,
    ProduceRequest,
    ProduceResponse,
    StreamsGroupHeartbeatRequest,
    TransactionLogValue,
]

TOPIC = ListOffsetsRequest.ListOffsetsTopic
BITS = {"b": 8, "h": 16, "i": 32, "q": 64}


def values(shape: Shape, version: int, flexible: bool) -> st.SearchStrategy[Any]:
    """Draw the values that a field of this shape can hold."""
    if shape.element is not None:
        return st.lists(values(shape.element, version, flexible), max_size=3)
    if shape.cls is not None:
        return structs(shape.cls, version, flexible)
    if shape.form in ("bytes", "records"):
        return st.binary(max_size=200)
    if shape.form == "string":
        return st.text(max_size=150)
    if shape.wire in ("bool", "uuid", "float64"):
        kinds = {"bool": st.booleans(), "uuid": st.binary(min_size=16, max_size=16)}
        return kinds.get(shape.wire, st.floats(allow_nan=False))
    signed = BITS.get(shape.code)
    if signed:
        return st.integers(-(1 << signed - 1), (1 << signed - 1) - 1)
    return st.integers(0, (1 << BITS[shape.code.lower()]) - 1)


def structs(cls: type[Any], version: int, flexible: bool) -> st.SearchStrategy[Any]:
    struct = layout_of(cls, version, flexible)

    def value(field: Field) -> st.SearchStrategy[Any]:
        strategy = values(field.shape, version, flexible)
        return st.none() | strategy if field.nullable else strategy

    fields = {field.name: value(field) for field in (*struct.fields, *struct.tagged)}
    if flexible:
        tags = st.dictionaries(st.integers(100, 1 << 31), st.binary(max_size=150), max_size=2)
        fields["unknown_tags"] = tags.map(lambda drawn: tuple(sorted(drawn.items())))
    return st.builds(cls, **fields)


@st.composite
def messages(draw: st.DrawFn) -> tuple[Any, int]:
    cls = draw(st.sampled_from(SAMPLE))
    versions = spec_of(cls).versions
    version = draw(st.integers(versions.first, versions.last))
    return draw(structs(cls, version, is_flexible(cls, version))), version


@given(messages())
@settings(max_examples=300, deadline=None)
def test_encoded_message_is_decoded_to_the_same(sample: tuple[Any, int]):
    message, version = sample
    wire = encode(message, version)
    copy, end = decoder(type(message), version)(wire, 0)
    assert (copy, end) == (message, len(wire))
    assert from_json(type(message), to_json(message, version), version) == message


@given(messages(), st.data())
@settings(max_examples=200, deadline=None)
def test_damaged_message_is_malformed_or_another_message(
    sample: tuple[Any, int], data: st.DataObject
):
    message, version = sample
    wire = bytearray(encode(message, version))
    for _ in range(data.draw(st.integers(1, 4))):
        if wire:
            wire[data.draw(st.integers(0, len(wire) - 1))] = data.draw(st.integers(0, 255))
    with suppress(MalformedError):
        decode(type(message), wire, version)


@given(st.integers(0, (1 << 32) - 1))
def test_uvarint_round_trip(value: int):
    assert read_uvarint(uvarint(value), 0) == (value, len(uvarint(value)))


def test_records_are_views_of_the_frame():
    Topic = ProduceRequest.TopicProduceData
    partition = Topic.PartitionProduceData(index=0, records=b"batches")
    request = ProduceRequest(
        acks=1, timeout_ms=2, topic_data=[Topic(name="t", partition_data=[partition])]
    )
    frame = memoryview(encode(request, 9))
    records = decode(ProduceRequest, frame, 9).topic_data[0].partition_data[0].records
    assert isinstance(records, memoryview)
    assert records.obj is frame.obj
    assert bytes(records) == b"batches"


def test_defaults_are_never_shared():
    wire = encode(ListOffsetsRequest(replica_id=-1), 1)
    first, second = (decode(ListOffsetsRequest, wire, 1) for _ in range(2))
    first.topics.append(TOPIC(name="t"))
    assert second.topics == []
    wire = encode(FetchRequest(max_wait_ms=1, min_bytes=1), 12)
    first_fetch, second_fetch = (decode(FetchRequest, wire, 12) for _ in range(2))
    first_fetch.replica_state.replica_id = 5
    first_fetch.topics.append(FetchRequest.FetchTopic())
    assert (second_fetch.replica_state.replica_id, second_fetch.topics) == (-1, [])


@pytest.mark.parametrize(
    ("message", "version", "field"),
    [
        (ListOffsetsRequest(replica_id=1, isolation_level=1), 1, "isolation_level"),
        (ListOffsetsRequest(replica_id=1 << 31), 1, "replica_id, topics"),
        (ListOffsetsRequest(replica_id=1, topics=[TOPIC(name="x" * 32768)]), 5, "topics.name"),
        (ListOffsetsRequest(replica_id=1, topics=[TOPIC(name="x" * 32768)]), 11, "topics.name"),
        (ListOffsetsRequest(replica_id=1, topics=[TOPIC(name="\ud800")]), 5, "topics.name"),
        (ListOffsetsRequest(replica_id=1, topics=[TOPIC(name=None)]), 6, "topics.name"),  # type: ignore[arg-type]
        (ListOffsetsRequest(replica_id=1, topics=None), 6, "topics"),  # type: ignore[arg-type]
        (FetchRequest(max_wait_ms=1, min_bytes=1, replica_id=2), 15, "replica_id"),
        (
            FetchRequest(
                max_wait_ms=1,
                min_bytes=1,
                replica_state=FetchRequest.ReplicaState(replica_id=1),
            ),
            12,
            "replica_state",
        ),
    ],
)
def test_encode_error_names_the_field(message: Any, version: int, field: str):
    with pytest.raises(EncodeError, match=rf"{type(message).__name__} v{version}: {field}: "):
        encode(message, version)


def test_response_drops_fields_that_its_version_lacks():
    partition = ListOffsetsResponse.ListOffsetsTopicResponse.ListOffsetsPartitionResponse(
        partition_index=0, timestamp=1, offset=2, leader_epoch=7
    )
    topic = ListOffsetsResponse.ListOffsetsTopicResponse(name="t", partitions=[partition])
    copy = decode(ListOffsetsResponse, encode(ListOffsetsResponse(topics=[topic]), 3), 3)
    assert copy.topics[0].partitions[0].offset == 2
    assert copy.topics[0].partitions[0].leader_epoch == -1


def test_ignorable_field_is_dropped():
    request = ListOffsetsRequest(replica_id=1, timeout_ms=500)
    assert decode(ListOffsetsRequest, encode(request, 9), 9).timeout_ms == 0


def test_tags_are_encoded_once_and_in_order():
    request = FetchRequest(max_wait_ms=1, min_bytes=1, cluster_id="c")
    request.unknown_tags = ((9, b"nine"), (7, b"seven"))
    copy = decode(FetchRequest, encode(request, 12), 12)
    assert copy.cluster_id == "c"
    assert copy.unknown_tags == ((7, b"seven"), (9, b"nine"))
    request.unknown_tags = ((0, b""),)
    with pytest.raises(EncodeError, match="tag 0 appears twice"):
        encode(request, 12)


@pytest.mark.parametrize("version", [0, 12])
def test_unknown_version_is_an_error(version: int):
    for make in (decoder, encoder):
        with pytest.raises(ValueError, match=f"ListOffsetsRequest has no version {version}"):
            make(ListOffsetsRequest, version)


def test_functions_are_compiled_once():
    assert decoder(FetchRequest, 12) is decoder(FetchRequest, 12)
    assert encoder(FetchRequest, 12) is encoder(FetchRequest, 12)


def test_tracebacks_show_the_generated_code():
    with pytest.raises(MalformedError) as caught:
        decode(ListOffsetsRequest, b"", 5)
    text = "".join(traceback.format_exception(caught.value))
    assert "o1.replica_id, o1.isolation_level, n2 = unpack_1(buf, pos)" in text


@pytest.mark.parametrize(
    ("name", "version", "shown"),
    [
        ("fetch", "13", ["# FetchRequest v13", "# FetchResponse v13", "def decode", "def encode"]),
        ("TransactionLogValue", "1", ["# TransactionLogValue v1", "message.producer_id"]),
    ],
)
def test_show_prints_the_generated_code(
    name: str, version: str, shown: list[str], capsys: pytest.CaptureFixture[str]
):
    assert main(["show", name, version]) == 0
    text = capsys.readouterr().out
    assert all(piece in text for piece in shown)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["show", "fetch", "99"], "no message fetch in version 99"),
        (["show", "nothing", "1"], "no message nothing"),
        (["show", "fetch"], "usage:"),
        ([], "usage:"),
    ],
)
def test_show_refuses_unknown_messages(
    arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]
):
    assert main(arguments) == 1
    assert message in capsys.readouterr().err
