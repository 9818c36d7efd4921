"""Requests about 10,000 users with SCRAM credentials and quotas, and about as many features."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Final

from kwire import errors
from kwire.codec.messages.alter_client_quotas import AlterClientQuotasRequest
from kwire.codec.messages.alter_user_scram_credentials import AlterUserScramCredentialsRequest
from kwire.codec.messages.describe_client_quotas import DescribeClientQuotasRequest
from kwire.codec.messages.describe_user_scram_credentials import DescribeUserScramCredentialsRequest
from kwire.codec.messages.update_features import UpdateFeaturesRequest
from tests.support.turns.meter import TurnMeter
from tests.support.turns.node import MeteredNode, metered_node
from tests.support.turns.table import Scene

ALL: Final = 10_000
AT_ONCE: Final = 1_000
"""The users whose credentials one measured request stores."""


@asynccontextmanager
async def node_of_users(meter: TurnMeter) -> AsyncIterator[MeteredNode]:
    async with metered_node(meter) as node:
        yield node


USERS: Final = Scene("requests about users", node_of_users)
row = USERS.operation


def alter_request(numbers: range) -> AlterUserScramCredentialsRequest:
    shape = AlterUserScramCredentialsRequest.ScramCredentialUpsertion
    users = [
        shape(
            name=f"user-{number}",
            mechanism=1,
            iterations=4096,
            salt=b"x",
            salted_password=b"s" * 32,
        )
        for number in numbers
    ]
    return AlterUserScramCredentialsRequest(upsertions=users)


@row("AlterUserScramCredentials", "users", AT_ONCE, "AlterUserScramCredentials")
async def alter(node: MeteredNode, size: int) -> None:
    (answer,) = await node.measure(alter_request(range(size)))
    assert [result.error_code for result in answer.results] == [0] * size
    await node.call(alter_request(range(size, ALL)))


@row(
    "DescribeUserScramCredentials",
    "users",
    ALL,
    "DescribeUserScramCredentials",
    after="AlterUserScramCredentials",
)
async def describe(node: MeteredNode, size: int) -> None:
    (answer,) = await node.measure(DescribeUserScramCredentialsRequest(users=None))
    assert len(answer.results) == size


def quota_request(size: int) -> AlterClientQuotasRequest:
    shape = AlterClientQuotasRequest.EntryData
    entries = [
        shape(
            entity=[shape.EntityData(entity_type="user", entity_name=f"user-{number}")],
            ops=[shape.OpData(key="producer_byte_rate", value=1e6, remove=False)],
        )
        for number in range(size)
    ]
    return AlterClientQuotasRequest(entries=entries, validate_only=False)


@row("AlterClientQuotas", "users", ALL, "AlterClientQuotas")
async def alter_quotas(node: MeteredNode, size: int) -> None:
    (answer,) = await node.measure(quota_request(size))
    assert [entry.error_code for entry in answer.entries] == [0] * size


@row("DescribeClientQuotas", "users", ALL, "DescribeClientQuotas", after="AlterClientQuotas")
async def describe_quotas(node: MeteredNode, size: int) -> None:
    (answer,) = await node.measure(DescribeClientQuotasRequest(components=[], strict=False))
    assert len(answer.entries) == size


@row("UpdateFeatures", "features", ALL, "UpdateFeatures")
async def update_features(node: MeteredNode, size: int) -> None:
    shape = UpdateFeaturesRequest.FeatureUpdateKey
    updates = [
        shape(feature=f"feature-{number}", max_version_level=1, upgrade_type=1)
        for number in range(size)
    ]
    (answer,) = await node.measure(UpdateFeaturesRequest(feature_updates=updates))
    assert answer.error_code == errors.InvalidUpdateVersion.code
