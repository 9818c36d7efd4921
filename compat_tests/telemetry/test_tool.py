"""kafka-client-metrics.sh, and the requests for subscriptions."""

from __future__ import annotations

import re

import pytest

from compat_tests.telemetry.conftest import TOOL

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
