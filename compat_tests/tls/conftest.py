"""A broker whose listeners have different TLS settings, shared by a module's tests."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import attrs
import pytest
import trustme

from compat_tests.harness.broker import Broker, make_broker
from compat_tests.harness.ports import new_ports
from compat_tests.tls.stores import HOST, Store, write_store, write_trusted


@attrs.frozen
class TlsBroker:
    """A broker and its files; the names of its listeners are those of :meth:`at`."""

    broker: Broker
    ports: dict[str, int]
    directory: Path
    trusted: Path
    client: Store

    def at(self, listener: str) -> str:
        """Return the address of a listener.

        OPEN, TLS, MUTUAL, OLDER (1.2, RSA), NEWER (1.3), WRONG (another host) or EXPIRED.
        """
        return f"{HOST}:{self.ports[listener]}"


LISTENERS = ("OPEN", "TLS", "MUTUAL", "OLDER", "NEWER", "WRONG", "EXPIRED")


@pytest.fixture(scope="module")
def tls_broker(broker_kind: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[TlsBroker]:
    directory = tmp_path_factory.mktemp("tls")
    ports = dict(zip((*LISTENERS, "CONTROLLER"), new_ports(len(LISTENERS) + 1), strict=True))
    server = write_store(directory, "server")
    wrong = write_store(directory, "wrong", "elsewhere.example")
    expired = write_store(directory, "expired", valid_days=-1)
    rsa = write_store(directory, "rsa", key_type=trustme.KeyType.RSA)
    trusted = write_trusted(directory)
    addresses = {name: f"{name}://{HOST}:{port}" for name, port in ports.items()}
    protocols = {name: "PLAINTEXT" if name in ("OPEN", "CONTROLLER") else "SSL" for name in ports}
    settings = {
        "listeners": ",".join(addresses.values()),
        "advertised.listeners": ",".join(addresses[name] for name in LISTENERS),
        "listener.security.protocol.map": ",".join(f"{n}:{p}" for n, p in protocols.items()),
        "num.partitions": "1",
        "inter.broker.listener.name": "OPEN",
        "controller.quorum.voters": f"1@{HOST}:{ports['CONTROLLER']}",
        "ssl.keystore.type": "PEM",
        "ssl.keystore.location": str(server.both),
        "ssl.truststore.type": "PEM",
        "ssl.truststore.location": str(trusted),
        "listener.name.mutual.ssl.client.auth": "required",
        "listener.name.older.ssl.keystore.location": str(rsa.both),
        "listener.name.older.ssl.enabled.protocols": "TLSv1.2",
        "listener.name.newer.ssl.enabled.protocols": "TLSv1.3",
        "listener.name.expired.ssl.keystore.location": str(expired.both),
        "listener.name.wrong.ssl.keystore.location": str(wrong.both),
        "listener.name.wrong.ssl.allow.dn.changes": "true",
        "listener.name.wrong.ssl.allow.san.changes": "true",
    }
    broker = make_broker(broker_kind, directory / "broker", settings)
    yield TlsBroker(broker, ports, directory, trusted, write_store(directory, "alice"))
    broker.close()
