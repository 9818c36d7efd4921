"""A controller's answers to Envelopes that no broker should send."""

from __future__ import annotations

import struct
from collections.abc import Callable
from typing import Any

from compat_tests.cluster.envelopes import HOST, PRINCIPAL
from compat_tests.cluster.nodes import Cluster, Node
from kwire.codec.frame import request_frame
from kwire.codec.messages.create_topics import CreateTopicsRequest
from kwire.codec.messages.envelope import EnvelopeRequest, EnvelopeResponse
from kwire.testing.wire import WireClient

CREATE = request_frame(19, 7, 99, "inside", CreateTopicsRequest(timeout_ms=9000))[4:]


def with_header(*, key: int = 19, version: int = 7) -> bytes:
    return struct.pack(">hh", key, version) + CREATE[4:]


def nested_envelope() -> bytes:
    inner = EnvelopeRequest(
        request_data=CREATE, request_principal=PRINCIPAL, client_host_address=HOST
    )
    return request_frame(58, 0, 99, "inside", inner)[4:]


CASES: list[tuple[int, dict[str, Any]]] = [
    (0, {}),
    (0, {"data": CREATE + b"more than was announced"}),
    (0, {"host": bytes(16)}),
    (35, {"data": b""}),
    (35, {"data": CREATE[:2]}),
    (35, {"data": CREATE[:11]}),
    (35, {"data": CREATE[:-3]}),
    (35, {"data": with_header(key=999)}),
    (35, {"data": with_header(key=-1)}),
    (35, {"data": with_header(version=99)}),
    (35, {"data": with_header(version=1)}),
    (35, {"data": with_header(version=-1)}),
    (42, {"data": with_header(key=1)}),
    (42, {"data": with_header(key=3)}),
    (42, {"data": with_header(key=12)}),
    (42, {"data": with_header(key=63)}),
    (42, {"data": nested_envelope()}),
    (42, {"host": b""}),
    (42, {"host": b"12345"}),
    (97, {"principal": b""}),
    (97, {"principal": None}),
    (97, {"principal": b"\0\x09" + PRINCIPAL[2:]}),
    (97, {"principal": PRINCIPAL[:-3]}),
    (97, {"principal": b"", "data": b"", "host": b""}),
    (42, {"data": b"", "host": b""}),
]


def ask(
    node: Node, data: bytes = CREATE, principal: bytes | None = PRINCIPAL, host: bytes = HOST
) -> EnvelopeResponse:
    request = EnvelopeRequest(
        request_data=data, request_principal=principal, client_host_address=host
    )
    with WireClient("127.0.0.1", node.controller_port) as client:
        answer: EnvelopeResponse = client.call(request, 0)
    return answer


def test_each_is_answered(make: Callable[..., Cluster]) -> None:
    """Invalid Envelopes get Kafka's error codes, and valid ones an answer."""
    cluster = make(1)
    cluster.start()
    answers = [(ask(cluster.nodes[1], **case), code, case) for code, case in CASES]
    assert [(case, a.error_code) for a, _, case in answers] == [(x, code) for code, x in CASES]
    assert {bool(a.response_data) for a, code, _ in answers if code} == {False}
    assert {a.response_data for a, code, _ in answers if not code} == {
        b"\0\0\0\x63" + bytes(5) + b"\1\0"
    }
