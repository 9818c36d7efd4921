"""The share coordinator is killed; the next one continues with the states of share partitions."""

from __future__ import annotations

from compat_tests.cluster.coordinators import coordinator
from compat_tests.cluster.topics import create_on
from compat_tests.harness.wait import eventually
from kwire.codec.messages.metadata import MetadataRequest
from kwire.errors import FencedLeaderEpoch
from kwire.share.keys import SharePartition
from kwire.share.persister import InitialState, ReadState, StateBatch
from kwire.share.state import messages
from kwire.share.state.model import StateWrite

SHARE = 2
GROUP = "g"


def test_next_coordinator_continues_with_the_states(make):
    cluster = make(
        3,
        share_coordinator_state_topic_num_partitions="1",
        share_coordinator_snapshot_update_records_per_snapshot="3",
    )
    cluster.start()
    create_on(cluster, "shared", [[1, 2, 3]])
    topic = MetadataRequest.MetadataRequestTopic(name="shared")
    with cluster.living[0].client() as client:
        topic_id = client.call(MetadataRequest(topics=[topic]), 12).topics[0].topic_id
    of = SharePartition(GROUP, topic_id, 0)
    first = coordinator(cluster, of.key, SHARE)
    with first.client() as client:
        _wait_loaded(client, of)
        request = messages.initialize_request(GROUP, {of: InitialState(1, 0)})
        assert messages.failures(GROUP, client.call(request, 0)) == {of: None}
        client.call(messages.read_request(GROUP, {of: 7}), 0)
        for offset in range(5):
            batch = StateBatch(offset, offset, 2, 1)
            write = messages.write_request(GROUP, {of: StateWrite(1, 7, -1, offset, [batch])})
            assert messages.failures(GROUP, client.call(write, 1)) == {of: None}
    first.kill()

    def find_next():
        node = coordinator(cluster, of.key, SHARE)
        return None if node is first else node

    with eventually(find_next, "another coordinator").client() as client:
        _wait_loaded(client, of)
        response = client.call(messages.read_request(GROUP, {of: 7}), 0)
        state = messages.read_results(GROUP, response)[of]
        assert state == ReadState(0, 1, 0, [StateBatch(0, 4, 2, 1)])
        late = messages.write_request(GROUP, {of: StateWrite(1, 6, -1, 0)})
        assert client.call(late, 1).results[0].partitions[0].error_code == FencedLeaderEpoch.code


def _wait_loaded(client, of):
    """Wait until a coordinator answers for a share partition."""

    def answers():
        response = client.call(messages.summary_request(GROUP, [of]), 1)
        return not response.results[0].partitions[0].error_code

    eventually(answers, "the coordinator has loaded its states")
