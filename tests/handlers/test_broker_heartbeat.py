"""BrokerHeartbeat on a node, as the brokers of other nodes send it."""

import pytest

from kwire import errors
from kwire.codec.messages.broker_heartbeat import BrokerHeartbeatResponse
from kwire.handlers.broker_heartbeat import broker_heartbeat
from kwire.handlers.shared.context import Context
from tests.support.handlers.admin_node import admin_node
from tests.support.raftmeta.requests import beat


async def test_heartbeat_of_another_node_is_refused_by_a_controller_that_may_have_been_replaced(
    autojump_clock: object, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Invariant 34: its answer would renew the lease of a broker that its successor fenced."""
    async with admin_node() as node:
        context = Context(services=node.services)
        request = beat(1, node.controller.state.image.brokers[1].epoch)
        monkeypatch.setattr(node.quorum, "may_be_replaced", lambda now: True)
        reply = await broker_heartbeat(context, request)
        assert isinstance(reply, BrokerHeartbeatResponse)
        assert reply.error_code == errors.NotController.code
        monkeypatch.undo()
        reply = await broker_heartbeat(context, request)
        assert isinstance(reply, BrokerHeartbeatResponse)
        assert (reply.error_code, reply.is_fenced) == (0, False)
