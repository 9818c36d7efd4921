"""Requests to the active controller: decided here while this node's is active, or else sent."""

from typing import Any

import attrs
import pytest
import trio
import trio.testing

from kwire import errors
from kwire.raftmeta.controller.active_controller import ActiveController
from kwire.raftmeta.controller.mutation_quota import Requester
from kwire.waits import Signal
from tests.support.raftmeta.no_others import NoOtherControllers

ALICE = Requester(("User", "alice"), "tool", "10.1.2.3")


@attrs.define
class Controller:
    """This node's controller; fails with ``error`` if there is one."""

    is_active: bool = True
    is_alone: bool = False
    error: errors.KafkaError | None = None
    in_force: list[bool] = attrs.field(factory=list)
    _changed: Signal = attrs.field(factory=Signal)

    async def call(self, decide: Any, request: str, *, in_force: bool = False) -> str:
        self.in_force.append(in_force)
        if self.error is not None:
            raise self.error
        return f"{request} here"

    async def wait_change(self) -> None:
        await self._changed.wait()

    def change(self, *, is_active: bool, is_alone: bool) -> None:
        self.is_active, self.is_alone = is_active, is_alone
        self._changed.notify()


@attrs.define
class Others(NoOtherControllers):
    """The active controller of another node; keeps in whose name requests came."""

    requesters: list[Requester | None] = attrs.field(factory=list)

    async def send(self, request: object, requester: Requester | None = None) -> object:
        self.requesters.append(requester)
        return f"{request} there"


def decide(state: Any, request: str) -> Any:
    raise AssertionError("only a controller runs a decider")


async def ask(
    controller: Controller, requester: Requester | None = None, **more: bool
) -> tuple[str, list[Requester | None]]:
    """Return the reply, and the requesters of what other nodes were sent."""
    local: Any = controller
    others = Others()
    reply = await ActiveController(local, others).call(decide, "decided", requester, **more)
    return reply, others.requesters


async def test_request_is_decided_here_while_this_controller_is_active() -> None:
    assert await ask(Controller(), ALICE) == ("decided here", [])


@pytest.mark.parametrize("in_force", [True, False])
async def test_only_a_client_of_this_broker_waits_until_the_decision_is_in_force(
    in_force: bool,
) -> None:
    controller = Controller()
    await ask(controller, in_force=in_force)
    assert controller.in_force == [in_force]


@pytest.mark.parametrize("requester", [None, ALICE])
async def test_request_is_sent_in_its_requesters_name_if_another_controller_is_active(
    requester: Requester | None,
) -> None:
    assert await ask(Controller(is_active=False), requester) == ("decided there", [requester])


@pytest.mark.parametrize("requester", [None, ALICE])
async def test_request_goes_on_if_this_controller_is_replaced_meanwhile(
    requester: Requester | None,
) -> None:
    controller = Controller(error=errors.NotController())
    assert await ask(controller, requester) == ("decided there", [requester])


async def test_refusal_of_the_active_controller_is_final() -> None:
    with pytest.raises(errors.StaleBrokerEpoch):
        await ask(Controller(error=errors.StaleBrokerEpoch()))


async def test_only_voter_waits_until_its_controller_is_active() -> None:
    controller, replies = Controller(is_active=False, is_alone=True), []
    async with trio.open_nursery() as nursery:

        async def send() -> None:
            replies.append(await ask(controller))

        nursery.start_soon(send)
        await trio.testing.wait_all_tasks_blocked()
        assert not replies
        controller.change(is_active=True, is_alone=True)
    assert replies == [("decided here", [])]


async def test_request_that_waits_is_sent_when_another_voter_joins() -> None:
    controller, replies = Controller(is_active=False, is_alone=True), []
    async with trio.open_nursery() as nursery:

        async def send() -> None:
            replies.append(await ask(controller))

        nursery.start_soon(send)
        await trio.testing.wait_all_tasks_blocked()
        controller.change(is_active=False, is_alone=False)
    assert replies == [("decided there", [None])]
