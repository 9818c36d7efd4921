"""The certificates of `--secure`: who they are for, and when they are renewed."""

import ssl
from pathlib import Path

import pytest
from cryptography import x509

from kwire.secure.certificates import (
    AUTHORITY_DAYS,
    RENEWAL_DAYS,
    SERVER_DAYS,
    is_due,
    new_authority,
    new_server,
)

NOW_MS = 1_700_000_000_000
DAY_MS = 86_400_000
HOSTS = ["broker.example", "192.0.2.1", "::1"]
AUTHORITY = new_authority("host", NOW_MS)
SERVER = new_server(AUTHORITY, HOSTS, NOW_MS)


def due(after_days: int, hosts: list[str] = HOSTS) -> bool:
    return is_due(SERVER, AUTHORITY.certificate, hosts, NOW_MS + after_days * DAY_MS)


def test_certificate_is_renewed_well_before_its_end() -> None:
    assert not due(SERVER_DAYS - RENEWAL_DAYS - 1)
    assert due(SERVER_DAYS - RENEWAL_DAYS)


def test_certificate_is_renewed_for_another_host() -> None:
    assert not due(0, ["::1"])
    assert due(0, [*HOSTS, "other.example"])


def test_certificate_of_another_authority_is_replaced() -> None:
    other = new_authority("host", NOW_MS)
    assert is_due(SERVER, other.certificate, HOSTS, NOW_MS)


def test_certificate_does_not_outlive_its_authority() -> None:
    """Such a certificate is not due before its end: a renewal could not move the end."""
    late_ms = NOW_MS + (AUTHORITY_DAYS - 10) * DAY_MS
    certificate = new_server(AUTHORITY, HOSTS, late_ms)
    own = x509.load_pem_x509_certificate(certificate)
    issuer = x509.load_pem_x509_certificate(AUTHORITY.certificate)
    assert own.not_valid_after_utc == issuer.not_valid_after_utc
    assert not is_due(certificate, AUTHORITY.certificate, HOSTS, late_ms + 9 * DAY_MS)
    assert is_due(certificate, AUTHORITY.certificate, HOSTS, late_ms + 10 * DAY_MS)


@pytest.mark.parametrize("host", HOSTS)
def test_strict_client_accepts_the_certificate(tmp_path: Path, host: str) -> None:
    """The strict checks of RFC 5280 are the default from Python 3.13 onwards."""
    from kwire.clock import SystemClock

    now_ms = SystemClock().now_ms()
    authority = new_authority("host", now_ms)
    (tmp_path / "server.pem").write_bytes(new_server(authority, HOSTS, now_ms))
    server_context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    server_context.load_cert_chain(tmp_path / "server.pem")
    client_context = ssl.create_default_context(cadata=authority.certificate.decode())
    client_context.verify_flags |= ssl.VERIFY_X509_STRICT
    to_client, to_server = ssl.MemoryBIO(), ssl.MemoryBIO()
    server = server_context.wrap_bio(to_server, to_client, server_side=True)
    client = client_context.wrap_bio(to_client, to_server, server_hostname=host)
    for _ in range(2):
        for side in (client, server):
            try:
                side.do_handshake()
            except ssl.SSLWantReadError:
                continue
    assert client.version() == "TLSv1.3"
