"""Key stores and trust stores in PEM format, and the settings of nodes and Java clients."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from functools import cache
from pathlib import Path

import attrs
import trustme
from cryptography.hazmat.primitives.serialization import (
    Encoding,
    NoEncryption,
    PrivateFormat,
    load_pem_private_key,
)

HOST = "127.0.0.1"


@cache
def authority(name: str = "test") -> trustme.CA:
    return trustme.CA(organization_name=name)


@attrs.frozen
class Store:
    """The files of a certificate: key and certificates together, and each alone."""

    both: Path
    key: Path
    chain: Path


def write_store(
    directory: Path,
    name: str,
    *hosts: str,
    authority_name: str = "test",
    valid_days: float = 365,
    key_type: trustme.KeyType = trustme.KeyType.ECDSA,
) -> Store:
    """Write the files of a new certificate; negative ``valid_days`` are in the past."""
    end = datetime.now(UTC) + timedelta(days=valid_days)
    leaf = authority(authority_name).issue_cert(
        *(hosts or (HOST, "localhost")),
        common_name=name,
        organization_name="kwire",
        organization_unit_name="tests",
        not_before=end - timedelta(days=400),
        not_after=end,
        key_type=key_type,
    )
    store = Store(*(directory / f"{name}{end}" for end in (".pem", ".key", ".crt")))
    private = load_pem_private_key(leaf.private_key_pem.bytes(), None)
    key = private.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()).decode()
    chain = "".join(blob.bytes().decode() for blob in leaf.cert_chain_pems)
    store.key.write_text(key)
    store.chain.write_text(chain)
    replace(store.both, key + chain)
    return store


def replace(path: Path, text: str) -> None:
    """Replace a file in one step, so that no reader sees a half of it."""
    new = path.with_suffix(".new")
    new.write_text(text)
    new.replace(path)


def write_trusted(directory: Path, name: str = "test") -> Path:
    path = directory / f"trusted-{name}.pem"
    path.write_bytes(authority(name).cert_pem.bytes())
    return path


def java_settings(trusted: Path, store: Store | None = None) -> dict[str, str]:
    """Return the properties of Apache's own clients."""
    settings = {
        "security.protocol": "SSL",
        "ssl.truststore.type": "PEM",
        "ssl.truststore.location": str(trusted),
    }
    if store is not None:
        settings |= {"ssl.keystore.type": "PEM", "ssl.keystore.location": str(store.both)}
    return settings
