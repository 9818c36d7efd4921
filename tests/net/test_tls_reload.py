"""Certificates that change while connections are open."""

import logging
from pathlib import Path
from typing import Any

import pytest
import trio.testing
import trustme

from kwire.clock import SystemClock
from kwire.configs.tls import TlsConfig
from kwire.metrics import CERTIFICATE_EXPIRY
from kwire.net.tls.reloading import CHECK_S
from tests.support.net.node import Node, echo
from tests.support.net.tls import certificate, connect, pem, tls_node

DAY_S = 86_400


async def serial(node: Node) -> int:
    """Return the serial number of the certificate that a new connection gets."""
    async with await connect(node) as client:
        await echo(client, b"x")
        stream: Any = client.stream
        return int(stream.getpeercert()["serialNumber"], 16)


def new_certificate() -> trustme.LeafCert:
    """Return another certificate with the same names."""
    return certificate.__wrapped__()


def messages(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [record.getMessage() for record in caplog.records if "certificate" in record.msg]


async def test_new_file_serves_new_connections_and_ends_no_open_one(
    tmp_path: Path,
    mock_clock: trio.testing.MockClock,
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.INFO, "kwire")
    async with tls_node(tmp_path) as (node, _), await connect(node) as client:
        before = await serial(node)
        (tmp_path / "keystore.pem").write_text(pem(new_certificate()))
        assert await serial(node) == before, "files are looked at every few seconds only"
        mock_clock.jump(CHECK_S)
        after = await serial(node)
        assert after != before
        assert await echo(client, b"old") == b"old"
    assert messages(caplog) == ["certificates reloaded listener=A"]


async def test_unusable_file_changes_nothing_and_is_logged_once(
    tmp_path: Path,
    mock_clock: trio.testing.MockClock,
    caplog: pytest.LogCaptureFixture,
) -> None:
    store, text = tmp_path / "keystore.pem", pem(new_certificate())
    async with tls_node(tmp_path) as (node, _):
        before = await serial(node)
        store.write_text(text[:300])
        for _ in range(3):
            mock_clock.jump(CHECK_S)
            assert await serial(node) == before
        (message,) = messages(caplog)
        assert message.startswith("certificates not reloaded listener=A reason=")
        store.write_text(text)
        mock_clock.jump(CHECK_S)
        assert await serial(node) != before


@pytest.mark.parametrize(
    ("leaf", "allowed", "reason"),
    [
        (certificate(common_name="b"), {}, "the subject of the new certificate is CN=b,OU=tests"),
        (certificate("localhost"), {}, "the new certificate does not name IP:127.0.0.1; use"),
        (certificate(common_name="b"), {"allow_dn_changes": "true"}, None),
        (certificate("localhost"), {"allow_san_changes": "true"}, None),
        (certificate("127.0.0.1", "localhost", "more.example"), {}, None),
    ],
)
async def test_new_certificate_must_have_the_names_of_the_old_one(
    leaf: trustme.LeafCert,
    allowed: dict[str, Any],
    reason: str | None,
    tmp_path: Path,
    mock_clock: trio.testing.MockClock,
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.INFO, "kwire")
    async with tls_node(tmp_path, **allowed) as (node, _):
        (tmp_path / "keystore.pem").write_text(pem(leaf))
        mock_clock.jump(CHECK_S)
        tls = node.service.listeners["A"].tls
        assert tls is not None
        await tls.certificates.refresh()
        (message,) = messages(caplog)
        if reason is None:
            assert message == "certificates reloaded listener=A"
        else:
            assert f"certificates not reloaded listener=A reason={reason}" in message
            await serial(node)


async def test_missing_file_changes_nothing(
    tmp_path: Path, mock_clock: trio.testing.MockClock
) -> None:
    async with tls_node(tmp_path) as (node, _):
        before = await serial(node)
        (tmp_path / "keystore.pem").unlink()
        mock_clock.jump(CHECK_S)
        assert await serial(node) == before


async def test_new_settings_count_from_the_next_connection_on(
    tmp_path: Path, mock_clock: trio.testing.MockClock
) -> None:
    other = tmp_path / "other.pem"
    other.write_text(pem(new_certificate()))
    async with tls_node(tmp_path) as (node, _):
        before = await serial(node)
        tls = node.service.listeners["A"].tls
        assert tls is not None
        tls.certificates.configure(
            TlsConfig({"ssl.keystore.type": "PEM", "ssl.keystore.location": str(other)})
        )
        assert await serial(node) != before


@pytest.mark.parametrize(("valid_days", "warns"), [(29, True), (40, False)])
async def test_operator_is_warned_once_a_day_before_a_certificate_expires(
    valid_days: int,
    warns: bool,
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    leaf = certificate(valid_days=valid_days)
    now_ms = SystemClock().now_ms()
    monkeypatch.setattr("tests.support.net.tls.certificate", lambda: leaf)
    monkeypatch.setattr(SystemClock, "now_ms", lambda clock: now_ms)
    async with tls_node(tmp_path) as (node, metrics):
        tls = node.service.listeners["A"].tls
        assert tls is not None
        line = f'{CERTIFICATE_EXPIRY.name}{{listener="A"}} {tls.certificates.current.expires_ms}'
        assert line in metrics.text().splitlines()
        await serial(node)
        assert len(messages(caplog)) == warns
        now_ms += DAY_S * 1000
        await serial(node)
        await serial(node)
    if warns:
        assert messages(caplog) == [
            f"certificate expires soon listener=A days={days}: put a new one into its key store"
            for days in (valid_days - 1, valid_days - 2)
        ]
