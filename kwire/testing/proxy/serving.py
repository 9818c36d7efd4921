"""`kwire proxy`: runs the proxy, and its control server, until a signal."""

import ssl
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Final

import trio

from kwire.net.listener import Address
from kwire.node.run import StopSignals
from kwire.testing.control.fault_verbs import FAULT_VERBS
from kwire.testing.control.http_server import serve_verbs
from kwire.testing.control.table import Json, Verb, verb_table
from kwire.testing.errors import BrokerError
from kwire.testing.proxy.brokers import ProxiedCluster
from kwire.testing.releases import Release

Ready = Callable[[Sequence[Address]], None]
TITLE: Final = "kwire proxy"


async def state(proxy: ProxiedCluster) -> Json:
    """Return the proxy's address, and the target's brokers with their addresses at the proxy."""
    return {
        "bootstrap_servers": "{}:{}".format(*proxy.bootstrap),
        "is_paused": proxy.pause.is_on,
        "brokers": [
            {
                "id": node,
                "host": address.host,
                "port": address.port,
                "target": "{}:{}".format(*proxy.targets[node]),
            }
            for node, address in sorted(proxy.brokers.items())
        ],
    }


async def pause(proxy: ProxiedCluster) -> Json:
    """Hold requests back, as if the network hung, until the proxy is resumed."""
    proxy.pause.is_on = True
    return {}


async def resume(proxy: ProxiedCluster) -> Json:
    """Pass on the requests that have waited since a pause, and later ones."""
    proxy.pause.end()
    return {}


def run_proxy(
    targets: Sequence[Address],
    listen: Address,
    signals: StopSignals,
    *,
    tls: ssl.SSLContext | None,
    release: Release | None,
    control_port: int | None,
    ready: Ready,
    control_ready: Ready,
) -> None:
    """Run a proxy until a signal; raise BrokerError with the reason."""

    async def serve() -> None:
        error: BrokerError | None = None
        async with trio.open_nursery() as nursery:
            proxy = ProxiedCluster(targets, listen.host, tls, nursery, release)
            try:
                address = await proxy.start(listen.port)
                if control_port is not None:
                    verbs: dict[str, Verb[ProxiedCluster]] = verb_table(
                        (*FAULT_VERBS, state, pause, resume)
                    )
                    bound = await nursery.start(serve_verbs, control_port, TITLE, verbs, proxy)
                    control_ready([Address("127.0.0.1", bound)])
                ready([address])
                nursery.start_soon(proxy.watch_start)
                await signals.wait()
            except OSError as failure:
                error = BrokerError(
                    f"cannot listen: {failure.strerror or failure}; choose other ports with "
                    "--listen and --control-port"
                )
            nursery.cancel_scope.cancel()
        if error is not None:
            raise error

    if signals.received is None:
        trio.run(serve)


def tls_context(authorities: Path | None) -> ssl.SSLContext:
    """Return the TLS of connections to the target; raise BrokerError for a bad file.

    ``authorities`` are trusted certificates in PEM; None means the system's.
    """
    try:
        return ssl.create_default_context(cafile=authorities)
    except (OSError, ssl.SSLError) as error:
        raise BrokerError(f"cannot read the certificates {authorities}: {error}") from error
