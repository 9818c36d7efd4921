"""Reads key stores and trust stores: PEM files and strings, PKCS12 and JKS files.

As in Java, the types PKCS12 and JKS both stand for either format: the file's first bytes decide.
Of a trust store with a private key, Java trusts the key's own certificate, but not those of its
issuers, unless they are also entries of their own.
PKCS12 needs the package ``cryptography`` (``kwire[tls]``), which is loaded only for such a file.
Errors are ConfigErrors of one line, without any secret.
"""

import base64
import re
import textwrap
from collections.abc import Iterable
from pathlib import Path
from typing import Final, NamedTuple

from kwire.configs.declare import ConfigError
from kwire.configs.tls import TlsConfig
from kwire.net.tls import jks
from kwire.net.tls.certificate import in_order

STORE_BYTES_MAX: Final = 16 << 20
_BLOCK: Final = re.compile(r"-+BEGIN ([A-Z0-9 ]+)-+\s(.*?)-+END \1-+", re.DOTALL)
_CERTIFICATE: Final = "CERTIFICATE"


class KeyPair(NamedTuple):
    """A private key as PEM, its password, and its certificates as PEM, the key's own first."""

    key: str
    password: str
    certificates: str


def store_files(tls: TlsConfig) -> tuple[str, ...]:
    """Return the files that the settings name."""
    return tuple(filter(None, (tls.ssl_keystore_location, tls.ssl_truststore_location)))


def read_key_pair(tls: TlsConfig) -> KeyPair:
    """Return the node's private key and certificates; raise ConfigError if they are unusable."""
    password = tls.ssl_key_password or ""
    path = tls.ssl_keystore_location
    if path is None:
        key, chain = tls.ssl_keystore_key or "", tls.ssl_keystore_certificate_chain or ""
        return _pem_pair("ssl.keystore.key", key, chain, password)
    data = _read("ssl.keystore.location", path)
    if tls.ssl_keystore_type == "PEM":
        text = data.decode("latin-1")
        return _pem_pair(path, text, text, password)
    store_password = tls.ssl_keystore_password or ""
    if data.startswith(jks.MAGIC):
        return _jks_pair(path, data, store_password, password or store_password)
    return _pkcs12_pair(path, data, store_password)


def read_trusted(tls: TlsConfig) -> str | None:
    """Return the trusted certificates as PEM; None if the system's are to be trusted."""
    path = tls.ssl_truststore_location
    if path is None:
        inline = tls.ssl_truststore_certificates
        return None if inline is None else _pem_certificates("ssl.truststore.certificates", inline)
    data = _read("ssl.truststore.location", path)
    if tls.ssl_truststore_type == "PEM":
        return _pem_certificates(path, data.decode("latin-1"))
    password = tls.ssl_truststore_password
    if data.startswith(jks.MAGIC):
        store = _read_jks(path, data, password)
        chains = (key.certificates for key in store.keys)
        trusted = [*store.trusted, *(chain[0] for chain in chains if chain)]
    else:
        _, own, others = _read_pkcs12(path, data, password)
        trusted = others if own is None else [own, *_without_chain(own, others)]
    if not trusted:
        raise ConfigError(f"{path} has no trusted certificate")
    return "".join(map(_certificate_pem, trusted))


def _read(setting: str, path: str) -> bytes:
    try:
        with Path(path).open("rb") as file:
            return file.read(STORE_BYTES_MAX)
    except OSError as error:
        raise ConfigError(f"{setting}: cannot read {path}: {error.strerror}") from error


# PEM ------------------------------------------------------------------------------------------
def _pem_pair(source: str, key_text: str, chain_text: str, password: str) -> KeyPair:
    keys = [block for label, block in _blocks(key_text) if label.endswith("PRIVATE KEY")]
    if len(keys) != 1:
        raise ConfigError(f"{source} has {len(keys)} private keys; it must have one")
    return KeyPair(keys[0], password, _pem_certificates(source, chain_text))


def _pem_certificates(source: str, text: str) -> str:
    """Return only the certificates in a text."""
    blocks = [block for label, block in _blocks(text) if label == _CERTIFICATE]
    if not blocks:
        raise ConfigError(f"{source} has no certificate in PEM format")
    return "".join(blocks)


def _blocks(text: str) -> Iterable[tuple[str, str]]:
    """Yield the label and the PEM block of each object in a text.

    In properties, a block is often one line, with spaces instead of line breaks.
    """
    for match in _BLOCK.finditer(text):
        label, body = match[1].removeprefix("X509 "), match[2]
        if ":" not in body:  # a body without headers, which would need their own lines
            body = "\n".join(textwrap.wrap("".join(body.split()), 64)) + "\n"
        yield label, f"-----BEGIN {label}-----\n{body}-----END {label}-----\n"


def _pem(label: str, data: bytes) -> str:
    text = f"-----BEGIN {label}-----\n{base64.b64encode(data).decode()}-----END {label}-----"
    return next(block for _, block in _blocks(text))


def _certificate_pem(certificate: bytes) -> str:
    return _pem(_CERTIFICATE, certificate)


# JKS ------------------------------------------------------------------------------------------
def _read_jks(path: str, data: bytes, password: str | None) -> jks.JavaStore:
    try:
        return jks.read_store(data, password)
    except ValueError as error:
        raise ConfigError(f"{path}: {error}") from None


def _jks_pair(path: str, data: bytes, store_password: str, key_password: str) -> KeyPair:
    keys = _read_jks(path, data, store_password).keys
    if not keys:
        raise ConfigError(f"{path} has no private key")
    try:
        key = keys[0].unmask(key_password)
    except (ValueError, IndexError) as error:
        raise ConfigError(f"{path}: {error}; check ssl.key.password") from None
    chain = "".join(map(_certificate_pem, keys[0].certificates))
    return KeyPair(_pem("PRIVATE KEY", key), "", chain)


# PKCS12 ---------------------------------------------------------------------------------------
def _pkcs12_pair(path: str, data: bytes, password: str) -> KeyPair:
    key, own, others = _read_pkcs12(path, data, password)
    if key is None or own is None:
        raise ConfigError(f"{path} has no private key with a certificate")
    chain = "".join(map(_certificate_pem, in_order(own, others)))
    return KeyPair(_pem("PRIVATE KEY", key), "", chain)


def _without_chain(own: bytes, others: list[bytes]) -> list[bytes]:
    """Return the certificates that are not there only for a key's chain.

    An entry of its own is in the file a second time.
    """
    remaining = list(others)
    for issuer in in_order(own, others)[1:]:
        remaining.remove(issuer)
    return remaining


def _read_pkcs12(
    path: str, data: bytes, password: str | None
) -> tuple[bytes | None, bytes | None, list[bytes]]:
    """Return the private key, its certificate and the other certificates of a file, as DER."""
    try:
        from cryptography.hazmat.primitives import serialization
        from cryptography.hazmat.primitives.serialization import pkcs12
    except ImportError:
        raise ConfigError(
            f"{path} is not a JKS file; PKCS12 needs the package cryptography: install kwire[tls], "
            "or use PEM"
        ) from None
    secret = None if password is None else password.encode()
    try:
        key, own, others = pkcs12.load_key_and_certificates(data, secret)
    except ValueError:
        raise ConfigError(f"{path}: {jks.WRONG_PASSWORD}; it should be PKCS12 or JKS") from None
    encoding = serialization.Encoding.DER
    private = None
    if key is not None:
        private = key.private_bytes(
            encoding, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
        )
    certificate = None if own is None else own.public_bytes(encoding)
    return private, certificate, [other.public_bytes(encoding) for other in others]
