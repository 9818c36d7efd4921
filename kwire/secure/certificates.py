"""The certificates of `--secure`: an authority, and server certificates that it signs.

Pure: the caller passes the time and stores the results. Needs the package ``cryptography``, which
the extra ``tls`` installs. Keys use the curve P-256 and are PKCS#8 in PEM, which Java can also
read.
"""

import ipaddress
from collections.abc import Iterable
from datetime import UTC, datetime, timedelta
from typing import Final, NamedTuple

from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import (
    Encoding,
    NoEncryption,
    PrivateFormat,
    load_pem_private_key,
)
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

AUTHORITY_DAYS: Final = 3650
SERVER_DAYS: Final = 180
RENEWAL_DAYS: Final = 60
"""A server certificate is renewed this many days before it expires; kwire warns at 30."""
_CLOCK_SKEW: Final = timedelta(hours=1)
"""The time by which a client's clock may be behind the server's."""


class Authority(NamedTuple):
    """The private key and the certificate of an authority, as PEM."""

    key: bytes
    certificate: bytes


def new_authority(host: str, now_ms: int) -> Authority:
    """Return a new authority, named after the host where it is created."""
    key = ec.generate_private_key(ec.SECP256R1())
    name = _name(f"kwire authority of {host}")
    builder = (
        _builder(name, name, key.public_key(), now_ms, AUTHORITY_DAYS)
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .add_extension(_usage(is_authority=True), critical=True)
    )
    certificate = builder.sign(key, hashes.SHA256())
    return Authority(_key_pem(key), certificate.public_bytes(Encoding.PEM))


def new_server(authority: Authority, hosts: Iterable[str], now_ms: int) -> bytes:
    """Return a new private key and its certificate for these hosts, as PEM."""
    signer = load_pem_private_key(authority.key, None)
    assert isinstance(signer, ec.EllipticCurvePrivateKey), "new_authority makes no other"
    issuer = x509.load_pem_x509_certificate(authority.certificate)
    key = ec.generate_private_key(ec.SECP256R1())
    purposes = [ExtendedKeyUsageOID.SERVER_AUTH, ExtendedKeyUsageOID.CLIENT_AUTH]
    names = list(hosts)
    certificate = (
        _builder(
            _name(f"kwire on {names[0]}"),
            issuer.subject,
            key.public_key(),
            now_ms,
            SERVER_DAYS,
            issuer.not_valid_after_utc,
        )
        .add_extension(x509.SubjectAlternativeName(map(_alternative, names)), critical=False)
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .add_extension(_usage(is_authority=False), critical=True)
        .add_extension(x509.ExtendedKeyUsage(purposes), critical=False)
        .add_extension(
            x509.AuthorityKeyIdentifier.from_issuer_public_key(signer.public_key()), critical=False
        )
        .sign(signer, hashes.SHA256())
    )
    return _key_pem(key) + certificate.public_bytes(Encoding.PEM)


def is_due(server: bytes, authority: bytes, hosts: Iterable[str], now_ms: int) -> bool:
    """Return whether a server's certificate must be replaced.

    This is the case if it expires soon, was not issued by this authority, or lacks one of the
    hosts.
    """
    try:
        certificate = x509.load_pem_x509_certificate(server)
    except ValueError:  # The certificate is damaged.
        return True
    issuer = x509.load_pem_x509_certificate(authority)
    try:
        certificate.verify_directly_issued_by(issuer)
    except Exception:  # noqa: BLE001  The signature does not match; the errors have no common base.
        return True
    end = min(certificate.not_valid_after_utc, issuer.not_valid_after_utc)
    if certificate.not_valid_after_utc < issuer.not_valid_after_utc:
        end -= timedelta(days=RENEWAL_DAYS)
    if _time(now_ms) >= end:
        return True
    names = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    return not set(map(_alternative, hosts)) <= set(names)


def _builder(
    subject: x509.Name,
    issuer: x509.Name,
    key: ec.EllipticCurvePublicKey,
    now_ms: int,
    days: int,
    last: datetime | None = None,
) -> x509.CertificateBuilder:
    """Return the part common to all certificates; ``last`` is the expiry of the issuer's own."""
    end = _time(now_ms) + timedelta(days=days)
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(key)
        .serial_number(x509.random_serial_number())
        .not_valid_before(_time(now_ms) - _CLOCK_SKEW)
        .not_valid_after(end if last is None else min(end, last))
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key), critical=False)
    )


def _usage(*, is_authority: bool) -> x509.KeyUsage:
    return x509.KeyUsage(
        digital_signature=not is_authority,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        key_cert_sign=is_authority,
        crl_sign=is_authority,
        encipher_only=False,
        decipher_only=False,
    )


def _name(text: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, text[:64])])


def _alternative(host: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ipaddress.ip_address(host))
    except ValueError:
        return x509.DNSName(host)


def _key_pem(key: ec.EllipticCurvePrivateKey) -> bytes:
    return key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())


def _time(now_ms: int) -> datetime:
    return datetime.fromtimestamp(now_ms / 1000, UTC)
