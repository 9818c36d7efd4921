"""The rules of ShareFetch and ShareAcknowledge, asked request by request."""

from __future__ import annotations

import time

from compat_tests.harness.wire import connect
from compat_tests.share.conftest import Shared
from compat_tests.share.members import (
    Acknowledgements,
    ShareMember,
    deliveries,
    ranges,
    values,
)
from kwire.errors import (
    InvalidRecordState,
    InvalidRequest,
    InvalidShareSessionEpoch,
    ShareSessionNotFound,
    UnknownTopicOrPartition,
)

ACCEPT, RELEASE, REJECT, RENEW = 1, 2, 3, 4


def test_limits_of_acquired_records(shares: Shared) -> None:
    member = shares.join()
    shares.produce(b"0", b"1", b"2")
    shares.produce(b"3")
    shares.produce(b"4", b"5")
    row = member.receive(max_records=1)
    assert (ranges(row), values(row)) == ([(0, 2, 1)], [b"0", b"1", b"2"])
    row = member.receive(max_records=2, share_acquire_mode=1)
    assert (ranges(row), values(row)) == ([(3, 4, 1)], [b"3", b"4", b"5"])
    row = member.receive(max_records=1, share_acquire_mode=1)
    assert (ranges(row), values(row)) == ([(5, 5, 1)], [b"4", b"5"])
    started = time.monotonic()
    assert member.fetch(max_wait_ms=600) is None
    assert time.monotonic() - started >= 0.6


def test_new_records_are_acquired_in_batches_of_the_requested_size(shares: Shared) -> None:
    member = shares.join()
    for _ in range(5):
        shares.produce(b"a", b"b")
    row = member.receive(batch_size=3)
    assert ranges(row) == [(0, 3, 1), (4, 7, 1), (8, 9, 1)]


def test_released_records_are_delivered_again_and_the_others_are_not(shares: Shared) -> None:
    member, other = shares.join(), shares.join()
    shares.produce(b"0", b"1", b"2", b"3")
    assert deliveries(member.receive()) == [(0, 1), (1, 1), (2, 1), (3, 1)]
    assert deliveries(other.fetch()) == []
    assert member.acknowledge({(0, 0): [RELEASE], (1, 1): [ACCEPT], (2, 2): [REJECT]}) == 0
    assert deliveries(other.receive()) == [(0, 2)]
    assert deliveries(member.fetch()) == []
    assert member.acknowledge({(3, 3): [ACCEPT]}) == 0
    assert other.acknowledge({(0, 0): [ACCEPT]}) == 0
    assert deliveries(member.fetch()) == []


def test_acknowledgements_that_are_refused(shares: Shared) -> None:
    member, other = shares.join(), shares.join()
    shares.produce(b"0", b"1", b"2")
    shares.produce(b"3")
    member.receive(max_records=1)
    other.receive()
    invalid: list[Acknowledgements] = [
        {(2, 1): [ACCEPT]},
        {(0, 2): [ACCEPT, ACCEPT]},
        {(0, 2): []},
        {(0, 0): [5]},
        {(0, 0): [-1]},
        {(1, 2): [ACCEPT], (0, 0): [ACCEPT]},
        {(2, 5): [ACCEPT]},
        {(50, 57): [ACCEPT]},
    ]
    assert {member.acknowledge(each) for each in invalid} == {InvalidRequest.code}
    assert member.acknowledge({(3, 3): [ACCEPT]}) == InvalidRecordState.code
    assert member.acknowledge({(1, 1): [ACCEPT], (3, 3): [ACCEPT]}) == InvalidRecordState.code
    assert member.acknowledge({(1, 1): [ACCEPT]}) == 0
    assert member.acknowledge({(1, 1): [ACCEPT]}) == InvalidRecordState.code
    assert member.acknowledge({(0, 0): [ACCEPT]}) == 0
    assert member.acknowledge({(0, 0): [ACCEPT]}) == 0  # Before the start offset.


def test_acknowledgement_of_a_share_partition_that_nobody_fetched(shares: Shared) -> None:
    member = shares.join()
    member.fetch()
    stranger = ShareMember(connect(shares.address), shares.group, shares.topic, b"\x07" * 16)
    shares.members.append(stranger)
    stranger.topic_id = shares.topic_id
    stranger.group = f"{shares.group}-2"
    stranger.fetch()
    assert stranger.acknowledge({(0, 0): [ACCEPT]}) == UnknownTopicOrPartition.code


def test_epochs_of_a_session(shares: Shared) -> None:
    member = shares.join()
    assert member.acknowledge({}) == InvalidShareSessionEpoch.code
    member.epoch = 1
    member.fetch()
    assert member.error == ShareSessionNotFound.code
    member.epoch = 0
    member.fetch(acknowledge={(0, 0): [ACCEPT]})
    assert member.error == InvalidRequest.code
    assert member.fetch() is not None
    member.epoch = 7
    member.fetch()
    assert member.error == InvalidShareSessionEpoch.code
    member.epoch = 1
    started = time.monotonic()
    assert member.fetch(forgets=True, max_wait_ms=25_000) is None
    assert time.monotonic() - started < 20
    member.epoch = -1
    member.fetch()
    assert member.error == 0
    member.fetch()
    assert member.error == ShareSessionNotFound.code


def test_end_of_a_session_releases_records(shares: Shared) -> None:
    leaving, staying = shares.join(), shares.join()
    shares.produce(b"0", b"1")
    assert deliveries(leaving.receive()) == [(0, 1), (1, 1)]
    assert deliveries(staying.fetch()) == []
    leaving.epoch = -1
    assert leaving.acknowledge({(0, 0): [ACCEPT]}) == 0
    assert deliveries(staying.receive()) == [(1, 2)]


def test_lost_connection_releases_records(shares: Shared) -> None:
    lost, staying = shares.join(), shares.join()
    shares.produce(b"0", b"1")
    assert deliveries(lost.receive()) == [(0, 1), (1, 1)]
    assert deliveries(staying.fetch()) == []
    lost.close()
    assert deliveries(staying.receive(max_wait_ms=100)) == [(0, 2), (1, 2)]


def test_member_that_waits_gets_records_that_another_releases(shares: Shared) -> None:
    holder, waiting = shares.join(), shares.join()
    shares.produce(b"0")
    holder.receive()
    waiting.fetch(max_wait_ms=0)
    waiting.client.sock.settimeout(60)
    assert holder.acknowledge({(0, 0): [RELEASE]}) == 0
    started = time.monotonic()
    assert deliveries(waiting.fetch(max_wait_ms=30_000)) == [(0, 2)]
    assert time.monotonic() - started < 25


def test_renewal_needs_a_request_that_fetches_nothing(shares: Shared) -> None:
    member = shares.join()
    shares.produce(b"0")
    member.receive()
    renewal = {(0, 0): [RENEW]}
    member.fetch(acknowledge=renewal, is_renew_ack=True)
    assert member.error == InvalidRequest.code
    row = member.fetch(
        acknowledge=renewal,
        is_renew_ack=True,
        max_records=0,
        max_bytes=0,
        min_bytes=0,
        max_wait_ms=0,
    )
    assert row is not None
    assert row.acknowledge_error_code == 0
    row = member.fetch(acknowledge=renewal)
    assert row is not None
    assert row.acknowledge_error_code == InvalidRequest.code
    assert member.acknowledge(renewal) == 0
    shares.configure(share_renew_acknowledge_enable="false")
    assert member.acknowledge(renewal) == InvalidRecordState.code


def test_records_that_fail_often_are_delivered_in_smaller_parts(shares: Shared) -> None:
    member = shares.join()
    shares.produce(*(b"%d" % n for n in range(8)))
    sizes: list[tuple[int, int]] = []
    while len(sizes) < 12:
        records = deliveries(member.receive())
        sizes.append((len(records), records[0][1]))
        first, last = records[0][0], records[-1][0]
        assert member.acknowledge({(first, last): [RELEASE]}) == 0
    assert sizes[:3] == [(8, 1), (8, 2), (8, 3)]
    assert sizes[3] == (4, 4)
    assert sizes[4:] == [(1, 5), (1, 5), (1, 5), (1, 5), (4, 4), (1, 5), (1, 5), (1, 5)]


def test_limit_of_records_in_flight(shares: Shared) -> None:
    shares.configure(share_partition_max_record_locks="100")
    member = shares.join()
    for _ in range(12):
        shares.produce(*[b"x"] * 10)
    assert ranges(member.receive()) == [(0, 99, 1)]
    assert member.fetch(max_wait_ms=100) is None
    assert member.acknowledge({(90, 99): [ACCEPT]}) == 0
    assert member.fetch(max_wait_ms=100) is None
    assert member.acknowledge({(0, 14): [ACCEPT]}) == 0
    assert ranges(member.receive()) == [(100, 119, 1)]
