"""Settings changed at run time: which records they lead to."""

from typing import Any

import pytest

from kwire.codec.messages import metadata_records as r
from kwire.codec.messages.create_topics import CreateTopicsRequest
from kwire.codec.messages.incremental_alter_configs import IncrementalAlterConfigsRequest
from kwire.raftmeta.controller import ControllerState
from kwire.raftmeta.controller_configs import DELETE, SET, decide_incremental_alter
from kwire.raftmeta.controller_topics import decide_create_topics
from kwire.raftmeta.image import BROKER, TOPIC
from tests.raftmeta.clusters import Cluster

Resource = IncrementalAlterConfigsRequest.AlterConfigsResource


def alter(kind: int, name: str, *operations: tuple[str, int, str | None]) -> Any:
    configs = [
        Resource.AlterableConfig(name=setting, config_operation=operation, value=value)
        for setting, operation, value in operations
    ]
    resource = Resource(resource_type=kind, resource_name=name, configs=configs)
    return IncrementalAlterConfigsRequest(resources=[resource], validate_only=False)


def records(state: ControllerState, request: Any) -> list[tuple[str, str | None]]:
    decision = decide_incremental_alter(state, request, 0.0)
    assert [response.error_code for response in decision.reply.responses] == [0]
    assert all(isinstance(record, r.ConfigRecord) for record in decision.records)
    return [(record.name, record.value) for record in decision.records]


@pytest.mark.parametrize(
    ("kind", "name", "again", "gone"),
    [
        # a broker reads again what the setting points to
        (BROKER, "1", [("message.max.bytes", "5")], [("log.retention.ms", None)]),
        (BROKER, "", [("message.max.bytes", "5")], [("log.retention.ms", None)]),
        (TOPIC, "t", [], []),
    ],
)
def test_what_stays_as_it_is(kind: int, name: str, again: Any, gone: Any) -> None:
    cluster = Cluster()
    topic = CreateTopicsRequest.CreatableTopic(name="t", num_partitions=1, replication_factor=1)
    cluster.do(decide_create_topics, CreateTopicsRequest(topics=[topic], timeout_ms=1000))
    setting = "message.max.bytes" if kind == BROKER else "max.message.bytes"
    other = "log.retention.ms" if kind == BROKER else "retention.ms"
    same = alter(kind, name, (setting, SET, "5"))
    assert records(cluster.state, same) == [(setting, "5")]
    cluster.do(decide_incremental_alter, same)
    assert records(cluster.state, same) == again
    assert records(cluster.state, alter(kind, name, (other, DELETE, None))) == gone
