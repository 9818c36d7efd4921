"""A connection to any broker of a cluster, on which requests are sent one after another.

It uses the connections between nodes (:class:`kwire.net.client.NodeClient`), which support
versions, TLS and authentication, need no other package, and take a tenth of a second to import. A
client library would do each of these in a second way.
"""

from collections.abc import Awaitable, Callable
from random import SystemRandom
from typing import TYPE_CHECKING, Final, TypeVar

import trio

from kwire.admin.client_file import ClientFile
from kwire.codec.schema import Request
from kwire.errors import UnsupportedVersion
from kwire.net.client import CLOSED, ConnectionLost, NodeClient
from kwire.node.run import leaves
from kwire.types import in_address

if TYPE_CHECKING:
    from kwire.net.node_login import NodeLogin
    from kwire.net.tls.client_tls import ClientTls

Resp = TypeVar("Resp")
T = TypeVar("T")
CONNECT_S: Final = 15.0
ANSWER_S: Final = 30.0


class AdminError(Exception):
    """The request failed; the message is for the operator."""


class Connection:
    """An open connection."""

    def __init__(self, client: NodeClient) -> None:
        self._client = client

    async def call(self, request: Request[Resp]) -> Resp:
        """Send a request and return its response; raise AdminError."""
        with trio.move_on_after(ANSWER_S):
            try:
                return await self._client.call(request)
            except UnsupportedVersion as error:
                raise AdminError(str(error)) from error
        raise AdminError(f"{self._client.host}: no answer in {ANSWER_S:g} s; is the cluster ready?")


def run(file: ClientFile, act: Callable[[Connection], Awaitable[T]]) -> T:
    """Connect to the first server that answers, and run ``act``; raise AdminError."""
    return trio.run(_run, file, act)


async def _run(file: ClientFile, act: Callable[[Connection], Awaitable[T]]) -> T:
    reasons: dict[str, list[str]] = {}
    """The addresses that cannot be used, by reason."""
    for host, port in file.servers:
        address = f"{in_address(host)}:{port}"
        client = NodeClient(host, port, "kwire", tls=_tls(file), login=_login(file))
        outcome: list[T] = []
        try:
            async with trio.open_nursery() as nursery:
                with trio.move_on_after(CONNECT_S) as limit:
                    await nursery.start(client.run)
                if limit.cancelled_caught:
                    reasons.setdefault(f"no answer in {CONNECT_S:g} s", []).append(address)
                else:
                    outcome.append(await act(Connection(client)))
                nursery.cancel_scope.cancel()
        except BaseExceptionGroup as group:
            errors = list(leaves(group))
            for error in errors:
                if not isinstance(error, ConnectionLost):
                    raise error from None
            reason = str(errors[0]).removeprefix(f"{host}:{port}").removeprefix(": ") or CLOSED
            if reason == CLOSED and file.tls is None:
                reason += ", as by a listener that requires TLS or a login"
            reasons.setdefault(reason, []).append(address)
        if outcome:
            return outcome[0]
    words = "; ".join(f"{', '.join(addresses)}: {why}" for why, addresses in reasons.items())
    raise AdminError(f"cannot use {words}; check the addresses and the settings in --config")


def _tls(file: ClientFile) -> "ClientTls | None":
    if file.tls is None:
        return None
    from kwire.net.tls.client_tls import open_client_tls

    return open_client_tls("admin", file.tls, trio.current_time)


def _login(file: ClientFile) -> "NodeLogin | None":
    if file.account is None:
        return None
    from kwire.clock import SystemClock
    from kwire.node.node_logins import make_login

    return make_login(file.account, SystemRandom(), SystemClock())
