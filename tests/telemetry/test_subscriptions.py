"""The metrics that a client pushes; the ids and orders are the answers of Apache Kafka 4.3.1."""

from typing import Any

from kwire.drive import run_steps
from kwire.telemetry.subscriptions import Assigned, Subscriptions

ONE = bytes(range(16))
METRICS = (
    "org.apache.kafka.producer.,org.apache.kafka.consumer.,org.apache.kafka.consumer.fetch.,"
    "a.b.c,b.c.d,x1,x2,x3,x4,x5,x6,x7,x8,x9"
)
CLIENT = {
    "client_id": "probe",
    "client_software_name": "kwire-probe",
    "client_software_version": "1.0",
    "client_source_address": "127.0.0.1",
    "client_source_port": "40000",
}


def subscriptions_of(*settings: dict[str, str]) -> Subscriptions:
    subscriptions = Subscriptions()
    for number, each in enumerate(settings, 1):
        subscriptions.update(f"s{number}", each)
    return subscriptions


def assign(
    subscriptions: Subscriptions, instance_id: bytes = ONE, client: Any = CLIENT
) -> Assigned:
    return run_steps(subscriptions._assign(instance_id, client))


def test_metrics_interval_and_id_are_kafkas() -> None:
    subscriptions = subscriptions_of(
        {"metrics": METRICS, "interval.ms": "1000"},
        {"metrics": "zz,org.apache.kafka.producer.", "interval.ms": "2000"},
    )
    first = assign(subscriptions)
    assert first.interval_ms == 1000
    assert first.metrics == [
        *("x8", "zz", "x9", "a.b.c", "org.apache.kafka.consumer.fetch."),
        *("org.apache.kafka.producer.", "org.apache.kafka.consumer.", "b.c.d"),
        *("x1", "x2", "x3", "x4", "x5", "x6", "x7"),
    ]
    assert first.subscription_id == 231555303
    assert assign(subscriptions, bytes(range(2, 18))).subscription_id == 231559415
    subscriptions.update("s2", {})
    assert assign(subscriptions, bytes(range(6, 22))).subscription_id == -734627550


def test_client_without_a_subscription_asks_again_every_five_minutes() -> None:
    nothing = assign(subscriptions_of(), bytes([9] * 16))
    assert nothing == Assigned([], 300_000, -725132322)


def test_all_metrics_need_no_other_name() -> None:
    subscriptions = subscriptions_of({"metrics": "a,*"}, {"metrics": "b"})
    assert assign(subscriptions).metrics == ["*"]


def test_whole_attributes_have_to_match_every_pattern() -> None:
    for match, is_subscribed in (
        ("client_id=pro.*", True),
        ("client_id=pro", False),
        ("client_software_name=kwire-probe,client_software_version=1.*", True),
        ("client_software_name=kwire-probe,client_software_version=2.*", False),
        ("client_source_address=127.0.0.1", True),
        ("client_source_port=4.*", True),
        ("client_source_port=5.*", False),
        ("client_id=a,client_id=probe", True),
    ):
        subscriptions = subscriptions_of({"metrics": "m", "match": match, "interval.ms": "777"})
        answer = assign(subscriptions, bytes([9] * 16))
        assert answer == (
            (["m"], 777, -709901326) if is_subscribed else ([], 300_000, -725132322)
        ), match


def test_subscription_with_an_expression_of_java_is_ignored() -> None:
    """Directories of Apache Kafka can have one; it must neither match all clients nor fail."""
    subscriptions = subscriptions_of(
        {"metrics": "a", "match": "client_id=(a)\\1"}, {"metrics": "b"}
    )
    assert assign(subscriptions).metrics == ["b"]


async def test_many_subscriptions_are_matched_in_slices(autojump_clock: Any) -> None:
    subscriptions = subscriptions_of(*({"metrics": f"m{number}"} for number in range(200)))
    answer = await subscriptions.assign(ONE, CLIENT)
    assert sorted(answer.metrics) == sorted(f"m{number}" for number in range(200))
    assert answer == assign(subscriptions)
