"""Share groups on a broker with short locks that is killed and restarted."""

from __future__ import annotations

import time
from collections.abc import Callable

from compat_tests.harness.broker import PLAIN_PROFILE, Broker
from compat_tests.share.conftest import Shared
from compat_tests.share.members import create_topic, deliveries

ACCEPT, RELEASE, REJECT, RENEW = 1, 2, 3, 4
BROKER_SETTINGS = {
    **PLAIN_PROFILE,
    "group.share.min.record.lock.duration.ms": "1000",
    "share.coordinator.state.topic.replication.factor": "1",
    "share.coordinator.state.topic.min.isr": "1",
}
LOCK_MS = 3000


def test_locks_end_and_a_killed_broker_continues(
    own_broker: Broker, unique: Callable[[str], str]
) -> None:
    topic = unique("topic")
    topic_id = create_topic(own_broker.address, topic)
    shares = Shared(own_broker.address, topic, topic_id, unique("group"))
    shares.configure(
        share_auto_offset_reset="earliest",
        share_record_lock_duration_ms=str(LOCK_MS),
        share_delivery_count_limit="3",
    )
    member, other = shares.join(), shares.join()
    shares.produce(b"0", b"1")
    assert deliveries(member.receive()) == [(0, 1), (1, 1)]
    renewed_until = time.monotonic() + 1.5 * LOCK_MS / 1000
    while time.monotonic() < renewed_until:
        time.sleep(0.2)
        assert member.acknowledge({(0, 0): [RENEW]}) == 0
    assert deliveries(other.receive()) == [(1, 2)]
    assert other.acknowledge({(1, 1): [RELEASE]}) == 0
    assert deliveries(other.receive()) == [(1, 3)]
    assert other.acknowledge({(1, 1): [RELEASE]}) == 0
    assert member.acknowledge({(0, 0): [ACCEPT]}) == 0
    assert deliveries(other.fetch()) == []  # Delivered as often as the group allows.

    shares.produce(b"2", b"3", b"4", b"5")
    assert deliveries(member.receive()) == [(2, 1), (3, 1), (4, 1), (5, 1)]
    outcome = {(2, 2): [RELEASE], (3, 3): [ACCEPT], (4, 4): [REJECT]}
    assert member.acknowledge(outcome) == 0
    own_broker.kill()
    own_broker.start()
    member.close()
    other.close()
    again = shares.join()
    assert deliveries(again.receive()) == [(2, 2), (5, 1)]
    assert again.acknowledge({(2, 2): [ACCEPT], (5, 5): [ACCEPT]}) == 0
    shares.produce(b"6")
    assert deliveries(again.receive()) == [(6, 1)]
    again.close()
