"""Certificates made for a test, and the settings and the connections that use them."""

import socket
import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta
from functools import cache
from pathlib import Path
from typing import Any, cast

import trio
import trustme

from kwire.clock import SystemClock
from kwire.configs.tls import TlsConfig
from kwire.metrics import Metrics
from kwire.net.limits import Limits
from kwire.net.tls.server_tls import open_tls
from kwire.testing.wire import TrioWireClient
from tests.support.net.node import Node, running, settle

HOST = "127.0.0.1"


def authority(name: str = "a") -> trustme.CA:
    """Return a certificate authority; the same one for the same name."""
    return _make_authority(name)


@cache
def _make_authority(name: str) -> trustme.CA:
    return trustme.CA(organization_name=name, key_type=trustme.KeyType.ECDSA)


@cache
def certificate(
    *hosts: str, by: str = "a", common_name: str | None = None, valid_days: int = 365
) -> trustme.LeafCert:
    """Return a certificate for these host names; negative ``valid_days`` are in the past."""
    end = datetime.now(UTC) + timedelta(days=valid_days)
    return authority(by).issue_cert(
        *(hosts or (HOST, "localhost")),
        common_name=common_name,
        organization_name="kwire",
        organization_unit_name="tests",
        not_before=end - timedelta(days=400),
        not_after=end,
        key_type=trustme.KeyType.ECDSA,
    )


def pem(leaf: trustme.LeafCert) -> str:
    """Return the private key and the certificates of a key store in PEM format."""
    return leaf.private_key_and_cert_chain_pem.bytes().decode()


def trusted_pem(name: str = "a") -> str:
    return authority(name).cert_pem.bytes().decode()


def settings(directory: Path, leaf: trustme.LeafCert | None = None, /, **more: str) -> TlsConfig:
    """Return the settings of a listener with a PEM file; names have underscores for dots."""
    store = directory / "keystore.pem"
    store.write_text(pem(leaf or certificate()))
    texts = {
        "ssl.keystore.type": "PEM",
        "ssl.keystore.location": str(store),
        "ssl.truststore.type": "PEM",
        "ssl.truststore.certificates": trusted_pem(),
    }
    named = {f"ssl.{name.replace('_', '.')}": text for name, text in more.items()}
    return TlsConfig({**texts, **named})


def client_side(
    leaf: trustme.LeafCert | None = None, *, trust: str = "a", version: str | None = None
) -> ssl.SSLContext:
    """Return the context of a client that trusts an authority and shows a certificate, if any."""
    context = ssl.create_default_context(cadata=trusted_pem(trust))
    if leaf is not None:
        leaf.configure_cert(context)
    if version is not None:
        context.minimum_version = context.maximum_version = ssl.TLSVersion[version]
    return context


@asynccontextmanager
async def tls_node(
    directory: Path, limits: Limits | None = None, **more: str
) -> AsyncIterator[tuple[Node, Metrics]]:
    """Run a node with one listener that uses TLS; ``more`` are its settings."""
    metrics = Metrics()
    tls = open_tls("A", settings(directory, **more), SystemClock(), metrics)
    async with running(limits) as node:
        node.listen(tls=tls)
        yield node, metrics


async def connect(
    node: Node, context: ssl.SSLContext | None = None, *, narrow: bool = False
) -> TrioWireClient:
    """Connect a client whose handshake is complete; raise BrokenResourceError if it fails."""
    sock = trio.socket.socket()
    if narrow:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 2048)
    await sock.connect((HOST, node.port))
    stream = trio.SSLStream(trio.SocketStream(sock), context or client_side(), server_hostname=HOST)
    try:
        await stream.do_handshake()
    except BaseException:
        sock.close()
        raise
    await settle()
    return TrioWireClient(cast(Any, stream))
