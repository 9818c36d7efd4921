"""This node's login at other nodes; loaded only if they require one."""

from random import Random
from typing import TYPE_CHECKING

from kwire.clock import Clock
from kwire.configs.declare import ConfigError
from kwire.configs.sasl import Account, TokenAccount
from kwire.net.node_login import NodeLogin, PlainProof, ScramProof
from kwire.security.scram import BY_NAME

if TYPE_CHECKING:
    from kwire.configs.oauth import OAuthConfig
    from kwire.net.oauth.assertions import Assertions
    from kwire.net.oauth.own_token import TokenProof


def make_login(account: Account | TokenAccount, random: Random, clock: Clock) -> NodeLogin:
    """Return the login for an account in the configuration; raise ConfigError."""
    if isinstance(account, TokenAccount):
        return NodeLogin(_token_proof(account, random, clock))
    scram = BY_NAME.get(account.mechanism)
    if scram is None:
        return NodeLogin(PlainProof(account.user, account.password))
    return NodeLogin(ScramProof(account.user, account.password, scram, random.randbytes))


def _token_proof(account: TokenAccount, random: Random, clock: Clock) -> "TokenProof":
    from kwire.configs.oauth import ENDPOINT_LOGIN, client_credentials
    from kwire.net.oauth.documents import open_documents
    from kwire.net.oauth.own_token import ProvidedToken, TokenProof, UnsecuredToken

    tokens, options = account.tokens, account.module.options
    url = tokens.sasl_oauthbearer_token_endpoint_url
    if tokens.sasl_login_callback_handler_class != ENDPOINT_LOGIN or url is None:
        try:
            return TokenProof(UnsecuredToken.of(options, clock))
        except ValueError as error:
            raise ConfigError(f"a JAAS line of OAUTHBEARER describes no token: {error}") from None
    start = "extension_"
    extensions = {
        name.removeprefix(start): text for name, text in options.items() if name.startswith(start)
    }
    client_id, client_secret = client_credentials(tokens, account.module)
    source = ProvidedToken(
        open_documents(url, tokens.timeout_s, options),
        clock,
        client_id,
        client_secret,
        tokens.sasl_oauthbearer_scope or options.get("scope"),
        _assertions(tokens, random, clock) if tokens.has_assertions else None,
        tokens.is_jwt_bearer,
    )
    return TokenProof(source, tuple(extensions.items()))


def _assertions(tokens: "OAuthConfig", random: Random, clock: Clock) -> "Assertions":
    """Return the source of assertions; raise ConfigError if its files are unusable."""
    from kwire.net.oauth.assertions import WrittenAssertion
    from kwire.net.oauth.documents import Unavailable

    source: Assertions
    if tokens.sasl_oauthbearer_assertion_file:
        source = WrittenAssertion(tokens.sasl_oauthbearer_assertion_file)
    else:
        from kwire.net.oauth.signed_assertions import SignedAssertion
        from kwire.security.oauth.assertion import AssertionRules

        named = {
            "iss": tokens.sasl_oauthbearer_assertion_claim_iss,
            "sub": tokens.sasl_oauthbearer_assertion_claim_sub,
            "aud": tokens.sasl_oauthbearer_assertion_claim_aud,
        }
        rules = AssertionRules(
            tokens.sasl_oauthbearer_assertion_algorithm.upper(),
            {name: text for name, text in named.items() if text},
            tokens.sasl_oauthbearer_assertion_claim_exp_seconds,
            tokens.sasl_oauthbearer_assertion_claim_nbf_seconds,
        )
        has_id = tokens.sasl_oauthbearer_assertion_claim_jti_include
        source = SignedAssertion(
            rules,
            tokens.sasl_oauthbearer_assertion_private_key_file or "",
            tokens.sasl_oauthbearer_assertion_private_key_passphrase,
            tokens.sasl_oauthbearer_assertion_template_file,
            clock,
            random.randbytes if has_id else None,
        )
    try:
        source.read()
    except Unavailable as error:
        raise ConfigError(f"no assertion for the identity provider: {error}") from None
    return source
