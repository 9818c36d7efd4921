"""A live node with an authorizer."""

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
import trio

from kwire import errors
from kwire.codec.messages.create_acls import CreateAclsRequest
from kwire.codec.messages.delete_acls import DeleteAclsRequest
from kwire.codec.messages.describe_quorum import DescribeQuorumRequest
from kwire.codec.messages.find_coordinator import FindCoordinatorRequest
from kwire.codec.messages.metadata import MetadataRequest
from kwire.handlers import SERVED
from kwire.net.listener import ForConnection
from kwire.node.core import Core
from kwire.node.server import Server
from kwire.security.acls import ALLOW, ANY, LITERAL, OPERATIONS, RESOURCE_TYPES
from kwire.testing.wire import TrioWireClient
from kwire.types import CONSUMER_OFFSETS
from tests.support.authorization.every_version import ALL_CASES
from tests.support.authorization.matrix import DIFFERENT, SETTINGS, Matrix, attempts
from tests.support.server.nodes import create, running, topics

TELEMETRY = "needs no permission (tests/server/test_client_telemetry.py)"
RECORDED = Path(__file__).parents[1] / "vectors" / "authorization.json"
TOKENS = "the recorded clients have not logged in, so it is always refused"
EXEMPT = {
    "CreateDelegationToken": TOKENS,
    "DescribeDelegationToken": TOKENS,
    "DescribeUserScramCredentials": "Kafka 4.3 does not answer a request that it denies",
    "Envelope": "tests/handlers/test_envelope.py",
    "ExpireDelegationToken": TOKENS,
    "GetTelemetrySubscriptions": TELEMETRY,
    "PushTelemetry": TELEMETRY,
    "RenewDelegationToken": TOKENS,
    "SaslAuthenticate": "before a client has a name",
    "SaslHandshake": "before a client has a name",
}
"""The APIs without a row, each with the reason."""
STANDARD = SETTINGS["authorizer.class.name"]


@pytest.mark.slow
async def test_every_api_answers_as_kafka_with_and_without_permissions(tmp_path: Path) -> None:
    """Compare with the answers that ``compat_tests.authorization.record`` recorded."""
    settings = {name.replace(".", "_"): value for name, value in SETTINGS.items()}
    async with running(tmp_path, **settings) as server:
        controller = server.core.net.address("CONTROLLER")
        matrix = Matrix(server.address.port, controller.port)
        answers = await trio.to_thread.run_sync(matrix.answers)
    recorded: dict[str, dict[str, Any]] = json.loads(RECORDED.read_text())
    assert sum(map(len, recorded.values())) == len(attempts()), "record the answers again"
    wrong = [
        f"{case}, {lacks}: kafka {answer}, kwire {answers[case][lacks]}"
        for case, by_attempt in recorded.items()
        for lacks, answer in by_attempt.items()
        if answers[case][lacks] != answer and (case, lacks) not in DIFFERENT
    ]
    assert not wrong, "\n".join(wrong)


def test_every_api_has_a_row_in_the_table_of_requests() -> None:
    names = {api.name for api in SERVED} - {case.api for case in ALL_CASES}
    assert names <= EXEMPT.keys(), "add rows to tests/support/authorization, and record"


@asynccontextmanager
async def authorizing(directory: Path) -> AsyncIterator[Server]:
    """Run a node that allows everything on resources without ACLs."""
    async with running(
        directory, authorizer_class_name=STANDARD, allow_everyone_if_no_acl_found="true"
    ) as server:
        yield server


async def grant(server: Server, operation: str, topic: str, host: str = "*") -> None:
    """Allow an operation on a topic."""
    creation = CreateAclsRequest.AclCreation(
        resource_type=RESOURCE_TYPES["Topic"],
        resource_name=topic,
        resource_pattern_type=LITERAL,
        principal="User:ANONYMOUS",
        host=host,
        operation=OPERATIONS[operation],
        permission_type=ALLOW,
    )
    async with await TrioWireClient.connect(*server.address) as client:
        response = await client.call(CreateAclsRequest(creations=[creation]), 3)
    assert response.results[0].error_code == 0


async def revoke_all(server: Server) -> int:
    """Delete all ACLs; return their number."""
    everything = DeleteAclsRequest.DeleteAclsFilter(
        resource_type_filter=ANY,
        resource_name_filter=None,
        pattern_type_filter=ANY,
        principal_filter=None,
        host_filter=None,
        operation=ANY,
        permission_type=ANY,
    )
    async with await TrioWireClient.connect(*server.address) as client:
        response = await client.call(DeleteAclsRequest(filters=[everything]), 3)
    return len(response.filter_results[0].matching_acls)


async def test_new_acls_are_in_force_at_once_and_after_a_restart(tmp_path: Path) -> None:
    async with authorizing(tmp_path) as server:
        await create(server, "t")
        assert await topics(server) == {"t"}
        await grant(server, "Describe", "t", "10.0.0.1")
        assert await topics(server) == set()
    async with authorizing(tmp_path) as server:
        assert await topics(server) == set()


async def test_deleted_acls_are_out_of_force_at_once(tmp_path: Path) -> None:
    async with authorizing(tmp_path) as server:
        await create(server, "t")
        await grant(server, "Describe", "t", "10.0.0.1")
        assert await topics(server) == set()
        assert await revoke_all(server) == 1
        assert await topics(server) == {"t"}


async def test_metadata_creates_no_topic_that_the_client_may_not_describe(tmp_path: Path) -> None:
    async with authorizing(tmp_path) as server:
        await grant(server, "Create", "t")
        requested = [MetadataRequest.MetadataRequestTopic(name="t")]
        async with await TrioWireClient.connect(*server.address) as client:
            response = await client.call(MetadataRequest(topics=requested), 12)
        assert response.topics[0].error_code == errors.TopicAuthorizationFailed.code
        await revoke_all(server)
        assert await topics(server) == set()


async def test_denied_client_does_not_create_the_topic_of_coordinators(tmp_path: Path) -> None:
    async with running(
        tmp_path, authorizer_class_name=STANDARD, offsets_topic_replication_factor="1"
    ) as server:
        request = FindCoordinatorRequest(key_type=0, coordinator_keys=["g"])
        async with await TrioWireClient.connect(*server.address) as client:
            response = await client.call(request, 4)
        code = response.coordinators[0].error_code
        assert code == errors.GroupAuthorizationFailed.code
        assert server.services.current.image.topic(CONSUMER_OFFSETS) is None


@pytest.mark.parametrize(
    ("early", "order"),
    [
        ("", ["PLAINTEXT", "CONTROLLER"]),
        ("PLAINTEXT", ["PLAINTEXT", "CONTROLLER"]),
        ("PLAINTEXT,CONTROLLER", ["CONTROLLER", "PLAINTEXT"]),
    ],
)
async def test_only_early_listeners_serve_before_the_acls_are_loaded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, early: str, order: list[str]
) -> None:
    accepted: list[str] = []
    accept = Core.accept

    def record(core: Core, name: str, for_connection: ForConnection) -> None:
        accepted.append(name)
        accept(core, name, for_connection)

    monkeypatch.setattr(Core, "accept", record)
    async with running(tmp_path, authorizer_class_name=STANDARD, early_start_listeners=early):
        assert accepted == order


async def test_a_controller_without_a_broker_authorizes_once_it_has_the_acls(
    tmp_path: Path,
) -> None:
    async with (
        running(
            tmp_path,
            process_roles="controller",
            listeners="CONTROLLER://127.0.0.1:0",
            authorizer_class_name=STANDARD,
        ) as server,
        await TrioWireClient.connect(*server.address) as client,
    ):
        response = await client.call(DescribeQuorumRequest(), 2)
    assert response.error_code == errors.ClusterAuthorizationFailed.code


async def test_acls_cannot_be_created_without_an_authorizer(tmp_path: Path) -> None:
    async with running(tmp_path) as server:
        creation = CreateAclsRequest.AclCreation(
            resource_type=2,
            resource_name="t",
            principal="User:a",
            host="*",
            operation=3,
            permission_type=3,
        )
        async with await TrioWireClient.connect(*server.address) as client:
            response = await client.call(CreateAclsRequest(creations=[creation] * 2), 3)
    assert [result.error_code for result in response.results] == [errors.SecurityDisabled.code] * 2
