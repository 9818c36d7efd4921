"""Whole frames: their sizes, and the header version of each API version."""

import json

import pytest

from kwire.codec.apis import BY_KEY, ListenerType
from kwire.codec.frame import (
    RequestHead,
    read_header,
    read_response,
    request_frame,
    request_header_version,
    response_header_version,
    response_parts,
)
from kwire.codec.messages.api_versions import ApiVersionsRequest, ApiVersionsResponse
from kwire.codec.messages.fetch import FetchResponse
from kwire.codec.primitives import MalformedError
from tests.support.codec.message_json import to_json
from tests.support.codec.requests import read_request
from tests.support.codec.vectors import HOME, check_count, lines

UNKNOWN_TAGS = "_unknownTaggedFields"


@pytest.mark.parametrize(("name", "count"), [("frames", 1208), ("frames-4.4", 36)])
def test_all_frame_vectors_are_present(name: str, count: int):
    check_count(name, count)


@pytest.mark.parametrize("name", ["frames", "frames-4.4"])
def test_requests_are_decoded_and_encoded_as_kafkas(name: str):
    bodies = {line["id"]: line["json"] for line in lines(name.replace("frames", "messages"))}
    for line in lines(name):
        if line["kind"] != "request":
            continue
        whole, header = bytes.fromhex(line["hex"]), line["header"]
        frame = memoryview(whole)[4:]
        head, body = read_header(frame)
        assert head == RequestHead(
            line["api_key"], line["version"], header["correlationId"], header["clientId"]
        )
        assert body == line["header_size"], line["id"]
        request = read_request(head, frame, body)
        assert to_json(request, line["version"]) == bodies[line["body_id"]], line["id"]
        if UNKNOWN_TAGS not in header:
            assert request_frame(*head, request) == whole, line["id"]


@pytest.mark.parametrize("name", ["frames", "frames-4.4"])
def test_responses_are_decoded_and_encoded_as_kafkas(name: str):
    bodies = {line["id"]: line["json"] for line in lines(name.replace("frames", "messages"))}
    for line in lines(name):
        if line["kind"] != "response":
            continue
        key, version, whole = line["api_key"], line["version"], bytes.fromhex(line["hex"])
        correlation_id, response = read_response(key, version, memoryview(whole)[4:])
        assert correlation_id == line["header"]["correlationId"], line["id"]
        assert to_json(response, version) == bodies[line["body_id"]], line["id"]
        if UNKNOWN_TAGS not in line["header"]:
            parts = response_parts(key, version, correlation_id, response)
            assert b"".join(parts) == whole, line["id"]


def test_versions_and_header_versions_are_kafkas():
    facts = json.loads((HOME / "apis.json").read_text())["apis"]
    for fact in facts:
        if fact.get("no_versions"):
            continue
        api = BY_KEY[fact["key"]]
        assert api.name == fact["name"]
        assert (api.first, api.stable) == (fact["min_version"], fact["max_stable_version"])
        assert api.last >= fact["max_version"]
        assert [
            ListenerType.BROKER in api.listener_types,
            ListenerType.CONTROLLER in api.listener_types,
            api.forwarded,
        ] == [
            "broker" in fact["listeners"],
            "controller" in fact["listeners"],
            fact["forwardable_to_controller"],
        ]
        advertised = fact["advertised_by_broker"] or fact["advertised_by_controller"]
        assert api.advertised == (tuple(advertised) if advertised else None)
        for version in range(fact["min_version"], fact["max_version"] + 1):
            expected = fact["request_header_version"][str(version)]
            assert request_header_version(api.key, version) == expected, (api.name, version)
            expected = fact["response_header_version"][str(version)]
            assert response_header_version(api.key, version) == expected, (api.name, version)


def test_apis_of_the_next_release_are_in_the_table():
    facts = json.loads((HOME / "apis-4.4.json").read_text())["apis"]
    for fact in facts:
        if not fact.get("no_versions"):
            api = BY_KEY[fact["key"]]
            assert (api.name, api.last) == (fact["name"], fact["max_version"])


def test_api_versions_response_has_header_version_0():
    parts = response_parts(18, 4, 7, ApiVersionsResponse(api_keys=[]))
    assert b"".join(parts)[:10] == bytes.fromhex("0000000c 00000007 0000")


def test_header_of_an_unknown_version_is_readable():
    """The header is readable so that ApiVersions can answer with the versions that exist."""
    frame = request_frame(18, 3, 5, "c", ApiVersionsRequest())
    newer = frame[4:6] + b"\x00\x63" + frame[8:]
    head, _ = read_header(memoryview(newer))
    assert head == RequestHead(18, 99, 5, "c")


@pytest.mark.parametrize(
    ("frame", "reason"),
    [
        ("", "request header"),
        ("0001000c00000001", "request header"),  # no client id
        ("00010004000000010005616263", "client id of 5 bytes"),
        ("0001000400000001 0001 ff", "invalid start byte"),
        ("0004000000000001ffff", "no API with key 4"),
        ("7fff000000000001ffff", "no API with key 32767"),
        ("0001000c00000001ffff", "request header"),  # flexible, no count of tags
        ("0001000c00000001ffff 01 00 ffffffff0f", "tagged field 0"),
        ("0001000c00000001ffff ffffffff0f", "request header"),
    ],
)
def test_damaged_header_is_malformed(frame: str, reason: str):
    with pytest.raises(MalformedError, match=reason):
        read_header(memoryview(bytes.fromhex(frame)))


class Region:
    """A stand-in for a region of a log, which is sent without being read."""

    def __len__(self) -> int:
        return 1000


def test_regions_of_records_are_separate_parts():
    Topic = FetchResponse.FetchableTopicResponse
    regions = [Region(), Region()]
    response = FetchResponse(
        responses=[
            Topic(
                topic="t",
                partitions=[
                    Topic.PartitionData(partition_index=index, high_watermark=0, records=region)
                    for index, region in enumerate([regions[0], b"", regions[1], None])
                ],
            )
        ]
    )
    parts = response_parts(1, 12, 1, response)
    assert [part for part in parts if isinstance(part, Region)] == regions
    assert all(len(part) for part in parts)
    assert int.from_bytes(parts[0][:4], "big") == sum(map(len, parts)) - 4
