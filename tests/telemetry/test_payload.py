"""The payload of a push: what is read of it, and how damaged and huge ones are rejected."""

import math
from typing import Any

import pytest

from kwire.errors import InvalidRecord, TelemetryTooLarge
from kwire.records.compression import NAMES, ZSTD, compress
from kwire.telemetry.payload import LABELS_MAX, TEXT_MAX, samples, to_name, unpack
from kwire.telemetry.series import Sample
from tests.support.telemetry.payloads import Payload

DELTA = 1


def read(payload: Payload) -> list[Sample]:
    message = unpack(payload.encode(), 0, 1 << 20)
    return [sample for sample in samples(message) if sample is not None]


def test_gauges_and_sums_become_series() -> None:
    payload = Payload(group_id="g")
    payload.gauge("org.apache.kafka.consumer.fetch.manager.lag", 2.5, topic="t", partition="0")
    payload.sum("org.apache.kafka.consumer.request.total", 7)
    payload.sum("acme.open", 3, monotonic=False)
    assert read(payload) == [
        (
            "kwire_client_consumer_fetch_manager_lag",
            "gauge",
            (("group_id", "g"), ("partition", "0"), ("topic", "t")),
            2.5,
        ),
        ("kwire_client_consumer_request_total", "counter", (("group_id", "g"),), 7),
        ("kwire_client_acme_open", "gauge", (("group_id", "g"),), 3),
    ]


def test_sums_since_the_last_push_and_averages_of_nothing_are_left_out() -> None:
    payload = Payload().sum("a", 1, temporality=DELTA).gauge("b", math.nan).gauge("c", 1)
    assert [sample.name for sample in read(payload)] == ["kwire_client_c"]


@pytest.mark.parametrize("codec", range(len(NAMES)), ids=NAMES)
def test_payloads_come_in_each_codec(codec: int) -> None:
    data = Payload().gauge("a", 1).encode()
    message: Any = unpack(compress(codec, data), codec, 1 << 20)
    assert [sample.name for sample in samples(message) if sample] == ["kwire_client_a"]


def test_unpacked_size_is_limited() -> None:
    data = Payload().gauge("a" * 100_000, 1).encode()
    packed = compress(ZSTD, data)
    assert len(packed) < 1000
    with pytest.raises(TelemetryTooLarge):
        unpack(packed, ZSTD, 50_000)
    unpack(packed, ZSTD, 200_000)


@pytest.mark.parametrize(("data", "codec"), [(b"garbage", ZSTD), (b"garbage", 0), (b"\x0a\x05", 0)])
def test_damaged_payloads_are_rejected(data: bytes, codec: int) -> None:
    with pytest.raises(InvalidRecord):
        unpack(data, codec, 1 << 20)


def test_attributes_without_a_usable_value_count_as_labels() -> None:
    """Otherwise a payload of a few KB keeps the loop busy."""
    payload = Payload()
    attributes = payload.resource.resource.attributes
    for number in range(LABELS_MAX):
        attributes.add(key=f"empty{number}")
    attributes.add(key="last").value.string_value = "v"
    assert [sample.labels for sample in read(payload.gauge("a", 1))] == [()]


def test_names_and_values_of_clients_stay_within_the_format_of_the_page() -> None:
    payload = Payload(**{"a.b": "x" * 1000}).gauge('evil{} 1\n"', 1, __name__="up")
    ((name, _, labels, _),) = read(payload)
    assert name == "kwire_client_evil___1__"
    assert labels == (("a_b", "x" * TEXT_MAX), ("x__name__", "up"))
    assert [to_name(text) for text in ("", "9", "__x", "été")] == ["x", "x9", "x__x", "x_t_"]
