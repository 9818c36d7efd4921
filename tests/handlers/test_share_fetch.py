"""ShareFetch and ShareAcknowledge, as members of a share group see them."""

from functools import partial
from typing import Any

import attrs
import pytest
import trio

from kwire.codec.messages import metadata_records as r
from kwire.configs.broker import BrokerConfig
from kwire.errors import (
    InvalidRecordState,
    InvalidRequest,
    InvalidShareSessionEpoch,
    NotLeaderOrFollower,
    ShareSessionLimitReached,
    ShareSessionNotFound,
    UnknownServerError,
    UnknownTopicId,
    UnsupportedVersion,
)
from kwire.handlers.shared.client_quotas import FETCHED
from kwire.handlers.shared.context import ClientConnection
from kwire.records import control, header
from kwire.share.persister import StateBatch
from kwire.share.sessions import FINAL_EPOCH
from tests.support.handlers.broker import NOW_MS, create_topic, one_batch, topic_id, write
from tests.support.handlers.throttles import throttles
from tests.support.share.members import GROUP, deliveries, share_node, values
from tests.support.share.persister import MemoryPersister

GAP, ACCEPT, RELEASE, REJECT, RENEW = 0, 1, 2, 3, 4


async def test_records_are_delivered_to_one_member_at_a_time(autojump_clock: Any) -> None:
    async with share_node() as node:
        partition = await create_topic(node.broker)
        await node.initialize(0)
        write(node.broker, partition, b"0", b"1", b"2")
        write(node.broker, partition, b"3")
        first, second = node.member("first"), node.member("second")
        (row,) = await first.fetch(0, max_records=1)
        assert deliveries(row) == [(0, 2, 1)]
        assert values(row) == [b"0", b"1", b"2"]
        (row,) = await second.fetch(0)
        assert deliveries(row) == [(3, 3, 1)]
        assert values(row) == [b"3"]
        assert await first.fetch() == []


async def test_exact_limit_of_records(autojump_clock: Any) -> None:
    async with share_node() as node:
        partition = await create_topic(node.broker)
        await node.initialize(0)
        write(node.broker, partition, b"0", b"1", b"2")
        member = node.member("m")
        (row,) = await member.fetch(0, max_records=2, share_acquire_mode=1)
        assert deliveries(row) == [(0, 1, 1)]
        assert values(row) == [b"0", b"1", b"2"]  # Batches are sent as they are.
        (row,) = await member.fetch(max_records=2, share_acquire_mode=1)
        assert deliveries(row) == [(2, 2, 1)]


async def test_member_above_its_quota_is_throttled(autojump_clock: Any) -> None:
    async with share_node() as node:
        partition = await create_topic(node.broker)
        await node.initialize(0)
        entity = r.ClientQuotaRecord.EntityData(entity_type="user", entity_name=None)
        await node.broker.publish(
            r.ClientQuotaRecord(entity=[entity], key=FETCHED, value=10, remove=False)
        )
        write(node.broker, partition, bytes(1000))
        (row,) = await node.member("m").fetch(0)
        assert len(values(row)) == 1
        count, seconds = throttles(node.broker.services.metrics, FETCHED)
        assert (count, seconds) == (1, pytest.approx(96, abs=4)), "10 of 106 seconds are free"


async def test_new_records_are_acquired_in_batches(autojump_clock: Any) -> None:
    async with share_node() as node:
        partition = await create_topic(node.broker)
        await node.initialize(0)
        for _ in range(5):
            write(node.broker, partition, b"a", b"b")
        (row,) = await node.member("m").fetch(0, batch_size=3)
        assert deliveries(row) == [(0, 3, 1), (4, 7, 1), (8, 9, 1)]


async def test_accepted_records_are_stored_and_not_delivered_again(autojump_clock: Any) -> None:
    async with share_node() as node:
        partition = await create_topic(node.broker)
        await node.initialize(0)
        write(node.broker, partition, b"0", b"1", b"2", b"3")
        member = node.member("m")
        await member.fetch(0)
        assert (
            await member.acknowledge({(0, 0): [RELEASE], (1, 2): [ACCEPT], (3, 3): [REJECT]}) == 0
        )
        stored = node.persister.states[GROUP, topic_id("t"), 0]
        assert stored.batches() == [
            StateBatch(0, 0, 0, 1),
            StateBatch(1, 2, 2, 1),
            StateBatch(3, 3, 4, 1),
        ]
        assert stored.delivery_complete_count == 3
        (row,) = await member.fetch(acknowledge={})
        assert deliveries(row) == [(0, 0, 2)]
        (row,) = await member.fetch(acknowledge={(0, 0): [ACCEPT]})
        assert (row.acknowledge_error_code, deliveries(row)) == (0, [])
        assert stored.start_offset == 0  # The new start is stored with the next change.
        assert [each.in_flight.start for each in node.service] == [4]


async def test_one_type_for_each_record(autojump_clock: Any) -> None:
    async with share_node() as node:
        partition = await create_topic(node.broker)
        await node.initialize(0)
        write(node.broker, partition, b"0", b"1", b"2")
        member = node.member("m")
        await member.fetch(0)
        assert await member.acknowledge({(0, 2): [ACCEPT, RELEASE, ACCEPT]}) == 0
        (row,) = await member.fetch()
        assert deliveries(row) == [(1, 1, 2)]


@pytest.mark.parametrize(
    "acknowledgements",
    [
        {(2, 1): [ACCEPT]},
        {(0, 2): [ACCEPT, ACCEPT]},
        {(0, 2): []},
        {(0, 0): [5]},
        {(0, 0): [-1]},
        {(1, 2): [ACCEPT], (0, 0): [ACCEPT]},
        {(0, 3): [ACCEPT]},
    ],
)
async def test_invalid_acknowledgements(acknowledgements: Any, autojump_clock: Any) -> None:
    async with share_node() as node:
        partition = await create_topic(node.broker)
        await node.initialize(0)
        write(node.broker, partition, b"0", b"1", b"2")
        member = node.member("m")
        await member.fetch(0)
        assert await member.acknowledge(acknowledgements) == InvalidRequest.code


async def test_only_the_holder_acknowledges(autojump_clock: Any) -> None:
    async with share_node() as node:
        partition = await create_topic(node.broker)
        await node.initialize(0)
        write(node.broker, partition, b"0", b"1")
        holder, other = node.member("holder"), node.member("other")
        await holder.fetch(0)
        await other.fetch(0)
        assert await other.acknowledge({(0, 0): [ACCEPT]}) == InvalidRecordState.code
        assert await holder.acknowledge({(1, 1): [ACCEPT]}) == 0
        assert await holder.acknowledge({(1, 1): [ACCEPT]}) == InvalidRecordState.code


async def test_a_failed_acknowledgement_changes_nothing(autojump_clock: Any) -> None:
    async with share_node() as node:
        partition = await create_topic(node.broker)
        await node.initialize(0)
        write(node.broker, partition, b"0", b"1", b"2")
        member = node.member("m")
        await member.fetch(0)
        error = await member.acknowledge({(0, 0): [ACCEPT], (2, 3): [ACCEPT]})
        assert error == InvalidRequest.code
        node.persister.error_code = 16
        assert await member.acknowledge({(0, 0): [ACCEPT]}) == 15
        node.persister.error_code = 0
        assert await member.acknowledge({(0, 2): [ACCEPT]}) == 0


async def test_lock_ends_and_the_delivery_count_grows(autojump_clock: Any) -> None:
    async with share_node(max_deliveries=2) as node:
        partition = await create_topic(node.broker)
        await node.initialize(0)
        write(node.broker, partition, b"0", b"1")
        member = node.member("m")
        await member.fetch(0)
        await trio.sleep(29)
        assert await member.fetch() == []
        (row,) = await member.fetch(max_wait_ms=5000)
        assert deliveries(row) == [(0, 1, 2)]
        assert trio.current_time() == pytest.approx(30, abs=0.1)
        write(node.broker, partition, b"2")
        await trio.sleep(31)
        (row,) = await member.fetch()
        assert deliveries(row) == [(2, 2, 1)]
        assert node.persister.states[GROUP, topic_id("t"), 0].start_offset == 2


async def test_renewed_lock_ends_later(autojump_clock: Any) -> None:
    async with share_node() as node:
        partition = await create_topic(node.broker)
        await node.initialize(0)
        write(node.broker, partition, b"0", b"1")
        member = node.member("m")
        await member.fetch(0)
        await trio.sleep(20)
        assert await member.acknowledge({(0, 0): [RENEW]}) == 0
        await trio.sleep(20)
        (row,) = await member.fetch()
        assert deliveries(row) == [(1, 1, 2)]
        assert await member.acknowledge({(0, 0): [ACCEPT]}) == 0


async def test_renewing_can_be_disabled(autojump_clock: Any) -> None:
    async with share_node(may_renew=False) as node:
        partition = await create_topic(node.broker)
        await node.initialize(0)
        write(node.broker, partition, b"0")
        member = node.member("m")
        await member.fetch(0)
        assert await member.acknowledge({(0, 0): [RENEW]}) == InvalidRecordState.code


async def test_request_that_renews_fetches_nothing(autojump_clock: Any) -> None:
    async with share_node() as node:
        partition = await create_topic(node.broker)
        await node.initialize(0)
        write(node.broker, partition, b"0")
        write(node.broker, partition, b"1")
        member = node.member("m")
        await member.fetch(0, max_records=1)
        renewal: Any = {"acknowledge": {(0, 0): [RENEW]}, "is_renew_ack": True}
        await member.fetch(**renewal)
        assert member.error == InvalidRequest.code
        nothing: Any = {"max_bytes": 0, "min_bytes": 0, "max_records": 0}
        (row,) = await member.fetch(**renewal, **nothing)
        assert (row.acknowledge_error_code, deliveries(row)) == (0, [])


async def test_leaving_member_gives_its_records_back(autojump_clock: Any) -> None:
    async with share_node() as node:
        partition = await create_topic(node.broker)
        await node.initialize(0)
        write(node.broker, partition, b"0", b"1")
        leaving, staying = node.member("leaving"), node.member("staying")
        await leaving.fetch(0)
        assert deliveries((await staying.fetch(0))[0]) == []
        await leaving.leave()
        (row,) = await staying.fetch()
        assert deliveries(row) == [(0, 1, 2)]
        leaving.epoch = 1
        await leaving.fetch()
        assert leaving.error == ShareSessionNotFound.code


async def test_waiting_fetch_gets_released_and_new_records(autojump_clock: Any) -> None:
    async with share_node() as node:
        partition = await create_topic(node.broker)
        await node.initialize(0)
        write(node.broker, partition, b"0")
        holder, waiting = node.member("holder"), node.member("waiting")
        await holder.fetch(0)
        rows: list[Any] = []

        async def wait() -> None:
            rows.extend(await waiting.fetch(0, max_wait_ms=10_000))

        async with trio.open_nursery() as nursery:
            nursery.start_soon(wait)
            await trio.sleep(1)
            await holder.acknowledge({(0, 0): [RELEASE]})
        assert deliveries(rows[0]) == [(0, 0, 2)]
        async with trio.open_nursery() as nursery:
            nursery.start_soon(wait)
            await trio.sleep(1)
            write(node.broker, partition, b"1")
        assert deliveries(rows[1]) == [(1, 1, 1)]
        assert trio.current_time() == 2


async def test_limit_of_records_in_flight(autojump_clock: Any) -> None:
    async with share_node(max_in_flight=4) as node:
        partition = await create_topic(node.broker)
        await node.initialize(0)
        for _ in range(4):
            write(node.broker, partition, b"a", b"b")
        member = node.member("m")
        (row,) = await member.fetch(0, max_records=2)
        assert deliveries(row) == [(0, 1, 1)]
        (row,) = await member.fetch()
        assert deliveries(row) == [(2, 3, 1)]
        assert await member.fetch() == []
        await member.acknowledge({(2, 3): [ACCEPT]})
        assert await member.fetch() == []
        await member.acknowledge({(0, 1): [ACCEPT]})
        (row,) = await member.fetch()
        assert deliveries(row) == [(4, 7, 1)]


async def test_new_leader_delivers_what_was_not_acknowledged(autojump_clock: Any) -> None:
    async with share_node() as node:
        partition = await create_topic(node.broker)
        await node.initialize(0)
        write(node.broker, partition, b"0", b"1", b"2", b"3")
        member = node.member("m")
        await member.fetch(0)
        await member.acknowledge({(1, 1): [ACCEPT], (2, 2): [RELEASE]})
        await node.broker.lead_again("t", leader=2)
        (row,) = await member.fetch()
        assert row.error_code == NotLeaderOrFollower.code
        assert await member.acknowledge({(0, 0): [ACCEPT]}) != 0
        await node.broker.lead_again("t")
        (row,) = await member.fetch()
        assert deliveries(row) == [(0, 0, 1), (2, 2, 2), (3, 3, 1)]


async def test_write_of_a_replaced_leader_is_fenced(autojump_clock: Any) -> None:
    async with share_node() as node:
        partition = await create_topic(node.broker)
        await node.initialize(0)
        write(node.broker, partition, b"0")
        member = node.member("m")
        await member.fetch(0)
        await node.persister.read(GROUP, topic_id("t"), 0, 7)
        assert await member.acknowledge({(0, 0): [ACCEPT]}) == NotLeaderOrFollower.code
        (row,) = await member.fetch()
        assert row.error_code == NotLeaderOrFollower.code
        assert (row.current_leader.leader_id, row.current_leader.leader_epoch) == (-1, -1)


@pytest.mark.parametrize(("reset", "start"), [("earliest", 0), ("latest", 2)])
async def test_group_begins_where_its_reset_says(
    reset: str, start: int, autojump_clock: Any
) -> None:
    async with share_node(reset=reset) as node:
        partition = await create_topic(node.broker)
        await node.initialize()
        write(node.broker, partition, b"0", b"1")
        member = node.member("m")
        await member.fetch(0)
        write(node.broker, partition, b"2")
        await member.fetch()
        assert [each.in_flight.start for each in node.service] == [start]


async def test_deleted_records_are_not_delivered(autojump_clock: Any) -> None:
    async with share_node() as node:
        partition = await create_topic(node.broker)
        await node.initialize(0)
        write(node.broker, partition, b"0", b"1", b"2")
        member = node.member("m")
        await member.fetch(0)
        node.broker.replicas.delete_before(partition, 2)
        assert await member.fetch() == []
        assert await member.acknowledge({(0, 2): [RELEASE]}) == 0
        (row,) = await member.fetch()
        assert deliveries(row) == [(2, 2, 2)]


async def test_session_epochs(autojump_clock: Any) -> None:
    async with share_node() as node:
        await create_topic(node.broker)
        await node.initialize(0)
        member = node.member("m")
        assert await member.acknowledge({}) == InvalidShareSessionEpoch.code
        await member.fetch(0)
        assert member.epoch == 1
        member.epoch = 5
        await member.fetch()
        assert member.error == InvalidShareSessionEpoch.code
        member.epoch = 0
        await member.fetch(acknowledge={(0, 0): [ACCEPT]})
        assert member.error == InvalidRequest.code
        stranger = node.member("stranger")
        stranger.epoch = 1
        await stranger.fetch()
        assert stranger.error == ShareSessionNotFound.code


async def test_limit_of_sessions(autojump_clock: Any) -> None:
    async with share_node() as node:
        node.broker.current.config = BrokerConfig({"group.share.max.share.sessions": "1"})
        await create_topic(node.broker)
        await node.initialize(0)
        first, second = node.member("first"), node.member("second")
        await first.fetch(0)
        await second.fetch(0, max_wait_ms=500)
        assert second.error == ShareSessionLimitReached.code
        assert trio.current_time() == pytest.approx(0.5)
        await first.leave()
        await second.fetch(0)
        assert second.error == 0


async def test_errors_of_requests(autojump_clock: Any) -> None:
    async with share_node() as node:
        member = node.member("m")
        (row,) = await member.fetch(0)
        assert row.error_code == UnknownTopicId.code
        nameless = node.member("")
        await nameless.fetch(0)
        assert nameless.error == InvalidRequest.code
        node.broker.current.image = node.broker.current.image.__class__()
        await member.fetch()
        assert member.error == UnsupportedVersion.code


async def test_lost_connection_ends_only_its_own_session(autojump_clock: Any) -> None:
    async with share_node() as node:
        partition = await create_topic(node.broker)
        await node.initialize(0)
        write(node.broker, partition, b"0")
        lost, staying = node.member("lost"), node.member("staying")
        await lost.fetch(0)
        await staying.fetch(0)
        former = lost.connection
        lost.connection, lost.epoch = ClientConnection(), 0
        (row,) = await lost.fetch(0)
        former.close()
        await trio.sleep(1)
        assert await staying.fetch() == []
        assert await lost.fetch() == []
        assert lost.error == 0
        lost.connection.close()
        (row,) = await staying.fetch(max_wait_ms=1000)
        assert deliveries(row) == [(0, 0, 2)]
        await lost.fetch()
        assert lost.error == ShareSessionNotFound.code


async def test_connection_forgets_a_session_that_has_ended(autojump_clock: Any) -> None:
    async with share_node() as node:
        await create_topic(node.broker)
        await node.initialize(0)
        member = node.member("m")
        await member.fetch(0)
        assert len(member.connection.on_closed) == 1
        await member.leave()
        assert not member.connection.on_closed
        member.epoch = 0
        await member.fetch(0)
        former, member.connection, member.epoch = member.connection, ClientConnection(), 0
        await member.fetch(0)
        assert not former.on_closed
        assert len(member.connection.on_closed) == 1


@pytest.fixture
def may_write(monkeypatch: pytest.MonkeyPatch) -> trio.Event:
    """Have the persister's writes wait; return the event that lets them go on."""
    write_state, may_write = MemoryPersister.write, trio.Event()

    async def write_slowly(persister: MemoryPersister, *state: Any) -> int:
        await may_write.wait()
        return await write_state(persister, *state)

    monkeypatch.setattr(MemoryPersister, "write", write_slowly)
    return may_write


async def test_member_that_returns_keeps_what_it_acquires_while_its_records_are_released(
    autojump_clock: Any, may_write: trio.Event
) -> None:
    async with share_node() as node:
        first = await create_topic(node.broker, partitions=2)
        second = node.broker.replicas.partitions.find("t", 1)
        assert second is not None
        await node.initialize(0, partitions=2)
        write(node.broker, first, b"0")
        member, staying = node.member("m"), node.member("staying")
        await member.fetch(0, 1)
        await staying.fetch(0, 1)
        member.connection.close()
        await trio.sleep(1)
        write(node.broker, second, b"1")
        member.connection, member.epoch = ClientConnection(), 0
        rows = await member.fetch(0, 1)
        acquired = {row.partition_index: deliveries(row) for row in rows}
        assert acquired == {0: [], 1: [(0, 0, 1)]}
        may_write.set()
        await trio.sleep(1)
        rows = await staying.fetch()
        assert {row.partition_index: deliveries(row) for row in rows} == {0: [(0, 0, 2)]}


@pytest.mark.parametrize("api", ["ShareAcknowledge", "ShareFetch"])
async def test_last_request_of_a_session_does_not_end_the_next_one(
    api: str, autojump_clock: Any, may_write: trio.Event
) -> None:
    async with share_node() as node, trio.open_nursery() as nursery:
        partition = await create_topic(node.broker)
        await node.initialize(0)
        write(node.broker, partition, b"0")
        member, staying = node.member("m"), node.member("staying")
        await member.fetch(0)
        await staying.fetch(0)
        former = attrs.evolve(member, epoch=FINAL_EPOCH)
        accepted = {(0, 0): [ACCEPT]}
        if api == "ShareFetch":
            nursery.start_soon(partial(former.fetch, acknowledge=accepted))
        else:
            nursery.start_soon(former.acknowledge, accepted)
        await trio.sleep(1)
        write(node.broker, partition, b"1")
        member.epoch = 0
        (row,) = await member.fetch(0)
        assert deliveries(row) == [(1, 1, 1)]
        may_write.set()
        await trio.sleep(1)
        assert former.error == 0
        assert await staying.fetch() == [], "the member holds the record"
        assert await member.acknowledge({(1, 1): [ACCEPT]}) == 0


async def test_records_of_aborted_transactions_are_not_delivered(autojump_clock: Any) -> None:
    async with share_node(reads_committed=True) as node:
        partition = await create_topic(node.broker)
        await node.initialize(0)
        transaction = {"producer_epoch": 0, "base_sequence": 0, "transactional": True}
        write(node.broker, partition, b"plain")
        write(node.broker, partition, b"aborted", b"aborted", producer_id=5, **transaction)
        member = node.member("m")
        (row,) = await member.fetch(0)
        assert deliveries(row) == [(0, 0, 1)]
        write(node.broker, partition, b"later")
        assert await member.fetch() == []
        marker = control.end_txn_marker(
            commit=False, coordinator_epoch=0, producer_id=5, producer_epoch=0, timestamp_ms=NOW_MS
        )
        partition.append(marker, header.parse(marker), 1, 0.0, NOW_MS, from_client=False)
        (row,) = await member.fetch()
        assert deliveries(row) == [(3, 4, 1)]
        assert await member.acknowledge({(0, 0): [ACCEPT], (3, 4): [ACCEPT]}) == 0
        assert [each.in_flight.start for each in node.service] == [5]


async def test_records_of_a_batch_that_is_not_sent_whole_stay_available(
    autojump_clock: Any,
) -> None:
    async with share_node() as node:
        partition = await create_topic(node.broker)
        await node.initialize(0)
        write(node.broker, partition, b"x" * 100)
        write(node.broker, partition, b"y" * 100)
        member = node.member("m")
        (row,) = await member.fetch(0, max_bytes=250)
        assert deliveries(row) == [(0, 0, 1)]
        assert values(row) == [b"x" * 100]
        (row,) = await member.fetch(max_bytes=10)
        assert deliveries(row) == [(1, 1, 1)]


async def test_only_batches_with_acquired_records_are_sent(autojump_clock: Any) -> None:
    async with share_node() as node:
        partition = await create_topic(node.broker)
        await node.initialize(0)
        for value in (b"0", b"1", b"2"):
            write(node.broker, partition, value)
        member = node.member("m")
        await member.fetch(0)
        await member.acknowledge({(1, 1): [RELEASE]})
        (row,) = await member.fetch()
        assert (deliveries(row), values(row)) == ([(1, 1, 2)], [b"1"])


async def test_partitions_share_the_bytes_and_take_turns(autojump_clock: Any) -> None:
    async with share_node() as node:
        await create_topic(node.broker, partitions=3)
        await node.initialize(0, partitions=3)
        for index in range(3):
            partition = node.broker.replicas.partitions.get("t", index)
            for _ in range(4):
                write(node.broker, partition, b"x" * 200)
        member = node.member("m")
        rows = await member.fetch(0, 1, 2, max_bytes=900)
        assert [deliveries(row) for row in rows] == [[(0, 0, 1)]] * 3
        firsts = []
        for _ in range(3):
            rows = await member.fetch(max_records=1)
            firsts += [row.partition_index for row in rows]
        assert sorted(firsts) == [0, 1, 2]


async def test_record_that_fails_again_and_again_is_delivered_alone(autojump_clock: Any) -> None:
    async with share_node() as node:
        partition = await create_topic(node.broker)
        await node.initialize(0)
        write(node.broker, partition, *(b"%d" % n for n in range(8)))
        member = node.member("m")
        (row,) = await member.fetch(0)
        sizes = []
        while row.acquired_records:
            (first, last, count), *more = deliveries(row)
            assert not more
            sizes.append((last - first + 1, count))
            (row,) = await member.fetch(acknowledge={(first, last): [RELEASE]})
        failing = [(4, 4), (1, 5), (1, 5), (1, 5), (1, 5)]
        assert sizes == [(8, 1), (8, 2), (8, 3), *failing, *failing]


async def test_group_without_members_begins_again_with_what_is_stored(
    autojump_clock: Any,
) -> None:
    async with share_node() as node:
        partition = await create_topic(node.broker)
        await node.initialize(0)
        write(node.broker, partition, b"0", b"1", b"2")
        first, second = node.member("first"), node.member("second")
        await first.fetch(0, max_records=1)
        await second.fetch(0)
        await first.leave()
        assert len(list(node.service)) == 1
        await second.leave()
        assert not list(node.service)
        await node.initialize(2)
        (row,) = await node.member("third").fetch(0)
        assert deliveries(row) == [(2, 2, 1)]


async def test_error_that_a_client_cannot_repair_waits(autojump_clock: Any) -> None:
    async with share_node() as node:
        member = node.member("m")
        (row,) = await member.fetch(0, max_wait_ms=500)
        assert row.error_code == UnknownTopicId.code
        assert trio.current_time() == pytest.approx(0.5)


async def test_gap_longer_than_the_limit_in_flight_stops_no_member(autojump_clock: Any) -> None:
    async with share_node() as node:
        partition = await create_topic(node.broker)
        await node.initialize(0)
        partition.log.append_follower(one_batch(b"far", base_offset=2500, leader_epoch=0))
        write(node.broker, partition, b"next")
        assert partition.log.log_start == 0
        member = node.member("m")
        (row,) = await member.fetch(0)
        assert (deliveries(row), values(row)) == ([(2500, 2500, 1)], [b"far"])
        (row,) = await member.fetch()
        assert (deliveries(row), values(row)) == ([(2501, 2501, 1)], [b"next"])


async def test_records_that_compaction_removed_are_delivered_as_gaps(autojump_clock: Any) -> None:
    async with share_node(reads_committed=True) as node:
        partition = await create_topic(node.broker)
        await node.initialize(0)
        stored = [StateBatch(6, 9, 2, 1)]
        await node.persister.write(GROUP, topic_id("t"), 0, 0, 0, 0, 4, stored)
        transaction = {"producer_epoch": 0, "base_sequence": 0, "transactional": True}
        write(node.broker, partition, b"aborted", producer_id=5, **transaction)
        marker = control.end_txn_marker(
            commit=False,
            coordinator_epoch=0,
            producer_id=5,
            producer_epoch=0,
            timestamp_ms=NOW_MS,
            base_offset=9,
        )
        partition.log.append_follower(marker)
        write(node.broker, partition, b"later")
        member = node.member("m")
        (row,) = await member.fetch(0, max_records=6)
        assert (row.error_code, deliveries(row), values(row)) == (0, [(1, 5, 1)], [])
        assert await member.acknowledge({(1, 5): [GAP]}) == 0
        (row,) = await member.fetch()
        assert (deliveries(row), values(row)) == ([(10, 10, 1)], [b"later"])


async def test_fault_of_the_persister_fails_only_the_acknowledgement(
    autojump_clock: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def fail(*args: object) -> int:
        raise ZeroDivisionError

    async with share_node() as node:
        partition = await create_topic(node.broker)
        await node.initialize(0)
        write(node.broker, partition, b"0")
        member = node.member("m")
        await member.fetch(0)
        with monkeypatch.context() as patch:
            patch.setattr(MemoryPersister, "write", fail)
            assert await member.acknowledge({(0, 0): [ACCEPT]}) == UnknownServerError.code
        assert await member.acknowledge({(0, 0): [ACCEPT]}) == 0
