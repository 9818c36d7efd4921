"""The log of `kwire serve`: each message is one line, whatever names clients choose."""

import logging
import sys
from pathlib import Path

import pytest

from kwire.codec.messages.consumer_group_heartbeat import ConsumerGroupHeartbeatRequest
from kwire.codec.messages.find_coordinator import FindCoordinatorRequest
from kwire.stderr_log import OneLine
from kwire.testing.wire import WireClient
from tests.support.command_line.cluster import eventually
from tests.support.command_line.process import serve

pytestmark = pytest.mark.slow

GROUP = "grüße\n2026-01-01 00:00:00,000 CRITICAL forged\x1b[2J"


def test_clients_cannot_forge_lines_of_the_log(tmp_path: Path) -> None:
    with serve(tmp_path, "--port", "0") as node:
        with WireClient(node.host, node.port) as client:
            find = FindCoordinatorRequest(key_type=0, coordinator_keys=[GROUP])
            eventually(
                lambda: client.call(find, 6).coordinators[0].error_code == 0, "a coordinator"
            )
            join = ConsumerGroupHeartbeatRequest(
                group_id=GROUP,
                member_id="A" * 22,
                member_epoch=0,
                rebalance_timeout_ms=10_000,
                subscribed_topic_names=["t"],
                topic_partitions=[],
            )
            eventually(lambda: client.call(join, 1).error_code == 0, "a member")
        assert node.stop() == 0
        lines = node.errors.read_text().split("\n")
    about = [line for line in lines if "forged" in line]
    assert about
    for line in about:
        assert r"group=grüße\n2026-01-01 00:00:00,000 CRITICAL forged\x1b[2J" in line


def test_clean_stop_ends_with_its_own_line(tmp_path: Path) -> None:
    """Without it, an operator cannot tell a stop that ended from one that was killed."""
    with serve(tmp_path, "--port", "0") as node:
        assert node.stop() == 0
        lines = node.errors.read_text().splitlines()
    assert lines[-1].endswith("stopped node=1"), lines


def test_tracebacks_cannot_forge_lines_of_the_log() -> None:
    formatter = OneLine("%(asctime)s %(levelname)s %(message)s")
    try:
        raise ValueError(GROUP)
    except ValueError:
        record = logging.LogRecord(
            "kwire", logging.ERROR, __file__, 1, "failed", (), sys.exc_info()
        )
    first, *others = formatter.format(record).split("\n")
    assert first.endswith(" ERROR failed")
    assert any(r"forged\x1b[2J" in line for line in others)
    assert all(line.startswith("  ") for line in others)
