"""kafka-client-metrics.sh, and the requests for subscriptions."""

from __future__ import annotations

import re

import pytest

from compat_tests.harness.wait import eventually
from compat_tests.harness.wire import connect
from compat_tests.telemetry.conftest import TOOL
from kwire.codec.messages.get_telemetry_subscriptions import GetTelemetrySubscriptionsRequest
from kwire.types import ZERO_UUID

pytestmark = pytest.mark.single


def test_subscriptions_are_altered_described_listed_and_deleted(tool, unique):
    name = unique("subscription")
    match = "client_software_name=java.*,client_id=app"
    options = ("--metrics", "a.,b.", "--interval", "1000", "--match", match)
    assert f"Altered client metrics config for {name}." in tool.run(
        "--alter", "--name", name, *options
    )
    assert name in tool.run("--list").split()
    described = tool.run("--describe", "--name", name)
    assert f"Client metrics configs for {name} are:" in described
    assert re.search(r"interval\.ms=1000", described)
    assert re.search(r"metrics=a\.,b\.", described)
    assert f"match={match}" in described
    assert name in tool.run("--describe")
    tool.run("--delete", "--name", name)
    assert name not in tool.run("--list").split()


def test_invalid_patterns_are_rejected(tool, unique):
    name = unique("subscription")
    ran = tool.jvm.tool(
        TOOL,
        *("--bootstrap-server", tool.address, "--alter", "--name", name),
        *("--metrics", "a", "--match", "color=blue"),
    )
    assert ran.code != 0
    assert "Illegal client matching pattern: color=blue" in ran.out + ran.err
    assert name not in tool.run("--list").split()


def test_subscription_chooses_clients_by_their_port(receiver, tool, unique):
    name = unique("subscription")
    address = receiver.broker.address
    with connect(address) as chosen, connect(address) as other:
        match = f"client_source_port={chosen.sock.getsockname()[1]}"
        tool.run("--alter", "--name", name, "--metrics", "by.port.", "--match", match)
        request = GetTelemetrySubscriptionsRequest(client_instance_id=ZERO_UUID)
        try:
            eventually(
                lambda: "by.port." in chosen.call(request, 0).requested_metrics,
                "the client is subscribed",
            )
            assert "by.port." not in other.call(request, 0).requested_metrics
        finally:
            tool.run("--delete", "--name", name)
