"""Requests about delegation tokens, while there are 10,000 of them, and their removal."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial
from typing import Any, Final

import attrs
import trio

from kwire.codec.apis import ListenerType
from kwire.codec.messages.create_delegation_token import CreateDelegationTokenRequest
from kwire.codec.messages.describe_delegation_token import DescribeDelegationTokenRequest
from kwire.codec.messages.expire_delegation_token import ExpireDelegationTokenRequest
from kwire.codec.messages.metadata_records import DelegationTokenRecord
from kwire.codec.messages.renew_delegation_token import RenewDelegationTokenRequest
from kwire.handlers.describe_delegation_token import describe_delegation_token
from kwire.handlers.shared.context import Context
from kwire.raftmeta.controller.controller import Controller
from kwire.raftmeta.controller.delegation_tokens import (
    TokenCaller,
    decide_create_token,
    decide_expire_token,
    decide_remove_expired,
    decide_renew_token,
)
from kwire.raftmeta.metadata.image_change import apply
from kwire.security.delegation_tokens import token_hmac
from tests.support.handlers.services import services_of
from tests.support.raftmeta.clusters import cluster_of, node_config
from tests.support.raftmeta.one_leader import OneLeader, active_controller
from tests.support.turns.meter import TurnMeter
from tests.support.turns.table import Scene

ALL: Final = 10_000
OWNER: Final = TokenCaller("User", "alice", 1_000)
UNKNOWN: Final = token_hmac(b"secret", "a token that does not exist")
"""An HMAC that is compared with those of all tokens."""


@attrs.frozen
class Tokens:
    """A controller with tokens."""

    meter: TurnMeter
    controller: Controller

    async def measure(self, decide: Any, request: Any) -> Any:
        """Measure a decision, and return its reply."""
        await trio.lowlevel.checkpoint()
        with self.meter.measuring():
            return await self.controller.call(decide, request)


@asynccontextmanager
async def tokens(meter: TurnMeter) -> AsyncIterator[Tokens]:
    cluster = cluster_of(1)
    cluster.state.config = node_config(**{"delegation.token.secret.key": "secret"})
    records = [
        DelegationTokenRecord(
            owner="User:alice",
            requester="User:alice",
            renewers=[],
            issue_timestamp=0,
            max_timestamp=2_000,
            expiration_timestamp=2_000,
            token_id=f"token-{number}",
        )
        for number in range(ALL)
    ]
    cluster.state.image = apply(cluster.state.image, records)[0]
    controller = active_controller(OneLeader(at_once=True), cluster)
    await controller.wait_ready()
    yield Tokens(meter, controller)


TOKENS: Final = Scene("delegation tokens", tokens)
row = TOKENS.operation


@row("CreateDelegationToken", "tokens", ALL, "CreateDelegationToken")
async def create(scene: Tokens, size: int) -> None:
    request = CreateDelegationTokenRequest(renewers=[], max_lifetime_ms=-1)
    issued = await scene.measure(partial(decide_create_token, caller=OWNER), request)
    assert issued.error_code == 0
    assert len(scene.controller.state.image.tokens) == size + 1


@row("RenewDelegationToken", "tokens", ALL, "RenewDelegationToken")
async def renew(scene: Tokens, size: int) -> None:
    request = RenewDelegationTokenRequest(hmac=UNKNOWN, renew_period_ms=-1)
    answer = await scene.measure(partial(decide_renew_token, caller=OWNER), request)
    assert answer.error_code == 62


@row("ExpireDelegationToken", "tokens", ALL, "ExpireDelegationToken")
async def expire(scene: Tokens, size: int) -> None:
    request = ExpireDelegationTokenRequest(hmac=UNKNOWN, expiry_time_period_ms=-1)
    answer = await scene.measure(partial(decide_expire_token, caller=OWNER), request)
    assert answer.error_code == 62


@row("DescribeDelegationToken", "tokens", ALL, "DescribeDelegationToken")
async def describe(scene: Tokens, size: int) -> None:
    config, image = scene.controller.state.config, scene.controller.state.image
    context = Context(
        services=services_of(config=config, image=image),
        listener_type=ListenerType.CONTROLLER,
        listener="CONTROLLER",
        may_forward=True,
    )
    request = DescribeDelegationTokenRequest(owners=None)
    await trio.lowlevel.checkpoint()
    with scene.meter.measuring():
        answer: Any = await describe_delegation_token(context, request)
    assert len(answer.tokens) >= size


@row(
    "removal of expired delegation tokens",
    "tokens",
    ALL,
    "raftmeta.controller.periodic_tasks._remove_expired_tokens",
)
async def remove(scene: Tokens, size: int) -> None:
    while await scene.measure(decide_remove_expired, 5_000):
        pass
    assert len(scene.controller.state.image.tokens) <= 1
