"""The settings for access tokens (OAUTHBEARER), of listeners and of this node as a client.

Pure. A setting of a listener's mechanism, such as
``listener.name.clients.oauthbearer.sasl.oauthbearer.expected.audience``, overrides the listener's,
which overrides the node's. kwire recognizes Apache Kafka's classes by name; it rejects any other
class, and settings for features that it lacks. If a key set is configured but the class that uses
it is not, Kafka accepts unsigned tokens; kwire refuses to start.
"""

from collections.abc import Mapping
from importlib.util import find_spec
from typing import Final
from urllib.parse import urlsplit

from kwire.configs.declare import (
    Config,
    ConfigError,
    Kind,
    boolean,
    integer,
    long,
    optional_integer,
    optional_string,
    string,
    strings,
)
from kwire.configs.security import mechanism_settings, prefix
from kwire.security.jaas import LoginModule
from kwire.security.oauth.messages import LOGIN_MODULE, OAUTHBEARER

_PACKAGE: Final = "org.apache.kafka.common.security.oauthbearer"
_UNSECURED: Final = f"{_PACKAGE}.internals.unsecured"
SIGNED_VALIDATOR: Final = f"{_PACKAGE}.OAuthBearerValidatorCallbackHandler"
UNSECURED_VALIDATOR: Final = f"{_UNSECURED}.OAuthBearerUnsecuredValidatorCallbackHandler"
ENDPOINT_LOGIN: Final = f"{_PACKAGE}.OAuthBearerLoginCallbackHandler"
UNSECURED_LOGIN: Final = f"{_UNSECURED}.OAuthBearerUnsecuredLoginCallbackHandler"
_DEFAULT_RETRIEVER: Final = f"{_PACKAGE}.DefaultJwtRetriever"
_FILE_RETRIEVER: Final = f"{_PACKAGE}.FileJwtRetriever"
_CREDENTIALS_RETRIEVER: Final = f"{_PACKAGE}.ClientCredentialsJwtRetriever"
JWT_BEARER_RETRIEVER: Final = f"{_PACKAGE}.JwtBearerJwtRetriever"
_DEFAULT_VALIDATOR: Final = f"{_PACKAGE}.DefaultJwtValidator"
_BROKER_VALIDATOR: Final = f"{_PACKAGE}.BrokerJwtValidator"
_OLD_HANDLERS: Final = {
    f"{_PACKAGE}.secured.OAuthBearerValidatorCallbackHandler": SIGNED_VALIDATOR,
    f"{_PACKAGE}.secured.OAuthBearerLoginCallbackHandler": ENDPOINT_LOGIN,
}
"""The names from before release 4.0; kwire rejects them and suggests the current names."""
_HTTP: Final = ("http", "https")
_ALGORITHMS: Final = ("ES256", "RS256")


def _check_url(text: str) -> str | None:
    parts = urlsplit(text)
    if parts.scheme == "file" and parts.path.startswith("/") and not parts.netloc:
        return None
    if parts.scheme in _HTTP and parts.hostname:
        return None
    return "it must begin with https://HOST, http://HOST or file:///"


def _check_claim(text: str) -> str | None:
    return None if text.strip() else "it must name a claim"


def _check_algorithm(text: str) -> str | None:
    if text.upper() in _ALGORITHMS:
        return None
    return f"String must be one of (case insensitive): {', '.join(_ALGORITHMS)}"


class OAuthConfig(Config):
    """The settings of the mechanism OAUTHBEARER."""

    # fmt: off
    sasl_login_callback_handler_class = optional_string(
        "How this node gets an access token: by Kafka's OAuthBearerLoginCallbackHandler.",
        kind=Kind.CLASS)
    sasl_login_connect_timeout_ms = optional_integer(
        "The time limit for a connection to an identity provider; 10 s by default.")
    sasl_login_read_timeout_ms = optional_integer(
        "The time limit for an answer of an identity provider; 10 s by default.")
    sasl_oauthbearer_assertion_algorithm = string(
        "RS256", "The algorithm with which this node signs assertions.", check=_check_algorithm)
    sasl_oauthbearer_assertion_claim_aud = optional_string(
        "The audience of assertions: the identity provider.")
    sasl_oauthbearer_assertion_claim_exp_seconds = integer(
        300, "How long an assertion is valid.", low=0, high=86_400)
    sasl_oauthbearer_assertion_claim_iss = optional_string(
        "The issuer of assertions: the id of this node at the identity provider.")
    sasl_oauthbearer_assertion_claim_jti_include = boolean(
        False, "Whether each assertion has an id of its own.")
    sasl_oauthbearer_assertion_claim_nbf_seconds = integer(
        60, "How long before it was made an assertion is valid.", low=0, high=3600)
    sasl_oauthbearer_assertion_claim_sub = optional_string("The subject of assertions.")
    sasl_oauthbearer_assertion_file = optional_string(
        "The file with the assertion that another program writes.")
    sasl_oauthbearer_assertion_private_key_file = optional_string(
        "The file with the private key that signs assertions, in PKCS#8.")
    sasl_oauthbearer_assertion_private_key_passphrase = optional_string(
        "The passphrase of that key.", kind=Kind.PASSWORD)
    sasl_oauthbearer_assertion_template_file = optional_string(
        "The file with further claims of assertions: a JSON object with header and payload.")
    sasl_oauthbearer_client_credentials_client_id = optional_string(
        "The id with which this node asks for access tokens.")
    sasl_oauthbearer_client_credentials_client_secret = optional_string(
        "The secret that belongs to the id.", kind=Kind.PASSWORD)
    sasl_oauthbearer_clock_skew_seconds = integer(
        30, "How far the clocks of this node and of the issuer of tokens may differ.", low=0)
    sasl_oauthbearer_expected_audience = strings(
        (), "The audiences of which a token must name at least one; none for no check.")
    sasl_oauthbearer_expected_issuer = optional_string("The issuer that a token must name.")
    sasl_oauthbearer_jwks_endpoint_refresh_ms = long(
        3_600_000, "How often the keys of the issuer are fetched.", low=1)
    sasl_oauthbearer_jwks_endpoint_retry_backoff_max_ms = long(
        10_000, "The longest pause after a failed fetch of keys.", low=1)
    sasl_oauthbearer_jwks_endpoint_retry_backoff_ms = long(
        100, "The first pause after a failed fetch of keys.", low=1)
    sasl_oauthbearer_jwks_endpoint_url = optional_string(
        "Where the keys of the issuer are: https://, http:// or file:///.", check=_check_url)
    sasl_oauthbearer_jwt_retriever_class = string(
        _DEFAULT_RETRIEVER, "How this node gets an access token.",
        choices=(
            _DEFAULT_RETRIEVER, _FILE_RETRIEVER, _CREDENTIALS_RETRIEVER, JWT_BEARER_RETRIEVER),
        kind=Kind.CLASS)
    sasl_oauthbearer_jwt_validator_class = string(
        _DEFAULT_VALIDATOR, "How a listener validates access tokens.",
        choices=(_DEFAULT_VALIDATOR, _BROKER_VALIDATOR), kind=Kind.CLASS)
    sasl_oauthbearer_scope = optional_string("The scope for which this node asks.")
    sasl_oauthbearer_scope_claim_name = string(
        "scope", "The claim with the scopes of a token.", check=_check_claim)
    sasl_oauthbearer_sub_claim_name = string(
        "sub", "The claim with the user name of a token.", check=_check_claim)
    sasl_oauthbearer_token_endpoint_url = optional_string(
        "Where this node gets an access token: https://, http:// or file:///.", check=_check_url)
    sasl_server_callback_handler_class = optional_string(
        "How a listener validates tokens: by Kafka's OAuthBearerValidatorCallbackHandler.",
        kind=Kind.CLASS)
    # fmt: on

    @property
    def timeout_s(self) -> float:
        """The time limit for one step of a request to an identity provider."""
        limits_ms = (self.sasl_login_connect_timeout_ms, self.sasl_login_read_timeout_ms)
        return max((each for each in limits_ms if each), default=10_000) / 1000

    @property
    def is_jwt_bearer(self) -> bool:
        """Return whether this node requests tokens with an assertion (the JWT bearer grant)."""
        return self.sasl_oauthbearer_jwt_retriever_class == JWT_BEARER_RETRIEVER

    @property
    def has_assertions(self) -> bool:
        """Return whether this node authenticates to the identity provider with an assertion."""
        if self.is_jwt_bearer:
            return True
        if (self.sasl_oauthbearer_token_endpoint_url or "").startswith("file:"):
            return False
        return bool(
            self.sasl_oauthbearer_assertion_file or self.sasl_oauthbearer_assertion_claim_iss
        )


def listener_oauth(properties: Mapping[str, str], listener: str) -> OAuthConfig:
    """Return the settings of a listener that accepts tokens; raise ConfigError."""
    config = OAuthConfig(mechanism_settings(properties, listener, OAUTHBEARER))
    key = OAuthConfig.sasl_server_callback_handler_class.name
    name = f"{prefix(listener)}{OAUTHBEARER.lower()}.{key}"
    url = OAuthConfig.sasl_oauthbearer_jwks_endpoint_url.name
    handler = config.sasl_server_callback_handler_class
    _check_class(name, handler, (SIGNED_VALIDATOR, UNSECURED_VALIDATOR))
    is_signed, has_keys = handler == SIGNED_VALIDATOR, config.sasl_oauthbearer_jwks_endpoint_url
    if is_signed and not has_keys:
        raise ConfigError(
            f"listener {listener} validates signed tokens but has no keys; set {url} to the key "
            "set (JWKS) of the issuer"
        )
    if has_keys and not is_signed:
        raise ConfigError(
            f"{url} is set, but listener {listener} would accept tokens without a signature; set "
            f"{name}={SIGNED_VALIDATOR}"
        )
    jaas = f"{prefix(listener)}{OAUTHBEARER.lower()}.sasl.jaas.config"
    if not is_signed and jaas not in properties:
        raise ConfigError(
            f"listener {listener} has the mechanism {OAUTHBEARER} but no validator; set {url} and "
            f"{name}={SIGNED_VALIDATOR}, or, to let everybody log in under any name, "
            f"{jaas}={LOGIN_MODULE} required;"
        )
    if is_signed and (find_spec("jwt") is None or find_spec("cryptography") is None):
        raise ConfigError(
            f"listener {listener} validates signed tokens, which needs the packages PyJWT and "
            "cryptography; install kwire[oauth]"
        )
    return config


def node_oauth(properties: Mapping[str, str], listener: str, module: LoginModule) -> OAuthConfig:
    """Return the settings with which this node authenticates to a listener; raise ConfigError."""
    config = OAuthConfig(mechanism_settings(properties, listener, OAUTHBEARER))
    key = OAuthConfig.sasl_login_callback_handler_class.name
    name = f"{prefix(listener)}{OAUTHBEARER.lower()}.{key}"
    handler = config.sasl_login_callback_handler_class
    _check_class(name, handler, (ENDPOINT_LOGIN, UNSECURED_LOGIN))
    url = OAuthConfig.sasl_oauthbearer_token_endpoint_url.name
    if handler != ENDPOINT_LOGIN:
        if "unsecuredLoginStringClaim_sub" not in module.options:
            raise ConfigError(
                f"listener {listener} has no token for this node; set {url} and "
                f"{name}={ENDPOINT_LOGIN}"
            )
        return config
    endpoint = config.sasl_oauthbearer_token_endpoint_url
    if not endpoint:
        raise ConfigError(f"{name} needs the address of the identity provider; set {url}")
    if config.has_assertions:
        _check_assertions(config, endpoint)
    elif not endpoint.startswith("file:") and not all(client_credentials(config, module)):
        raise ConfigError(
            f"{url} needs the account of this node; set "
            f"{OAuthConfig.sasl_oauthbearer_client_credentials_client_id.name} and "
            f"{OAuthConfig.sasl_oauthbearer_client_credentials_client_secret.name}"
        )
    return config


def _check_assertions(config: OAuthConfig, endpoint: str) -> None:
    """Raise ConfigError if this node cannot request tokens with assertions."""
    if config.is_jwt_bearer and endpoint.startswith("file:"):
        raise ConfigError(
            f"{JWT_BEARER_RETRIEVER} needs an identity provider, not a file; set "
            f"{OAuthConfig.sasl_oauthbearer_token_endpoint_url.name} to its https:// address"
        )
    if config.sasl_oauthbearer_assertion_file:
        return
    key = OAuthConfig.sasl_oauthbearer_assertion_private_key_file.name
    if not config.sasl_oauthbearer_assertion_private_key_file:
        raise ConfigError(
            f"assertions need a key that signs them; set {key}, or "
            f"{OAuthConfig.sasl_oauthbearer_assertion_file.name} to a file with an assertion"
        )
    if find_spec("jwt") is None or find_spec("cryptography") is None:
        raise ConfigError(f"{key} needs the packages PyJWT and cryptography; install kwire[oauth]")


def client_credentials(config: OAuthConfig, module: LoginModule) -> tuple[str, str]:
    """Return the client id and secret with which this node requests tokens; empty if unset."""
    return (
        config.sasl_oauthbearer_client_credentials_client_id or module.options.get("clientId", ""),
        config.sasl_oauthbearer_client_credentials_client_secret
        or module.options.get("clientSecret", ""),
    )


def _check_class(name: str, value: str | None, choices: tuple[str, ...]) -> None:
    if value is None or value in choices:
        return
    expected = _OLD_HANDLERS.get(value, choices[0])
    raise ConfigError(f"kwire does not support {name}={value}; write {name}={expected}")
