"""The TLS settings of one listener: ``ssl.*``, overridden by ``listener.name.NAME.ssl.*``.

Pure: the files that settings name are read in :mod:`kwire.net.tls`. This module is loaded when a
file or a request names one of the settings, or a listener uses TLS. Combinations that Apache Kafka
rejects are rejected in its words.
"""

from typing import Final

from kwire.configs.declare import (
    Config,
    ConfigError,
    Kind,
    Scope,
    boolean,
    optional_string,
    string,
    strings,
)
from kwire.configs.principal_rules import check_rules

PER_BROKER: Final = Scope.PER_BROKER
_JAVAS_STORES: Final = ("JKS", "PKCS12")
"""The formats of which Java accepts any case."""
_PROTOCOLS: Final = ("TLSv1.2", "TLSv1.3")
_TLS_1_3_SUITES: Final = frozenset(
    ("TLS_AES_256_GCM_SHA384", "TLS_CHACHA20_POLY1305_SHA256", "TLS_AES_128_GCM_SHA256")
)
_BULK: Final = {
    "AES_256_GCM_SHA384": "AES256-GCM-SHA384",
    "AES_128_GCM_SHA256": "AES128-GCM-SHA256",
    "AES_128_CBC_SHA256": "AES128-SHA256",
    "AES_256_CBC_SHA": "AES256-SHA",
    "AES_128_CBC_SHA": "AES128-SHA",
}
_EPHEMERAL_BULK: Final = {
    **_BULK,
    "AES_256_CBC_SHA384": "AES256-SHA384",
    "CHACHA20_POLY1305_SHA256": "CHACHA20-POLY1305",
}
_TLS_1_2_SUITES: Final = {
    f"TLS_{exchange}_WITH_{bulk}": prefix + name
    for exchange, prefix, suites in (
        ("ECDHE_ECDSA", "ECDHE-ECDSA-", _EPHEMERAL_BULK),
        ("ECDHE_RSA", "ECDHE-RSA-", _EPHEMERAL_BULK),
        ("RSA", "", _BULK),
    )
    for bulk, name in suites.items()
}
"""OpenSSL's names of the cipher suites of TLS 1.2, by Java's."""


def _check_store(kind: str) -> str | None:
    if kind.upper() in _JAVAS_STORES or kind == "PEM":
        return None
    return f"String must be one of: {', '.join(_JAVAS_STORES)}, PEM"


def _check_protocols(values: tuple[str, ...]) -> str | None:
    if values and set(values) <= set(_PROTOCOLS):
        return None
    return f"kwire has {' and '.join(_PROTOCOLS)} only; older versions are not safe"


def _check_suites(values: tuple[str, ...]) -> str | None:
    unknown = [v for v in values if v not in _TLS_1_2_SUITES and v not in _TLS_1_3_SUITES]
    if unknown:
        return f"kwire does not have the cipher suite {unknown[0]}"
    if _TLS_1_3_SUITES - set(values) and _TLS_1_3_SUITES & set(values):
        # Before Python 3.15, the ssl module cannot select among these suites.
        return f"name all of {', '.join(sorted(_TLS_1_3_SUITES))}, or none, which is TLS 1.2 only"
    return None


class TlsConfig(Config):
    """The TLS settings of one listener."""

    # fmt: off
    ssl_allow_dn_changes = boolean(
        False, "Whether a certificate with another subject may replace that of a running node.")
    ssl_allow_san_changes = boolean(
        False, "Whether a certificate that lacks hosts may replace that of a running node.")
    ssl_cipher_suites = strings(
        (), "Cipher suites that a listener may use; all safe ones by default.",
        check=_check_suites, scope=PER_BROKER
    )
    ssl_client_auth = string(
        "none", "Whether clients must show a certificate.",
        choices=("required", "requested", "none"), scope=PER_BROKER
    )
    ssl_enabled_protocols = strings(
        ("TLSv1.2", "TLSv1.3"), "Versions of TLS that a listener speaks.",
        check=_check_protocols, scope=PER_BROKER
    )
    ssl_endpoint_identification_algorithm = string(
        "https", "Whether nodes check each other's host names (https) or not (empty).",
        check=lambda text: None if text.lower() in ("", "https") else "must be https or empty",
        scope=PER_BROKER
    )
    ssl_key_password = optional_string(
        "The password of the private key.", kind=Kind.PASSWORD, scope=PER_BROKER)
    ssl_keystore_certificate_chain = optional_string(
        "Certificates as PEM, the node's own first.", kind=Kind.PASSWORD, scope=PER_BROKER)
    ssl_keystore_key = optional_string(
        "The node's private key as PEM (PKCS#8).", kind=Kind.PASSWORD, scope=PER_BROKER)
    ssl_keystore_location = optional_string(
        "The file with the node's private key and certificates.", scope=PER_BROKER)
    ssl_keystore_password = optional_string(
        "The password of that file.", kind=Kind.PASSWORD, scope=PER_BROKER)
    ssl_keystore_type = string(
        "JKS", "The format of that file: PEM, PKCS12 or JKS.", check=_check_store,
        scope=PER_BROKER)
    ssl_principal_mapping_rules = string(
        "DEFAULT", "How the name in a client's certificate becomes its user name.",
        check=check_rules)
    ssl_protocol = string(
        "TLSv1.3", "Kafka's context; ssl.enabled.protocols decides.",
        choices=("TLS", *_PROTOCOLS), scope=PER_BROKER)
    ssl_truststore_certificates = optional_string(
        "Certificates that are trusted, as PEM.", kind=Kind.PASSWORD, scope=PER_BROKER)
    ssl_truststore_location = optional_string(
        "The file with the certificates that are trusted; by default those of the system.",
        scope=PER_BROKER)
    ssl_truststore_password = optional_string(
        "The password of that file.", kind=Kind.PASSWORD, scope=PER_BROKER)
    ssl_truststore_type = string(
        "JKS", "The format of that file: PEM, PKCS12 or JKS.", check=_check_store,
        scope=PER_BROKER)
    # fmt: on

    @property
    def has_keystore(self) -> bool:
        """True if the settings name a private key."""
        return self.ssl_keystore_location is not None or self.ssl_keystore_key is not None

    @property
    def cipher_names(self) -> str:
        """OpenSSL's list of the cipher suites of TLS 1.2; empty for OpenSSL's own choice."""
        suites = self.ssl_cipher_suites
        return ":".join(_TLS_1_2_SUITES[suite] for suite in suites if suite in _TLS_1_2_SUITES)

    @property
    def versions(self) -> tuple[str, ...]:
        """The TLS versions to offer: the enabled versions for which there are cipher suites."""
        named = set(self.ssl_cipher_suites)
        suites = {"TLSv1.2": _TLS_1_2_SUITES.keys(), "TLSv1.3": _TLS_1_3_SUITES}
        return tuple(v for v in self.ssl_enabled_protocols if not named or named & suites[v])


def check_stores(tls: TlsConfig) -> None:
    """Reject combinations of stores, types and passwords that cannot work."""
    _check_keystore(tls)
    if not tls.versions:
        raise ConfigError("ssl.cipher.suites has no cipher suite for ssl.enabled.protocols")
    location, inline = tls.ssl_truststore_location, tls.ssl_truststore_certificates
    if location is not None and inline is not None:
        raise ConfigError("Both SSL trust store location and separate trust certificates are set")
    if inline is not None and tls.ssl_truststore_type != "PEM":
        raise ConfigError(
            "SSL trust store certs can be specified only for PEM, but trust store type is "
            f"{tls.ssl_truststore_type}; set ssl.truststore.type=PEM"
        )
    if tls.ssl_truststore_type == "PEM" and tls.ssl_truststore_password is not None:
        raise ConfigError("SSL trust store password cannot be specified for PEM format; remove it")


def _check_keystore(tls: TlsConfig) -> None:
    location, key = tls.ssl_keystore_location, tls.ssl_keystore_key
    chain, kind = tls.ssl_keystore_certificate_chain, tls.ssl_keystore_type
    if location is not None and key is not None:
        raise ConfigError("Both SSL key store location and separate private key are specified")
    if (key is None) != (chain is None):
        lacking = "private key" if key is None else "certificate chain"
        raise ConfigError(
            f"ssl.keystore.key and ssl.keystore.certificate.chain need each other; the {lacking} "
            "is not specified"
        )
    if key is not None and kind != "PEM":
        raise ConfigError(
            f"SSL private key can be specified only for PEM, but key store type is {kind}; set "
            "ssl.keystore.type=PEM"
        )
    if kind == "PEM" and tls.ssl_keystore_password is not None:
        raise ConfigError(
            "SSL key store password cannot be specified with PEM format, only key password may be "
            "specified; rename it to ssl.key.password"
        )
    if location is not None and kind != "PEM" and tls.ssl_keystore_password is None:
        raise ConfigError(
            "SSL key store is specified, but key store password is not specified; set "
            "ssl.keystore.password"
        )
