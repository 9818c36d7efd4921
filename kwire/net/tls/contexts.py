"""Creates OpenSSL contexts from a listener's settings, reading the files that they name.

Runs in a thread, except when a node starts. Rules: renegotiation is off; a certificate in a trust
store is trusted even if it is not self-signed, as in Java; clients that present certificates do not
get session tickets, so each of their connections is verified anew. OpenSSL reads private keys only
from files, so a key is passed in a file in memory where the system supports that.
"""

import os
import ssl
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final, NamedTuple

from kwire.configs.declare import ConfigError
from kwire.configs.tls import TlsConfig
from kwire.net.tls.certificate import alternative_names, expiry_ms, subject
from kwire.net.tls.stores import KeyPair, read_key_pair, read_trusted

_CLIENT_AUTH: Final = {
    "none": ssl.CERT_NONE,
    "requested": ssl.CERT_OPTIONAL,
    "required": ssl.CERT_REQUIRED,
}
_BEGIN: Final = "-----BEGIN"
_VERSIONS: Final = {"TLSv1.2": ssl.TLSVersion.TLSv1_2, "TLSv1.3": ssl.TLSVersion.TLSv1_3}


class ServerContext(NamedTuple):
    """A listener's context, with the contents of its certificates."""

    context: ssl.SSLContext
    expires_ms: int
    """The expiry of the certificate that expires first, in milliseconds since 1970."""
    subject: str
    hosts: frozenset[str]
    """The entries of the certificate's ``subjectAltName``."""


def server_context(tls: TlsConfig) -> ServerContext:
    """Return the context for the connections to a listener; raise ConfigError with the reason."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    _set_versions(context, tls)
    pair = _load_pair(context, tls)
    context.verify_mode = _CLIENT_AUTH[tls.ssl_client_auth]
    if tls.ssl_client_auth != "none":
        _load_trusted(context, tls, ssl.Purpose.CLIENT_AUTH)
        context.num_tickets = 0
    with _intact(tls.ssl_keystore_location or "ssl.keystore.certificate.chain"):
        certificates = _certificates(pair)
        return ServerContext(
            context,
            min(map(expiry_ms, certificates)),
            subject(certificates[0]),
            alternative_names(certificates[0]),
        )


def client_context(tls: TlsConfig) -> ssl.SSLContext:
    """Return the context for connections to other nodes; raise ConfigError with the reason."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    _set_versions(context, tls)
    context.check_hostname = bool(tls.ssl_endpoint_identification_algorithm)
    _load_trusted(context, tls, ssl.Purpose.SERVER_AUTH)
    if tls.has_keystore:
        _load_pair(context, tls)
    return context


def _set_versions(context: ssl.SSLContext, tls: TlsConfig) -> None:
    versions = sorted(_VERSIONS[version] for version in tls.versions)
    context.minimum_version, context.maximum_version = versions[0], versions[-1]
    context.options |= ssl.OP_NO_RENEGOTIATION
    if tls.cipher_names:
        try:
            context.set_ciphers(tls.cipher_names)
        except ssl.SSLError:
            raise ConfigError(
                f"ssl.cipher.suites: OpenSSL has none of {tls.cipher_names}"
            ) from None


def _load_trusted(context: ssl.SSLContext, tls: TlsConfig, purpose: ssl.Purpose) -> None:
    source = tls.ssl_truststore_location or "ssl.truststore.certificates"
    with _intact(source):
        trusted = read_trusted(tls)
    if trusted is None:
        context.load_default_certs(purpose)
        return
    with _intact(source):
        try:
            context.load_verify_locations(cadata=trusted)
        except ssl.SSLError as error:
            raise ConfigError(f"{source}: {error.reason or error}") from None
    context.verify_flags |= ssl.VERIFY_X509_PARTIAL_CHAIN


@contextmanager
def _intact(source: str) -> Iterator[None]:
    """Turn other errors that damaged stores cause into ConfigError."""
    try:
        yield
    except ConfigError:
        raise
    except (ValueError, TypeError, LookupError) as error:
        raise ConfigError(f"{source} is damaged: {type(error).__name__}") from None


def _load_pair(context: ssl.SSLContext, tls: TlsConfig) -> KeyPair:
    source = tls.ssl_keystore_location or "ssl.keystore.key"
    with _intact(source):
        pair = read_key_pair(tls)
    with _private_file((pair.certificates + pair.key).encode()) as path:
        try:
            context.load_cert_chain(path, password=lambda: pair.password)
        except (ssl.SSLError, ValueError) as error:
            raise ConfigError(f"{source}: {_explain(error)}") from None
    return pair


def _explain(error: Exception) -> str:
    reason = getattr(error, "reason", None)
    if reason == "KEY_VALUES_MISMATCH":
        return "the private key does not belong to the first certificate"
    if reason in ("BAD_DECRYPT", "BAD_PASSWORD_READ", "EMPTY_PASSWORD", None):
        return "the private key cannot be decrypted; check ssl.key.password"
    return f"the private key or a certificate is unusable: {reason}"


@contextmanager
def _private_file(data: bytes) -> Iterator[str]:
    """Create a file that only this process can read, and remove it afterwards; yield its path."""
    if hasattr(os, "memfd_create") and os.path.isdir("/proc/self/fd"):
        descriptor = os.memfd_create("kwire-keystore")
        try:
            os.write(descriptor, data)
            yield f"/proc/self/fd/{descriptor}"
        finally:
            os.close(descriptor)
    else:
        with tempfile.NamedTemporaryFile() as file:
            file.write(data)
            file.flush()
            yield file.name


def _certificates(pair: KeyPair) -> list[bytes]:
    """Return the certificates of a key as DER, the key's own first."""
    blocks = pair.certificates.split(_BEGIN)[1:]
    return [ssl.PEM_cert_to_DER_cert(_BEGIN + block) for block in blocks]
