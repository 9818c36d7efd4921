"""Three running quorums: the machine, the driver and delivery together, on a clock that jumps."""

import pytest
import trio
from trio.testing import MockClock

from kwire import errors
from kwire.codec.messages.describe_quorum import DescribeQuorumRequest, DescribeQuorumResponse
from kwire.codec.messages.metadata_records import TopicRecord
from simulation.raft.peers import quorum_of


def topic(number: int) -> TopicRecord:
    return TopicRecord(name=f"topic-{number}", topic_id=bytes(15) + bytes([number]))


def describe() -> DescribeQuorumRequest:
    part = DescribeQuorumRequest.TopicData.PartitionData(partition_index=0)
    return DescribeQuorumRequest(
        topics=[DescribeQuorumRequest.TopicData(topic_name="__cluster_metadata", partitions=[part])]
    )


async def test_three_nodes_elect_commit_and_agree(autojump_clock: MockClock) -> None:
    async with quorum_of(1, 2, 3) as members:
        with trio.fail_after(10):
            leader = await members.leader()
            commit = leader.append_nowait([topic(1)], leader.leader().epoch)
            await commit.wait()
            for member in members.members.values():
                assert member.quorum is not None
                await member.quorum.delivery.wait_delivered(commit.offset + 1)
                assert [b.records for b in member.watcher.batches if b.records] == [(topic(1),)]


async def test_a_killed_leader_is_replaced_and_returns(autojump_clock: MockClock) -> None:
    async with quorum_of(1, 2, 3) as members:
        with trio.fail_after(30):
            first = await members.leader()
            await first.append_nowait([topic(1)], first.leader().epoch).wait()
            killed = first.leader().leader_id
            assert killed is not None
            members.kill(killed)
            before = trio.current_time()
            second = await members.leader()
            # A fetch timeout of 2 s, a pre-vote and a vote.
            assert trio.current_time() - before < 5
            commit = second.append_nowait([topic(2)], second.leader().epoch)
            await commit.wait()
            again = await members.start(killed)
            await again.delivery.wait_delivered(commit.offset + 1)
            records = [b.records for b in members.members[killed].watcher.batches if b.records]
            assert records == [(topic(1),), (topic(2),)]


async def test_a_stopped_leader_lets_others_elect_at_once(autojump_clock: MockClock) -> None:
    """KIP-595: EndQuorumEpoch spares the others the wait for their fetch timeout."""
    async with quorum_of(1, 2, 3) as members:
        with trio.fail_after(30):
            first = await members.leader()
            await first.append_nowait([topic(1)], first.leader().epoch).wait()
            stopped = first.leader().leader_id
            assert stopped is not None
            before = trio.current_time()
            first.shut_down()
            await first.wait_successor()
            members.kill(stopped)
            await members.leader()
            assert trio.current_time() - before < 1.0


async def test_a_leader_without_followers_fails_what_it_cannot_commit(
    autojump_clock: MockClock,
) -> None:
    async with quorum_of(1, 2, 3) as members:
        with trio.fail_after(30):
            leader = await members.leader()
            node = leader.leader().leader_id
            for other in {1, 2, 3} - {node}:
                members.kill(other)
            commit = leader.append_nowait([topic(1)], leader.leader().epoch)
            with pytest.raises(errors.NotController):
                await commit.wait()


async def test_describe_quorum_names_voters_and_their_progress(autojump_clock: MockClock) -> None:
    async with quorum_of(1, 2, 3) as members:
        with trio.fail_after(10):
            leader = await members.leader()
            await leader.append_nowait([topic(1)], leader.leader().epoch).wait()
            await trio.sleep(1)
            answer = await leader.handle(describe())
            assert isinstance(answer, DescribeQuorumResponse)
            part = answer.topics[0].partitions[0]
            assert part.leader_id == leader.leader().leader_id
            assert [v.replica_id for v in part.current_voters] == [1, 2, 3]
            assert {v.log_end_offset for v in part.current_voters} == {leader.high_watermark}
            assert part.observers == []
