"""Decides which certificates may replace those of a listener while the node runs.

Kafka's rules: a new certificate has the subject of the old one, unless ``ssl.allow.dn.changes`` is
set, and contains all of its host names, unless ``ssl.allow.san.changes`` is set. So a store that
was installed by mistake does not lock clients out. On the inter-broker listener, new certificates
and trust stores must also be compatible with the old ones, which other brokers still use. An
expired old certificate is compatible with nothing, but may still be replaced; Kafka requires a
restart in this case. Pure.
"""

import ssl
from typing import Final

from kwire.configs.declare import ConfigError
from kwire.configs.tls import TlsConfig
from kwire.net.tls.contexts import ServerContext

_ROUNDS: Final = 10
"""An upper bound of the rounds of a handshake."""
_EXPIRED: Final = 10
"""OpenSSL's code for a certificate that has expired, whose authority is trusted."""


def check_names(tls: TlsConfig, old: ServerContext, new: ServerContext) -> None:
    """Raise ConfigError if the new certificate lacks a name of the old one."""
    if not tls.ssl_allow_dn_changes and new.subject.casefold() != old.subject.casefold():
        raise ConfigError(
            f"the subject of the new certificate is {new.subject}, not {old.subject}; use a "
            "certificate with the same name, or set ssl.allow.dn.changes=true and restart"
        )
    lost = sorted(old.hosts - new.hosts)
    if lost and not tls.ssl_allow_san_changes:
        raise ConfigError(
            f"the new certificate does not name {', '.join(lost)}; use a certificate that does, or "
            "set ssl.allow.san.changes=true and restart"
        )


def check_expiry(new: ServerContext, now_ms: int) -> None:
    """Raise ConfigError if the new certificate has expired."""
    if new.expires_ms <= now_ms:
        raise ConfigError("the new certificate has expired; use one that is valid")


def check_trust(
    server: ServerContext, client: ssl.SSLContext, *, ignores_expiry: bool = False
) -> None:
    """Raise ConfigError if a node with the change and one without it would reject each other.

    With ``ignores_expiry``, an expired certificate alone is not an error.
    """
    name = next(iter(sorted(server.hosts)), ":").partition(":")[2].replace("*", "x")
    to_server, to_client = ssl.MemoryBIO(), ssl.MemoryBIO()
    ends = [
        client.wrap_bio(to_client, to_server, server_hostname=name or None),
        server.context.wrap_bio(to_server, to_client, server_side=True),
    ]
    try:
        for _ in range(_ROUNDS):
            ends = [end for end in ends if not _is_complete(end)]
    except ssl.SSLError as error:
        if ignores_expiry and getattr(error, "verify_code", 0) == _EXPIRED:
            return
        reason = getattr(error, "verify_message", "") or error.reason or error
        raise ConfigError(
            f"nodes with the old certificates and nodes with the new ones would refuse each other "
            f"({reason}); first add the new authority to the trust stores of all nodes"
        ) from None


def _is_complete(end: ssl.SSLObject) -> bool:
    try:
        end.do_handshake()
    except ssl.SSLWantReadError:
        return False
    return True
