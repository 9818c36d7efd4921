"""The settings of a listener whose clients authenticate with SASL.

Pure. In the name of a mechanism's setting, the mechanism, in lower case, follows the listener.
Secrets are in JAAS lines such as ``listener.name.clients.plain.sasl.jaas.config``; an error never
shows such a line. SCRAM users are in the cluster's metadata, so SCRAM needs no JAAS line.
"""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Final, NamedTuple

from kwire.configs.declare import ConfigError
from kwire.configs.security import SecurityConfig, own_settings, prefix
from kwire.security import scram
from kwire.security.jaas import LoginModule, parse_login_module
from kwire.security.oauth import messages as oauth
from kwire.security.oauth.messages import OAUTHBEARER
from kwire.security.plain import LOGIN_MODULE, PLAIN
from kwire.security.scram import BY_NAME

if TYPE_CHECKING:
    from kwire.configs.oauth import OAuthConfig

_ENABLED: Final = "sasl.enabled.mechanisms"
_JAAS: Final = "sasl.jaas.config"
_LIFETIME: Final = SecurityConfig.connections_max_reauth_ms
_LOGIN_MODULES: Final = {
    PLAIN: LOGIN_MODULE,
    **dict.fromkeys(BY_NAME, scram.LOGIN_MODULE),
    OAUTHBEARER: oauth.LOGIN_MODULE,
}
"""The mechanisms that kwire has, with their login modules."""


class MechanismConfig(NamedTuple):
    """The settings of one mechanism of a listener."""

    name: str
    module: LoginModule
    lifetime_ms: int
    """The time in ms after which clients must log in again; 0 if they need not do so."""


def mechanisms_of(properties: Mapping[str, str], listener: str) -> tuple[MechanismConfig, ...]:
    """Return the mechanisms of a listener; raise ConfigError for an unsupported mechanism."""
    own = own_settings(properties, listener)
    name = f"{prefix(listener)}{_ENABLED}" if _ENABLED in own else _ENABLED
    config = SecurityConfig.of_listener(properties, listener)
    names = config.sasl_enabled_mechanisms
    if not names:
        raise ConfigError(f"{name} is empty; give it one or more of {_names()}")
    for mechanism in names:
        if mechanism not in _LOGIN_MODULES:
            raise ConfigError(
                f"{name} has {mechanism}, which kwire does not have; give it one or more of "
                f"{_names()}"
            )
    if OAUTHBEARER in names:
        from kwire.configs.oauth import listener_oauth

        listener_oauth(properties, listener)
    return tuple(
        MechanismConfig(
            mechanism,
            _module(own, listener, mechanism),
            _lifetime_ms(config, own, mechanism),
        )
        for mechanism in names
    )


class Account(NamedTuple):
    """The name and password with which this node authenticates to other nodes."""

    mechanism: str
    user: str
    password: str


class TokenAccount(NamedTuple):
    """The settings for the access tokens with which this node authenticates to other nodes."""

    tokens: "OAuthConfig"
    module: LoginModule


def account_for(
    properties: Mapping[str, str], listener: str, setting: str, mechanism: str
) -> Account | TokenAccount:
    """Return this node's account for a listener of other nodes; raise ConfigError.

    ``setting`` is the name of the setting that selects the mechanism.
    """
    if mechanism not in _LOGIN_MODULES:
        raise ConfigError(
            f"{setting} has {mechanism}, which kwire does not have; give it one of {_names()}"
        )
    module = _module(own_settings(properties, listener), listener, mechanism)
    if mechanism == OAUTHBEARER:
        from kwire.configs.oauth import node_oauth

        return TokenAccount(node_oauth(properties, listener, module), module)
    user, password = module.options.get("username"), module.options.get("password")
    if not user or not password:
        name, expected = f"{prefix(listener)}{mechanism.lower()}.{_JAAS}", _LOGIN_MODULES[mechanism]
        raise ConfigError(
            f"{name} has no account for this node; write {name}={expected} required "
            'username="NAME" password="PASSWORD";'
        )
    return Account(mechanism, user, password)


def broker_account(properties: Mapping[str, str], listener: str) -> Account | TokenAccount:
    """Return the account for the inter-broker listener, which must offer its mechanism."""
    key = SecurityConfig.sasl_mechanism_inter_broker_protocol
    mechanism = SecurityConfig(properties).sasl_mechanism_inter_broker_protocol
    account = account_for(properties, listener, key.name, mechanism)
    _check_offered(properties, listener, key.name, mechanism)
    return account


def check_controller_mechanism(properties: Mapping[str, str], listener: str) -> None:
    """Raise ConfigError if the controllers would reject each other's authentication."""
    key = SecurityConfig.sasl_mechanism_controller_protocol
    mechanism = SecurityConfig(properties).sasl_mechanism_controller_protocol
    _check_offered(properties, listener, key.name, mechanism)


def _check_offered(
    properties: Mapping[str, str], listener: str, setting: str, mechanism: str
) -> None:
    offered = [each.name for each in mechanisms_of(properties, listener)]
    if mechanism not in offered:
        raise ConfigError(
            f"{setting} has {mechanism}, which listener {listener} does not offer; give it one of "
            f"{', '.join(offered)}, or add {mechanism} to {prefix(listener)}{_ENABLED}"
        )


def controller_account(properties: Mapping[str, str], listener: str) -> Account | TokenAccount:
    """Return the account for the controller listener.

    It cannot be a SCRAM user of the cluster: controllers that elect a leader have not read the
    metadata yet.
    """
    key = SecurityConfig.sasl_mechanism_controller_protocol
    mechanism = SecurityConfig(properties).sasl_mechanism_controller_protocol
    if mechanism in BY_NAME:
        raise ConfigError(
            f"{key.name} has {mechanism}, whose users controllers know only once they have read "
            f"the metadata; use {PLAIN} or {OAUTHBEARER}"
        )
    return account_for(properties, listener, key.name, mechanism)


def client_account(properties: Mapping[str, str]) -> Account:
    """Return the account in a client's properties; raise ConfigError."""
    mechanism = properties.get("sasl.mechanism", "GSSAPI")
    if mechanism not in _LOGIN_MODULES:
        raise ConfigError(
            f"kwire does not support sasl.mechanism={mechanism}; set it to one of {_names()}"
        )
    example = f'{_JAAS}={_LOGIN_MODULES[mechanism]} required username="NAME" password="PASSWORD";'
    try:
        module = parse_login_module(properties.get(_JAAS, ""))
    except ValueError as error:
        raise ConfigError(f"{_JAAS} cannot be read: {error}; write {example}") from None
    user, password = module.options.get("username"), module.options.get("password")
    if not user or not password:
        raise ConfigError(f"{_JAAS} has no account; write {example}")
    return Account(mechanism, user, password)


def _module(own: Mapping[str, str], listener: str, mechanism: str) -> LoginModule:
    plain_name = f"{mechanism.lower()}.{_JAAS}"
    name, expected = prefix(listener) + plain_name, _LOGIN_MODULES[mechanism]
    users = ' user_alice="PASSWORD"' if mechanism == PLAIN else ""
    example = f"{name}={expected} required{users};"
    text = own.get(plain_name)
    if text is None and mechanism != PLAIN:
        return LoginModule(expected, {})
    if text is None:
        raise ConfigError(
            f"listener {listener} has the mechanism {mechanism} but no users; set {example}"
        )
    try:
        module = parse_login_module(text)
    except ValueError as error:
        raise ConfigError(f"{name} cannot be read: {error}; write {example}") from None
    if module.name != expected:
        raise ConfigError(f"{name} names a login module that kwire does not have; write {example}")
    return module


def _lifetime_ms(config: SecurityConfig, own: Mapping[str, str], mechanism: str) -> int:
    text = own.get(f"{mechanism.lower()}.{_LIFETIME.name}")
    return config.connections_max_reauth_ms if text is None else _LIFETIME.parse(text)


def _names() -> str:
    return ", ".join(_LOGIN_MODULES)
