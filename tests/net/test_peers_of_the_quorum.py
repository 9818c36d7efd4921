"""The quorum over connections without answers, and addresses that are invalid."""

from random import Random

import attrs
import pytest
import trio

from kwire.clock import SystemClock
from kwire.codec.frame import read_header, response_parts
from kwire.codec.messages.api_versions import ApiVersionsResponse
from kwire.net.connection_pool import ConnectionPool, Network, OutOfReach, RaftPeers
from kwire.raftmeta.quorum import RaftService
from kwire.raftmeta.raft.quorum_state import ElectionState
from kwire.raftmeta.raft.voters import ReplicaKey, Voter, VoterEndpoint, VoterSet
from simulation.raft.memory_storage import MemoryStorage
from simulation.raft.quorums import config_of
from tests.support.net.peer import Other, heartbeat


@attrs.define
class Mute(Other):
    """A node behind a lost route: it accepts connections, and answers only ApiVersions."""

    third: trio.Event = attrs.field(factory=trio.Event)

    async def begin(self, frame: memoryview) -> list[bytes]:
        head, _ = read_header(frame)
        if head.api_key != 18:
            await trio.sleep_forever()
        self.connection_count += 1
        if self.connection_count == 3:
            self.third.set()
        response = ApiVersionsResponse(api_keys=[range_of(key) for key in (1, 18, 52)])
        return response_parts(18, head.api_version, head.correlation_id, response)


def range_of(key: int) -> ApiVersionsResponse.ApiVersion:
    return ApiVersionsResponse.ApiVersion(api_key=key, min_version=0, max_version=20)


async def test_raft_connection_without_answers_is_replaced() -> None:
    """TCP itself would end it only after 15 minutes; no request would arrive until then."""
    other, config = Mute(), config_of(2, request_timeout_s=0.05, retry_backoff_max_s=0.02)
    clock = SystemClock()
    network = Network(clock, Random(1))
    pool = ConnectionPool(network, "raft-client-2", timeout_s=config.request_timeout_s)
    async with trio.open_nursery() as nursery:
        await nursery.start(other.service.run)
        other.service.bind("L", "127.0.0.1", 0)
        other.service.accept("L", lambda *_: other)
        await nursery.start(network.run)
        voter = Voter(ReplicaKey(1), (VoterEndpoint("CONTROLLER", "127.0.0.1", other.port),))
        storage = MemoryStorage()
        storage.election = ElectionState(1, 1)
        quorum = RaftService(
            config,
            storage,
            clock=clock,
            random=network.random,
            configured=VoterSet.of([voter, Voter(ReplicaKey(2), config.endpoints)]),
            peers=RaftPeers(pool),
        )
        await nursery.start(quorum.run)
        with trio.fail_after(10):
            await other.third.wait()
        nursery.cancel_scope.cancel()


@pytest.mark.parametrize("host", ["a..b", "a" * 64, "ü" * 70, "\ud800"])
async def test_invalid_host_is_out_of_reach(host: str) -> None:
    """It may come with a response, or be in the voter set by an operator's mistake."""
    network = Network(SystemClock(), Random(1))
    pool = ConnectionPool(network, "raft-client-2")
    async with trio.open_nursery() as nursery:
        await nursery.start(network.run)
        with pytest.raises(OutOfReach):
            await pool.call(host, 9093, heartbeat("g"))
        assert network.nursery is not None
        nursery.cancel_scope.cancel()
