"""Share groups of Apache's Java client and command-line tools."""

from __future__ import annotations

from typing import Any

import pytest

from compat_tests.harness.jvm import Jvm
from compat_tests.share.conftest import Shared

TOOLS = "org.apache.kafka.tools"
RECORDS = 200
BROKER_SETTINGS = {"group.share.min.record.lock.duration.ms": "1000"}


@pytest.fixture
def values(shares: Shared) -> list[str]:
    """The values of the records in the topic."""
    values = [f"value-{number}" for number in range(RECORDS)]
    for first in range(0, RECORDS, 20):
        shares.produce(*(value.encode() for value in values[first : first + 20]))
    return values


def run(jvm: Jvm, shares: Shared, name: str, *arguments: str, count: int = RECORDS) -> Any:
    return jvm.scenario(
        "Shares", name, shares.address, shares.topic, shares.group, str(count), *arguments
    )


def of(records: list[dict[str, Any]], field: str) -> list[Any]:
    return [record[field] for record in records]


def test_implicit_acknowledgement(jvm: Jvm, shares: Shared, values: list[str]) -> None:
    result = run(jvm, shares, "implicit")
    assert of(result["records"], "value") == values
    assert set(of(result["records"], "deliveries")) == {1}
    assert result["more"] == []


def test_two_consumers_share_a_partition(jvm: Jvm, shares: Shared, values: list[str]) -> None:
    result = run(jvm, shares, "together")
    first, second = of(result["first"], "value"), of(result["second"], "value")
    assert sorted(first + second) == sorted(values)
    assert first
    assert second


def test_explicit_acknowledgement(jvm: Jvm, shares: Shared, values: list[str]) -> None:
    result = run(jvm, shares, "explicit")
    assert of(result["records"], "value") == values
    assert sorted(of(result["again"], "offset")) == list(range(1, RECORDS, 2))
    assert set(of(result["again"], "deliveries")) == {2}
    assert result["errors"] == []


def test_records_of_a_closed_consumer_go_to_another(
    jvm: Jvm, shares: Shared, values: list[str]
) -> None:
    result = run(jvm, shares, "leave")
    assert of(result["first"], "offset")[0] == 0
    assert of(result["second"], "offset")[0] == 0


def test_console_share_consumer(jvm: Jvm, shares: Shared, values: list[str]) -> None:
    ran = jvm.tool(
        f"{TOOLS}.consumer.ConsoleShareConsumer",
        "--bootstrap-server", shares.address, "--topic", shares.topic, "--group", shares.group,
        "--max-messages", str(RECORDS), "--timeout-ms", "30000",
    )  # fmt: skip
    assert ran.out.split() == values


def test_verifiable_share_consumer(jvm: Jvm, shares: Shared, values: list[str]) -> None:
    ran = jvm.tool(
        f"{TOOLS}.VerifiableShareConsumer",
        "--bootstrap-server", shares.address, "--topic", shares.topic,
        "--group-id", shares.group, "--max-messages", str(RECORDS),
    )  # fmt: skip
    assert '"name":"shutdown_complete"' in ran.out
    acknowledged = [line for line in ran.out.splitlines() if "offsets_acknowledged" in line]
    assert acknowledged
