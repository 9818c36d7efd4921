"""Names and expiry of certificates; the names are those that Java 17 printed for the same bytes."""

import ssl
from datetime import UTC, datetime, timedelta

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import Encoding
from cryptography.x509.oid import NameOID as Oid

from kwire.net.tls.certificate import alternative_names, expiry_ms, in_order, subject
from tests.support.net.tls import authority, certificate

KEY = ec.generate_private_key(ec.SECP256R1())
Attributes = list[tuple[x509.ObjectIdentifier, str]]


def make_certificate(*parts: Attributes, end: datetime | None = None) -> bytes:
    """Return a certificate whose subject has these relative names, in the order of its bytes."""
    name = x509.Name(
        [
            x509.RelativeDistinguishedName(
                [x509.NameAttribute(oid, text, _validate=False) for oid, text in part]
            )
            for part in parts
        ]
    )
    end = end or datetime(2030, 1, 2, 3, 4, 5, tzinfo=UTC)
    builder = x509.CertificateBuilder(name, name, KEY.public_key(), 1, end - timedelta(1), end)
    return builder.sign(KEY, hashes.SHA256()).public_bytes(Encoding.DER)


@pytest.mark.parametrize(
    ("parts", "printed"),
    [
        (
            [
                [(Oid.COUNTRY_NAME, "DE")],
                [(Oid.STATE_OR_PROVINCE_NAME, "Bayern")],
                [(Oid.LOCALITY_NAME, "München")],
                [(Oid.ORGANIZATION_NAME, 'A, "B" & Co')],
                [(Oid.ORGANIZATIONAL_UNIT_NAME, "Ops")],
                [(Oid.COMMON_NAME, "broker-1")],
            ],
            'CN=broker-1,OU=Ops,O=A\\, \\"B\\" & Co,L=München,ST=Bayern,C=DE',
        ),
        (
            [[(Oid.COMMON_NAME, "a")], [(Oid.EMAIL_ADDRESS, "a@b.c")]],
            "1.2.840.113549.1.9.1=#16056140622e63,CN=a",
        ),
        (
            [
                [(Oid.COMMON_NAME, "x"), (Oid.ORGANIZATIONAL_UNIT_NAME, "y")],
                [(Oid.DOMAIN_COMPONENT, "example")],
                [(Oid.DOMAIN_COMPONENT, "org")],
                [(Oid.USER_ID, "u1")],
            ],
            "UID=u1,DC=org,DC=example,CN=x+OU=y",
        ),
        (
            [
                [(Oid.STREET_ADDRESS, "S 1")],
                [(Oid.SERIAL_NUMBER, "7")],
                [(Oid.TITLE, "Dr")],
                [(Oid.SURNAME, "S")],
            ],
            "2.5.4.4=#0c0153,2.5.4.12=#0c024472,2.5.4.5=#130137,STREET=S 1",
        ),
        (
            [[(Oid.COMMON_NAME, "back\\slash;semi<lt>gt=eq+plus")]],
            "CN=back\\\\slash\\;semi\\<lt\\>gt\\=eq\\+plus",
        ),
        ([[(Oid.COMMON_NAME, " lead trail ")]], "CN=\\ lead trail\\ "),
        ([[(Oid.COMMON_NAME, "  ")]], "CN=\\ \\ "),
        ([[(Oid.COMMON_NAME, " ")]], "CN=\\ "),
        ([[(Oid.COMMON_NAME, "  a  b  ")]], "CN=\\ \\ a  b\\ \\ "),
        ([[(Oid.COMMON_NAME, " #x")]], "CN=\\ \\#x"),
        ([[(Oid.COMMON_NAME, "a #b")]], "CN=a \\#b"),
        ([[(Oid.COMMON_NAME, "tab\tx")]], "CN=tab\tx"),
        ([[(Oid.COMMON_NAME, "日本😀")]], "CN=日本😀"),
        ([], ""),
    ],
)
def test_name_is_printed_as_by_java(parts: list[Attributes], printed: str) -> None:
    assert subject(make_certificate(*parts)) == printed


@pytest.mark.parametrize(
    "end",
    [datetime(2049, 12, 31, 23, 59, 59, tzinfo=UTC), datetime(2050, 1, 1, tzinfo=UTC)],
    ids=["short form", "long form"],
)
def test_expiry_is_read_in_both_forms(end: datetime) -> None:
    assert expiry_ms(make_certificate(end=end)) == end.timestamp() * 1000


@pytest.mark.parametrize("data", [b"", b"x", b"\x30\x03\x02\x01\x01", b"\x30\x82\xff\xff\x00"])
def test_other_bytes_are_an_error(data: bytes) -> None:
    with pytest.raises(ValueError):  # noqa: PT011
        subject(data)


def test_hosts_are_read_from_the_alternative_names() -> None:
    leaf = certificate("a.example", "127.0.0.1", "::1", "*.b.example").cert_chain_pems[0]
    hosts = alternative_names(ssl.PEM_cert_to_DER_cert(leaf.bytes().decode()))
    assert hosts == {"DNS:a.example", "IP:127.0.0.1", "IP:::1", "DNS:*.b.example"}
    assert alternative_names(make_certificate([(Oid.COMMON_NAME, "none")])) == set()


def test_chain_is_put_in_order() -> None:
    root = authority()
    middle = root.create_child_ca()
    leaf = middle.issue_cert("localhost")
    own, issuer, anchor = (
        x509.load_pem_x509_certificate(blob.bytes()).public_bytes(Encoding.DER)
        for blob in (leaf.cert_chain_pems[0], middle.cert_pem, root.cert_pem)
    )
    other = x509.load_pem_x509_certificate(certificate().cert_chain_pems[0].bytes())
    unrelated = other.public_bytes(Encoding.DER)
    assert in_order(own, [unrelated, anchor, issuer]) == (own, issuer, anchor)
