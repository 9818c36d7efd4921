"""Requests about 10,000 users with SCRAM credentials."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Final

from kwire.codec.messages.alter_user_scram_credentials import AlterUserScramCredentialsRequest
from kwire.codec.messages.describe_user_scram_credentials import DescribeUserScramCredentialsRequest
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
