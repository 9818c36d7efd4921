"""The TLS settings of listeners: overrides, combinations that cannot work, names of suites."""

import ssl
from typing import Any

import pytest

from kwire.configs.broker import BrokerConfig
from kwire.configs.declare import ConfigError
from kwire.configs.listener_tls import listener_tls
from kwire.configs.load import broker_config
from kwire.configs.tls import _TLS_1_2_SUITES, TlsConfig
from tests.support.configs.node import NODE, node

LISTENERS = "PLAINTEXT://:9092,OUT://:9094,IN://:9095,CONTROLLER://:9093"
MAP = "PLAINTEXT:PLAINTEXT,OUT:SSL,IN:SSL,CONTROLLER:PLAINTEXT"
STORE = {"ssl_keystore_type": "PEM", "ssl_keystore_location": "k.pem"}


def tls_config(**more: str) -> BrokerConfig:
    """Return the settings of a node with two listeners that use TLS."""
    listeners: dict[str, Any] = {
        "listeners": LISTENERS,
        "advertised_listeners": "PLAINTEXT://h:9092,OUT://h:9094,IN://h:9095",
        "listener_security_protocol_map": MAP,
    }
    return node(**{**listeners, **STORE, **more})


def test_settings_of_one_listener_override_those_of_all() -> None:
    config = tls_config(
        **{"listener.name.out.ssl.keystore.location": "out.pem"}, ssl_client_auth="required"
    )
    assert listener_tls(config, "OUT").ssl_keystore_location == "out.pem"
    assert listener_tls(config, "IN").ssl_keystore_location == "k.pem"
    assert listener_tls(config, "OUT").ssl_client_auth == "required"


def test_javas_formats_of_stores_are_accepted_in_any_case() -> None:
    """Java accepts them so; Apache Kafka does not accept "pem"."""
    for kind in ("jks", "pkcs12", "Pkcs12"):
        config = tls_config(ssl_keystore_type=kind, ssl_keystore_password="secret")
        assert listener_tls(config, "OUT").ssl_keystore_type == kind
    with pytest.raises(ConfigError, match=r"ssl\.keystore\.type"):
        tls_config(ssl_keystore_type="pem")


def test_dynamic_settings_of_a_listener_come_first() -> None:
    config = tls_config(**{"listener.name.out.ssl.keystore.location": "out.pem"})
    changed = config.with_dynamic({}, {"listener.name.out.ssl.keystore.location": "new.pem"})
    assert listener_tls(changed, "OUT").ssl_keystore_location == "new.pem"
    assert listener_tls(changed, "IN").ssl_keystore_location == "k.pem"


@pytest.mark.parametrize(
    ("settings", "named"),
    [
        ({"ssl_keystore_location": "", "ssl_keystore_type": "JKS"}, "ssl.keystore.password"),
        ({"ssl_keystore_key": "k"}, "location"),
        ({"ssl_keystore_password": "secret"}, "ssl.key.password"),
        ({"ssl_keystore_type": "BKS"}, "ssl.keystore.type"),
        ({"ssl_truststore_certificates": "c"}, "ssl.truststore.type=PEM"),
        ({"ssl_truststore_type": "PEM", "ssl_truststore_password": "secret"}, "password"),
        ({"ssl_enabled_protocols": "TLSv1.1,TLSv1.2"}, "ssl.enabled.protocols"),
        ({"ssl_enabled_protocols": ""}, "ssl.enabled.protocols"),
        ({"ssl_protocol": "TLSv1.1"}, "ssl.protocol"),
        ({"ssl_cipher_suites": "TLS_RSA_WITH_NULL_SHA"}, "TLS_RSA_WITH_NULL_SHA"),
        ({"ssl_cipher_suites": "TLS_AES_256_GCM_SHA384"}, "TLS_AES_128_GCM_SHA256"),
        (
            {
                "ssl_cipher_suites": "TLS_ECDHE_RSA_WITH_AES_128_GCM_SHA256",
                "ssl_enabled_protocols": "TLSv1.3",
            },
            "ssl.cipher.suites",
        ),
        ({"ssl_client_auth": "maybe"}, "ssl.client.auth"),
        ({"listener.name.out.ssl.client.auth": "maybe"}, "ssl.client.auth"),
        ({"listener.name.oops.ssl.client.auth": "required"}, "OOPS"),
        ({"listener.name.OUT.ssl.client.auth": "required"}, "listener.name.out.ssl.client.auth"),
        ({"ssl_principal_mapping_rules": "RULE:x"}, "ssl.principal.mapping.rules"),
        ({"ssl_engine_factory_class": "org.example.Factory"}, "ssl.engine.factory.class"),
        ({"ssl_provider": "BC"}, "ssl.provider"),
        (
            {"listener_security_protocol_map": MAP.replace("OUT:SSL", "OUT:SASL_SSL")},
            "sasl.enabled.mechanisms",
        ),
    ],
    ids=lambda value: str(value)[:70],
)
def test_settings_that_cannot_work_are_rejected(settings: dict[str, str], named: str) -> None:
    with pytest.raises(ConfigError) as caught:
        tls_config(**settings)
    line = str(caught.value)
    assert named in line
    assert "\n" not in line
    assert "secret" not in line


def test_listener_without_a_certificate_is_rejected() -> None:
    with pytest.raises(ConfigError, match=r"listener OUT .* has no certificate; set ssl"):
        node(
            listeners=LISTENERS,
            advertised_listeners="PLAINTEXT://h:9092,OUT://h:9094,IN://h:9095",
            listener_security_protocol_map=MAP,
        )


def test_protocol_between_brokers_names_their_listener() -> None:
    properties = {name: text for name, text in NODE.items() if name != "inter.broker.listener.name"}
    config = broker_config(
        {
            **properties,
            "listeners": "SSL://:9092,CONTROLLER://:9093",
            "advertised.listeners": "SSL://h:9092",
            "security.inter.broker.protocol": "SSL",
            "ssl.keystore.type": "PEM",
            "ssl.keystore.location": "k.pem",
        }
    )
    assert config.inter_broker_listener == "SSL"


def test_every_cipher_suite_is_known_to_openssl() -> None:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    for name in _TLS_1_2_SUITES.values():
        context.set_ciphers(f"{name}:@SECLEVEL=0")
        assert name in [cipher["name"] for cipher in context.get_ciphers()]


def test_suites_decide_which_versions_are_spoken() -> None:
    older = "TLS_ECDHE_RSA_WITH_AES_128_GCM_SHA256"
    newer = "TLS_AES_128_GCM_SHA256,TLS_AES_256_GCM_SHA384,TLS_CHACHA20_POLY1305_SHA256"
    assert TlsConfig({"ssl.cipher.suites": older}).versions == ("TLSv1.2",)
    assert TlsConfig({"ssl.cipher.suites": newer}).versions == ("TLSv1.3",)
    assert TlsConfig({}).versions == ("TLSv1.2", "TLSv1.3")
