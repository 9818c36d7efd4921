"""Certificates that an administrator changes by a request, on a node whose listeners use TLS."""

from pathlib import Path

import pytest
import trustme

from kwire.codec.messages.incremental_alter_configs import IncrementalAlterConfigsRequest
from kwire.errors import InvalidRequest
from kwire.node.server import Server
from kwire.testing.wire import TrioWireClient
from tests.support.net.tls import certificate, pem, trusted_pem
from tests.support.server.nodes import running

OPEN = {
    "listeners": "OPEN://127.0.0.1:0,TLS://127.0.0.1:0,CONTROLLER://127.0.0.1:0",
    "listener.security.protocol.map": "OPEN:PLAINTEXT,TLS:SSL,CONTROLLER:PLAINTEXT",
    "inter.broker.listener.name": "OPEN",
}
BETWEEN_BROKERS = {**OPEN, "inter.broker.listener.name": "TLS"}
KEYSTORE = "listener.name.tls.ssl.keystore.location"


def write(path: Path, text: str) -> str:
    path.write_text(text)
    return str(path)


async def alter(server: Server, *settings: tuple[str, str | None]) -> tuple[int, str]:
    """Change settings of the node through its first listener; None resets one."""
    shape = IncrementalAlterConfigsRequest.AlterConfigsResource
    configs = [
        shape.AlterableConfig(name=name, config_operation=int(value is None), value=value)
        for name, value in settings
    ]
    request = IncrementalAlterConfigsRequest(
        resources=[shape(resource_type=4, resource_name="1", configs=configs)], validate_only=False
    )
    async with await TrioWireClient.connect(*server.address) as client:
        (result,) = (await client.call(request, 1)).responses
    return result.error_code, result.error_message or ""


async def alter_keystore(
    tmp_path: Path,
    leaf: trustme.LeafCert | str,
    properties: dict[str, str],
    old: trustme.LeafCert | None = None,
) -> tuple[int, str]:
    """Run a node and change the key store of its listener TLS to one with this content.

    ``old`` is the certificate with which the node starts.
    """
    data = tmp_path / "data"
    settings = {
        **properties,
        "ssl.keystore.type": "PEM",
        "ssl.keystore.location": write(tmp_path / "old.pem", pem(old or certificate())),
        "ssl.truststore.type": "PEM",
        "ssl.truststore.location": write(tmp_path / "trusted.pem", trusted_pem()),
    }
    named = {name.replace(".", "_"): text for name, text in settings.items()}
    async with running(data, **named) as server:
        new = write(tmp_path / "new.pem", leaf if isinstance(leaf, str) else pem(leaf))
        code, text = await alter(server, (KEYSTORE, new))
        image = server.core.current.image
        assert (KEYSTORE in image.config(4, "1")) == (code == 0)
    return code, text


@pytest.mark.parametrize("properties", [OPEN, BETWEEN_BROKERS])
async def test_certificate_with_the_same_names_is_accepted(
    tmp_path: Path, properties: dict[str, str]
) -> None:
    assert await alter_keystore(tmp_path, certificate(valid_days=300), properties) == (0, "")


@pytest.mark.parametrize(
    ("leaf", "reason"),
    [
        ("nonsense", "has 0 private keys"),
        (pem(certificate())[:400], "has no certificate in PEM format"),
        (certificate(common_name="other"), "the subject of the new certificate is CN=other"),
        (certificate("localhost"), "the new certificate does not name IP:127.0.0.1"),
    ],
)
async def test_unusable_certificate_is_rejected_in_the_answer(
    tmp_path: Path, leaf: trustme.LeafCert | str, reason: str
) -> None:
    code, text = await alter_keystore(tmp_path, leaf, OPEN)
    assert code == InvalidRequest.code
    assert reason in text


async def test_certificate_that_the_other_brokers_would_refuse_is_rejected(tmp_path: Path) -> None:
    code, text = await alter_keystore(tmp_path, certificate(by="b"), BETWEEN_BROKERS)
    assert code == InvalidRequest.code
    assert "would refuse each other" in text


async def test_listener_for_clients_may_change_its_authority(tmp_path: Path) -> None:
    assert await alter_keystore(tmp_path, certificate(by="b"), OPEN) == (0, "")


@pytest.mark.parametrize("auth", ["none", "required"])
async def test_expired_certificate_between_brokers_can_be_replaced(
    auth: str, tmp_path: Path
) -> None:
    """Nodes with the old one are refused by all others anyway."""
    properties = {**BETWEEN_BROKERS, "ssl.client.auth": auth}
    old = certificate(valid_days=-1)
    assert await alter_keystore(tmp_path, certificate(), properties, old) == (0, "")


@pytest.mark.parametrize(
    ("leaf", "reason"),
    [
        (certificate(valid_days=-2), "the new certificate has expired"),
        (certificate(by="b"), "would refuse each other"),
    ],
)
async def test_expired_certificate_is_not_replaced_by_one_that_serves_nobody(
    leaf: trustme.LeafCert, reason: str, tmp_path: Path
) -> None:
    old = certificate(valid_days=-1)
    code, text = await alter_keystore(tmp_path, leaf, BETWEEN_BROKERS, old)
    assert code == InvalidRequest.code
    assert reason in text


async def test_refused_password_is_in_no_file_of_the_node(tmp_path: Path) -> None:
    data, secret = tmp_path / "data", "the secret of the key store"
    async with running(data) as server:
        password = ("listener.name.other.ssl.keystore.password", secret)
        code, text = await alter(server, password, ("log.retention.ms", "77777"))
        assert (code, secret in text) == (InvalidRequest.code, False)
        assert await alter(server, ("log.retention.ms", "88888")) == (0, "")
    content = b"".join(path.read_bytes() for path in data.rglob("*") if path.is_file())
    assert b"88888" in content
    assert secret.encode() not in content
    assert b"77777" not in content
