"""The log-in of this node at others; loaded only if they ask for one."""

from random import Random
from typing import TYPE_CHECKING

from kwire.clock import Clock
from kwire.configs.declare import ConfigError
from kwire.configs.sasl import Account, TokenAccount
from kwire.net.node_login import NodeLogin, PlainProof, ScramProof
from kwire.security.scram import BY_NAME

if TYPE_CHECKING:
    from kwire.net.oauth.own_token import TokenProof


def make_login(account: Account | TokenAccount, random: Random, clock: Clock) -> NodeLogin:
    """Return the log-in with an account of the configuration; raise ConfigError."""
    if isinstance(account, TokenAccount):
        return NodeLogin(_token_proof(account, clock))
    scram = BY_NAME.get(account.mechanism)
    if scram is None:
        return NodeLogin(PlainProof(account.user, account.password))
    return NodeLogin(ScramProof(account.user, account.password, scram, random.randbytes))


def _token_proof(account: TokenAccount, clock: Clock) -> "TokenProof":
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
    )
    return TokenProof(source, tuple(extensions.items()))
