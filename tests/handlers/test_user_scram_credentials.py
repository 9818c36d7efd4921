"""AlterUserScramCredentials and DescribeUserScramCredentials."""

from random import Random
from typing import Any

import attrs

from kwire.codec.frame import read_response, request_frame
from kwire.codec.messages.alter_user_scram_credentials import AlterUserScramCredentialsRequest
from kwire.codec.messages.describe_user_scram_credentials import DescribeUserScramCredentialsRequest
from kwire.codec.messages.metadata_records import FeatureLevelRecord
from kwire.raftmeta.controller.features import SUPPORTED
from kwire.raftmeta.controller.scram_credentials import decide_alter_scram
from kwire.raftmeta.controller.state import ControllerState, whole
from kwire.raftmeta.metadata.image_change import apply
from kwire.security.scram import BY_NAME, make_credential
from tests.support.handlers.admin_node import AdminNode, admin_node
from tests.support.raftmeta.clusters import CLUSTER, node_config

SHA_256, SHA_512 = 1, 2
Upsertion = AlterUserScramCredentialsRequest.ScramCredentialUpsertion
Deletion = AlterUserScramCredentialsRequest.ScramCredentialDeletion
SALTED = b"s" * 32


def upsertion(
    name: str, mechanism: int = SHA_256, iterations: int = 4096, salted: bytes = SALTED
) -> Upsertion:
    return Upsertion(
        name=name, mechanism=mechanism, iterations=iterations, salt=b"x", salted_password=salted
    )


def alteration(*items: Upsertion | Deletion) -> AlterUserScramCredentialsRequest:
    return AlterUserScramCredentialsRequest(
        deletions=[item for item in items if isinstance(item, Deletion)],
        upsertions=[item for item in items if isinstance(item, Upsertion)],
    )


async def call(node: AdminNode, key: int, request: object) -> Any:
    frame = memoryview(request_frame(key, 0, 1, "c", request))[4:]
    parts = await node.for_connection().answer(frame)
    assert parts is not None
    return read_response(key, 0, b"".join(map(bytes, parts))[4:])[1]


async def alter(node: AdminNode, *items: Upsertion | Deletion) -> dict[str, int]:
    response = await call(node, 51, alteration(*items))
    return {result.user: result.error_code for result in response.results}


async def describe(node: AdminNode, *users: str) -> dict[str, Any]:
    """Return the error code, or else the mechanisms and iterations, by user."""
    names = [DescribeUserScramCredentialsRequest.UserName(name=name) for name in users]
    response = await call(node, 50, DescribeUserScramCredentialsRequest(users=names or None))
    assert response.error_code == 0
    return {
        result.user: result.error_code
        or [(info.mechanism, info.iterations) for info in result.credential_infos]
        for result in response.results
    }


async def test_credentials_are_set_described_and_deleted() -> None:
    async with admin_node() as node:
        assert await describe(node) == {}
        items = upsertion("alice"), upsertion("bob", SHA_512, 8192)
        assert await alter(node, *items) == {"alice": 0, "bob": 0}
        assert await alter(node, upsertion("alice", SHA_512)) == {"alice": 0}
        both = [(SHA_256, 4096), (SHA_512, 4096)]
        assert await describe(node) == {"alice": both, "bob": [(SHA_512, 8192)]}
        assert await describe(node, "bob", "eve") == {"bob": [(SHA_512, 8192)], "eve": 91}
        assert await describe(node, "bob", "bob") == {"bob": 92}
        record = node.services.current.image.scram[SHA_256, "alice"]
        expected = make_credential(BY_NAME["SCRAM-SHA-256"], SALTED, b"x", 4096)
        assert (record.salt, record.stored_key, record.server_key, record.iterations) == expected
        assert await alter(node, Deletion(name="alice", mechanism=SHA_256)) == {"alice": 0}
        assert await describe(node) == {"alice": [(SHA_512, 4096)], "bob": [(SHA_512, 8192)]}


async def test_wrong_items_fail_alone() -> None:
    async with admin_node() as node:
        outcomes = await alter(
            node,
            Deletion(name="eve", mechanism=SHA_256),
            upsertion("right"),
            upsertion("", SHA_256),
            upsertion("unknown", 3),
            upsertion("low", iterations=4095),
            upsertion("high", iterations=16385),
            upsertion("public", salted=b""),
            upsertion("twice"),
            upsertion("twice", SHA_512),
            upsertion("twice"),
        )
        assert outcomes == {
            "eve": 91, "right": 0, "": 93, "unknown": 33, "low": 93, "high": 93, "public": 93,
            "twice": 92,
        }  # fmt: skip
        assert await describe(node) == {"right": [(SHA_256, 4096)]}


def test_cluster_of_an_old_release_has_no_credentials() -> None:
    """metadata.version 3.5-IV1."""
    state = ControllerState(
        config=node_config(),
        random=Random(1),
        cluster_id=CLUSTER,
        supported_features=dict(SUPPORTED),
    )
    old = [FeatureLevelRecord(name="metadata.version", feature_level=10)]
    state = attrs.evolve(state, image=apply(state.image, old)[0])
    decision = whole(decide_alter_scram(state, alteration(upsertion("alice"))))
    assert decision.records == ()
    assert [result.error_code for result in decision.reply.results] == [35]
