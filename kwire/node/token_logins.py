"""Logins of clients with access tokens; loaded only if a listener has OAUTHBEARER."""

import logging
from collections.abc import Callable

from kwire.configs.declare import ConfigError
from kwire.configs.oauth import OAuthConfig, listener_oauth
from kwire.configs.sasl import MechanismConfig
from kwire.node.core import Core
from kwire.security.exchange import Exchange
from kwire.security.oauth.claims import AccessToken, TokenRules, check_claims
from kwire.security.oauth.server import TokenServer
from kwire.security.oauth.unsecured import UnsecuredRules, check_unsecured

logger = logging.getLogger(__name__)


def token_exchanges(
    core: Core, listener: str, mechanism: MechanismConfig
) -> Callable[[], Exchange]:
    """Return a function that begins an exchange with a client; raise ConfigError."""
    config = listener_oauth(core.config.static, listener)
    if config.sasl_oauthbearer_jwks_endpoint_url is None:
        check = _unsecured_check(core, listener, mechanism)
    else:
        check = _signed_check(core, listener, config, mechanism)
    return lambda: TokenServer(check)


def _unsecured_check(
    core: Core, listener: str, mechanism: MechanismConfig
) -> Callable[[str], AccessToken]:
    try:
        rules = UnsecuredRules.of(mechanism.module.options)
    except ValueError as error:
        raise ConfigError(f"the JAAS line of OAUTHBEARER of {listener}: {error}") from None
    logger.warning(
        "tokens without a signature are accepted listener=%s: everybody can log in under any name; "
        "see docs/security.md",
        listener,
    )
    now_ms = core.clock.now_ms
    return lambda token: check_unsecured(token, rules, now_ms())


def _signed_check(
    core: Core, listener: str, config: OAuthConfig, mechanism: MechanismConfig
) -> Callable[[str], AccessToken]:
    from kwire.net.oauth.documents import Unavailable, open_documents
    from kwire.net.oauth.issuer_keys import FetchTimes, IssuerKeys

    url, options = config.sasl_oauthbearer_jwks_endpoint_url or "", mechanism.module.options
    keys = IssuerKeys(
        listener,
        open_documents(url, config.timeout_s, options),
        FetchTimes(
            refresh_s=config.sasl_oauthbearer_jwks_endpoint_refresh_ms / 1000,
            backoff_s=config.sasl_oauthbearer_jwks_endpoint_retry_backoff_ms / 1000,
            backoff_max_s=config.sasl_oauthbearer_jwks_endpoint_retry_backoff_max_ms / 1000,
        ),
        core.clock,
    )
    try:
        keys.load_file()
    except (Unavailable, ValueError) as error:
        raise ConfigError(f"{url} cannot be read: {error}") from None
    if core.network.nursery is not None:
        core.network.nursery.start_soon(keys.run)
    rules = TokenRules(
        config.sasl_oauthbearer_expected_audience,
        config.sasl_oauthbearer_expected_issuer,
        config.sasl_oauthbearer_clock_skew_seconds,
        config.sasl_oauthbearer_sub_claim_name,
        config.sasl_oauthbearer_scope_claim_name,
    )
    _warn_of_gaps(listener, rules)
    now_ms = core.clock.now_ms
    return lambda token: check_claims(keys.verify(token), rules, now_ms())


def _warn_of_gaps(listener: str, rules: TokenRules) -> None:
    """Warn of checks that the settings disable."""
    for accepted, name, value in (
        ("without an audience", "audience", rules.audiences),
        ("of any issuer", "issuer", rules.issuer),
    ):
        if not value:
            logger.warning(
                "tokens %s are accepted listener=%s: set sasl.oauthbearer.expected.%s",
                accepted,
                listener,
                name,
            )
