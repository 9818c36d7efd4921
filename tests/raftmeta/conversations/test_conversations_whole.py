"""The recordings themselves: nothing is missing, and kwire's codec agrees with every frame."""

import gzip
import json
from pathlib import Path
from typing import Any

import pytest

from kwire.codec.frame import (
    read_header,
    read_response,
    request_frame,
    response_parts,
)
from tests.support.codec.message_json import from_json, to_json
from tests.support.codec.requests import read_request
from tests.support.raftmeta.conversations import CLUSTERS, VECTORS, class_of

RECORDINGS = sorted(VECTORS.glob("*.jsonl.gz"))


def lines_of(path: Path) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """A recording's first line, and its frames."""
    with gzip.open(path, "rt") as lines:
        head = json.loads(next(lines))
        return head, [values for values in map(json.loads, lines) if "api" in values]


def remade(frame: dict[str, Any]) -> tuple[dict[str, Any], bytes]:
    """A frame's body as kwire reads its bytes, and the bytes as kwire writes its body."""
    data = bytes.fromhex(frame["hex"])[4:]
    is_request = frame["dir"] == "request"
    key, version = frame["api_key"], frame["version"]
    correlation_id = frame["header"]["correlationId"]
    body = from_json(class_of(frame["api"], request=is_request), frame["body"], version)
    if is_request:
        head, pos = read_header(data)
        client_id = frame["header"]["clientId"]
        assert tuple(head) == (key, version, correlation_id, client_id)
        read = read_request(head, data, pos)
        written = request_frame(key, version, correlation_id, client_id, body)
    else:
        message, read = read_response(key, version, data)
        assert message == correlation_id
        written = b"".join(response_parts(key, version, correlation_id, body))
    return to_json(read, version), written


@pytest.mark.parametrize("path", RECORDINGS, ids=lambda path: path.name.split(".")[0])
def test_codec_round_trips_every_recorded_frame(path: Path) -> None:
    """Decoding gives the recorded body, and encoding that body gives the recorded bytes."""
    head, frames = lines_of(path)
    assert len(frames) + head["frames_dropped"] == head["frames_seen"]
    for frame in frames:
        body, written = remade(frame)
        assert body == frame["body"], frame["t"]
        assert written.hex() == frame["hex"], frame["t"]


def test_every_recording_is_there() -> None:
    numbers = sorted(number for listed in CLUSTERS.values() for number in listed)
    assert sorted(path.name.split("-")[0] for path in RECORDINGS) == numbers
    assert sum(len(lines_of(path)[1]) for path in RECORDINGS) == 3877
