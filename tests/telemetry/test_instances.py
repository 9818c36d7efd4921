"""The times at which a client may ask for its subscription and push, as in Apache Kafka 4.3.1."""

import pytest

from kwire import errors
from kwire.metrics import Metrics
from kwire.telemetry import instances
from kwire.telemetry.instances import ClientInstance, ClientInstances, Push
from kwire.telemetry.subscriptions import Assigned

MAX_BYTES = 100
ID = 7


def instance(number: int = 1, interval_ms: int = 1000) -> ClientInstance:
    return ClientInstance(bytes([number]) * 16, Assigned(["m"], interval_ms, ID), 1)


def push(
    client: ClientInstance,
    now: float,
    *,
    subscription_id: int = ID,
    codec: int = 0,
    size: int = 1,
    is_last: bool = False,
) -> str:
    """Push and return the name of the error."""
    try:
        client.check_push(Push(subscription_id, codec, size, is_last), MAX_BYTES, now)
    except errors.KafkaError as error:
        return type(error).__name__
    return ""


def ask(client: ClientInstance, now: float) -> str:
    try:
        client.check_question(now)
    except errors.KafkaError as error:
        return type(error).__name__
    return ""


def test_client_asks_once_and_pushes_once_in_each_interval() -> None:
    client = instance()
    assert ask(client, 10.0) == ""
    assert ask(client, 10.9) == "ThrottlingQuotaExceeded"
    assert push(client, 10.1) == "", "a push after the answer may come at once"
    assert push(client, 10.2) == "ThrottlingQuotaExceeded"
    assert push(client, 11.1) == ""
    assert ask(client, 11.9) == "ThrottlingQuotaExceeded"
    assert ask(client, 12.1) == ""


def test_last_push_is_never_too_early_and_ends_the_instance() -> None:
    client = instance()
    ask(client, 10.0)
    assert push(client, 10.1) == ""
    assert push(client, 10.2, is_last=True) == ""
    assert push(client, 20.0) == "InvalidRequest"
    assert push(client, 20.1, is_last=True) == "", "Kafka forgets that it has ended"


def test_client_may_ask_at_once_when_its_id_or_codec_was_refused() -> None:
    for refused in ("UnknownSubscriptionId", "UnsupportedCompressionType"):
        client = instance()
        ask(client, 10.0)
        if refused == "UnknownSubscriptionId":
            assert push(client, 10.1, subscription_id=ID + 1) == refused
        else:
            assert push(client, 10.1, codec=9) == refused
        assert ask(client, 10.2) == ""
        assert ask(client, 10.3) == "ThrottlingQuotaExceeded"
        assert push(client, 10.4) == "ThrottlingQuotaExceeded", (
            "the early question counts for nothing"
        )


def test_codecs_and_sizes_are_limited() -> None:
    for codec, error in (
        (-1, "UnsupportedCompressionType"),
        (4, ""),
        (5, "UnsupportedCompressionType"),
    ):
        client = instance()
        assert push(client, 10.0, codec=codec) == error
    assert push(instance(), 10.0, size=MAX_BYTES) == ""
    assert push(instance(), 10.0, size=MAX_BYTES + 1) == "TelemetryTooLarge"


def test_instances_begin_anew_with_a_changed_subscription() -> None:
    table = ClientInstances(Metrics())
    client = instance()
    table.keep(client, 0.0)
    assert table.find(client.id, 1, 1.0) is client
    assert table.find(client.id, 2, 1.0) is None


def test_silent_instances_expire_after_a_minute_or_three_intervals() -> None:
    table = ClientInstances(Metrics())
    quick, slow = instance(1), instance(2, interval_ms=60_000)
    table.keep(quick, 0.0)
    table.keep(slow, 0.0)
    assert table.find(quick.id, 1, 59.9) is quick
    assert table.find(quick.id, 1, 60.0) is None
    assert table.find(slow.id, 1, 179.9) is slow
    assert table.find(slow.id, 1, 180.0) is None
    assert len(table) == 0


def test_number_of_instances_is_limited(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(instances, "INSTANCES_MAX", 3)
    metrics = Metrics()
    table = ClientInstances(metrics)
    for number in (1, 2, 3, 1, 4):  # the first is renewed before the fourth comes
        table.keep(instance(number), 0.0)
    assert [table.find(bytes([n]) * 16, 1, 1.0) is not None for n in (1, 2, 3, 4)] == [
        *(True, False, True, True)
    ]
    assert "kafka_server_client_metrics_instance_count 3\n" in metrics.text()
    table.forget(bytes([3]) * 16)
    assert len(table) == 2
