"""The TLS settings of one listener, among those that all listeners share."""

from collections.abc import Mapping

from kwire.configs.broker import BrokerConfig
from kwire.configs.listeners import has_sasl, listener_prefix
from kwire.configs.tls import TlsConfig, check_stores


def listener_tls(config: BrokerConfig, listener: str) -> TlsConfig:
    """Return the TLS settings of a listener; raise ConfigError if they cannot work."""
    prefix = listener_prefix(listener)
    shared: dict[str, str] = {}
    own: dict[str, str] = {}
    for layer in (config.static, config.cluster, config.own):
        shared.update(_texts_for(layer, ""))
        own.update(_texts_for(layer, prefix))
    if has_sasl(config.protocols[listener]):  # SASL identifies the client.
        shared.pop("ssl.client.auth", None)
    tls = TlsConfig({**shared, **own})
    check_stores(tls)
    return tls


def _texts_for(texts: Mapping[str, str], prefix: str) -> dict[str, str]:
    start = len(prefix)
    return {n[start:]: text for n, text in texts.items() if n.startswith(f"{prefix}ssl.")}
