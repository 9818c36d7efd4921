"""Certificates made for a test, and the settings and the connections that use them."""

import ssl
from datetime import UTC, datetime, timedelta
from functools import cache
from pathlib import Path

import trustme

from kwire.configs.tls import TlsConfig

HOST = "127.0.0.1"


@cache
def authority(name: str = "a") -> trustme.CA:
    """Return a certificate authority; the same one for the same name."""
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
