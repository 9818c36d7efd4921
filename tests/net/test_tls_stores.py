"""Key stores and trust stores in every format. ``stores/`` was made with Java's keytool."""

import random
import re
import ssl
from pathlib import Path

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import pkcs12

from kwire.configs.declare import ConfigError
from kwire.configs.tls import TlsConfig
from kwire.net.tls.contexts import client_context, server_context
from kwire.net.tls.stores import read_key_pair, read_trusted
from tests.support.net.tls import authority, certificate, pem, trusted_pem

STORES = Path(__file__).with_name("stores")
LEAF = certificate()


def tls(**more: str) -> TlsConfig:
    return TlsConfig({f"ssl.{name.replace('_', '.')}": text for name, text in more.items()})


def talk(server: ssl.SSLContext, client: ssl.SSLContext, name: str) -> None:
    """Perform a handshake in memory; raise SSLError if it fails."""
    there, back = ssl.MemoryBIO(), ssl.MemoryBIO()
    sides = [
        client.wrap_bio(back, there, server_hostname=name),
        server.wrap_bio(there, back, server_side=True),
    ]
    waiting = list(sides)
    while waiting:
        for side in list(waiting):
            try:
                side.do_handshake()
            except ssl.SSLWantReadError:
                continue
            waiting.remove(side)


def damage(rng: random.Random, data: bytes) -> bytes:
    """Return a file with some bytes changed, cut off, left out or put in."""
    start, end = sorted(rng.randrange(len(data)) for _ in range(2))
    changed = bytearray(data)
    for _ in range(rng.choice((1, 2, 20))):
        changed[rng.randrange(len(data))] = rng.randrange(256)
    return rng.choice(
        (
            bytes(changed),
            data[:end],
            data[:start] + data[end:],
            data[:start] + rng.randbytes(rng.randrange(1, 60)) + data[start:],
        )
    )


@pytest.mark.parametrize("kind", ["server.pem", "server.jks", "server.p12"])
def test_damaged_store_is_an_error_of_the_settings(kind: str, tmp_path: Path) -> None:
    """Invariant 100: any other error would end all new connections, not the reload."""
    rng, store, trust = random.Random(1), tmp_path / kind, tmp_path / f"trust-{kind}"
    sources = [STORES / kind, STORES / kind.replace("server", "trust")]
    whole = [source.read_bytes() if source.exists() else pem(LEAF).encode() for source in sources]
    names = {"keystore_location": str(store), "truststore_location": str(trust)}
    kinds = {".pem": "PEM", ".jks": "JKS", ".p12": "PKCS12"}
    types = dict.fromkeys(("keystore_type", "truststore_type"), kinds[store.suffix])
    secret = {} if kind == "server.pem" else {"keystore_password": "changeit"}
    settings = tls(**names, **types, **secret, client_auth="required")
    rejected_count = 0
    for number in range(150):
        store.write_bytes(whole[0] if number % 2 else damage(rng, whole[0]))
        trust.write_bytes(damage(rng, whole[1]) if number % 2 else whole[1])
        try:
            server_context(settings)
        except ConfigError:
            rejected_count += 1
    assert rejected_count > 50


def test_pem_file_and_inline_text_serve_a_client_that_trusts_the_authority(tmp_path: Path) -> None:
    file = tmp_path / "store.pem"
    file.write_text(f"a comment\n{pem(LEAF)}")
    key, _, rest = pem(LEAF).partition("-----BEGIN CERTIFICATE")
    chain = "-----BEGIN CERTIFICATE" + rest
    one_line = {"key": " ".join(key.split("\n")), "chain": " ".join(chain.split("\n"))}
    trusting = client_context(
        tls(truststore_type="PEM", truststore_certificates=" ".join(trusted_pem().split("\n")))
    )
    for settings in (
        tls(keystore_type="PEM", keystore_location=str(file)),
        tls(keystore_type="PEM", keystore_key=key, keystore_certificate_chain=chain),
        tls(
            keystore_type="PEM",
            keystore_key=one_line["key"],
            keystore_certificate_chain=one_line["chain"],
        ),
    ):
        talk(server_context(settings).context, trusting, "localhost")


def test_host_name_is_checked_unless_that_is_off() -> None:
    key, _, rest = pem(LEAF).partition("-----BEGIN CERTIFICATE")
    server = server_context(
        tls(
            keystore_type="PEM",
            keystore_key=key,
            keystore_certificate_chain="-----BEGIN CERTIFICATE" + rest,
        )
    ).context
    trust = {"truststore_type": "PEM", "truststore_certificates": trusted_pem()}
    with pytest.raises(ssl.SSLCertVerificationError, match=r"(?i)hostname|IP address"):
        talk(server, client_context(tls(**trust)), "elsewhere.example")
    lax = client_context(tls(**trust, endpoint_identification_algorithm=""))
    talk(server, lax, "elsewhere.example")


def encrypt_key(leaf_pem: str, password: bytes) -> str:
    key = serialization.load_pem_private_key(leaf_pem.encode(), None)
    return key.private_bytes(
        serialization.Encoding.PEM,
        serialization.PrivateFormat.PKCS8,
        serialization.BestAvailableEncryption(password),
    ).decode()


def test_encrypted_key_needs_its_password(tmp_path: Path) -> None:
    file = tmp_path / "store.pem"
    text = pem(LEAF)
    file.write_text(encrypt_key(text, b"geheim") + text[text.index("-----BEGIN CERT") :])
    settings = {"keystore_type": "PEM", "keystore_location": str(file)}
    assert server_context(tls(**settings, key_password="geheim"))
    for wrong in ({}, {"key_password": "other"}):
        with pytest.raises(ConfigError, match=r"cannot be decrypted; check ssl\.key\.password"):
            server_context(tls(**settings, **wrong))


@pytest.mark.parametrize(
    ("file", "kind"),
    [
        ("server.jks", "JKS"),
        ("server.jks", "PKCS12"),
        ("server.p12", "PKCS12"),
        ("server.p12", "JKS"),
    ],
)
def test_javas_stores_are_read_whatever_type_is_named(file: str, kind: str) -> None:
    server = server_context(
        tls(keystore_type=kind, keystore_location=str(STORES / file), keystore_password="changeit")
    )
    trust = STORES / ("trust.jks" if file.endswith("jks") else "trust.p12")
    client = client_context(
        tls(
            truststore_type=kind,
            truststore_location=str(trust),
            truststore_password="changeit",
        )
    )
    talk(server.context, client, "localhost")


def test_jks_key_with_its_own_password() -> None:
    settings = {
        "keystore_location": str(STORES / "key-password.jks"),
        "keystore_password": "changeit",
    }
    assert server_context(tls(**settings, key_password="of-the-key"))
    with pytest.raises(ConfigError, match="password of the key is wrong"):
        server_context(tls(**settings))


@pytest.mark.parametrize("file", ["server.jks", "server.p12"])
def test_wrong_password_of_a_store_is_an_error_without_secrets(file: str) -> None:
    settings = tls(keystore_location=str(STORES / file), keystore_password="wrong-one")
    with pytest.raises(ConfigError, match="password is wrong, or the file is damaged") as caught:
        read_key_pair(settings)
    assert "wrong-one" not in str(caught.value)


@pytest.mark.parametrize("cut", [0, 10, 100, 900])
def test_damaged_store_is_an_error(cut: int, tmp_path: Path) -> None:
    for name in ("server.jks", "server.p12"):
        file = tmp_path / name
        file.write_bytes((STORES / name).read_bytes()[:cut])
        with pytest.raises(ConfigError):
            read_key_pair(tls(keystore_location=str(file), keystore_password="changeit"))


def test_key_store_as_a_trust_store_trusts_the_keys_own_certificate() -> None:
    """A certificate that signs itself is often its own trust store."""
    key_store = {"location": str(STORES / "server.jks"), "password": "changeit"}
    trusted = read_trusted(tls(**{f"truststore_{name}": text for name, text in key_store.items()}))
    own = read_key_pair(tls(**{f"keystore_{name}": text for name, text in key_store.items()}))
    assert trusted is not None
    assert own.certificates[: own.certificates.index("-----END")] in trusted


def test_issuer_of_a_keys_certificate_is_trusted_only_as_an_entry(tmp_path: Path) -> None:
    """Otherwise every client of a public authority could log in (tried with Java 17)."""
    key = serialization.load_pem_private_key(LEAF.private_key_pem.bytes(), None)
    assert isinstance(key, ec.EllipticCurvePrivateKey)
    own = x509.load_pem_x509_certificate(LEAF.cert_chain_pems[0].bytes())
    issuer = x509.load_pem_x509_certificate(authority().cert_pem.bytes())
    file = tmp_path / "store.p12"
    settings = tls(truststore_location=str(file), truststore_password="x")
    password = serialization.BestAvailableEncryption(b"x")
    for issuers, expected in (([issuer], {own}), ([issuer, issuer], {own, issuer})):
        file.write_bytes(pkcs12.serialize_key_and_certificates(b"a", key, own, issuers, password))
        trusted = x509.load_pem_x509_certificates((read_trusted(settings) or "").encode())
        assert set(trusted) == expected


def test_truststore_without_a_password_is_read() -> None:
    assert read_trusted(tls(truststore_location=str(STORES / "trust.jks")))


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("", "0 private keys"),
        (pem(LEAF) * 2, "2 private keys"),
        (pem(LEAF)[: pem(LEAF).index("-----BEGIN CERT")], "no certificate"),
        (
            pem(LEAF)[: pem(LEAF).index("-----BEGIN CERT")] + trusted_pem(),
            "does not belong to the first certificate",
        ),
        (
            re.sub(r"\n[A-Za-z0-9+/]{20}", "\nAAAAAAAAAAAAAAAAAAAA", pem(LEAF), count=1),
            "unusable|decr",
        ),
    ],
    ids=["empty", "two keys", "no certificate", "foreign certificate", "damaged key"],
)
def test_unusable_pem_is_named(text: str, expected: str, tmp_path: Path) -> None:
    file = tmp_path / "store.pem"
    file.write_text(text)
    with pytest.raises(ConfigError, match=expected) as caught:
        server_context(tls(keystore_type="PEM", keystore_location=str(file)))
    assert str(file) in str(caught.value)


def test_missing_file_is_named(tmp_path: Path) -> None:
    absent = str(tmp_path / "gone.pem")
    with pytest.raises(ConfigError, match=r"ssl\.keystore\.location: cannot read .*gone\.pem"):
        server_context(tls(keystore_type="PEM", keystore_location=absent))


def test_trusted_certificate_need_not_sign_itself() -> None:
    """Java trusts each certificate in a trust store, OpenSSL only those at the end of a chain."""
    middle = authority().create_child_ca()
    leaf = middle.issue_cert("localhost")
    key, _, rest = pem(leaf).partition("-----BEGIN CERTIFICATE")
    server = server_context(
        tls(
            keystore_type="PEM",
            keystore_key=key,
            keystore_certificate_chain="-----BEGIN CERTIFICATE" + rest,
        )
    )
    trusted = middle.cert_pem.bytes().decode()
    talk(
        server.context,
        client_context(tls(truststore_type="PEM", truststore_certificates=trusted)),
        "localhost",
    )
