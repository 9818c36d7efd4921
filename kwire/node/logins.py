"""Logins of clients on a node's listeners; loaded only if a listener has SASL."""

from collections.abc import Callable
from functools import partial

from kwire.configs.sasl import MechanismConfig, mechanisms_of
from kwire.configs.security import SecurityConfig
from kwire.handlers.dispatch import Dispatcher
from kwire.handlers.shared.context import Principal
from kwire.net.listener import ConnectionRequests, ForConnection
from kwire.net.log_in import LoginCounts, LoginRequests, LoginRules
from kwire.node.core import Core
from kwire.security.conversation import Login, Mechanism
from kwire.security.exchange import Exchange
from kwire.security.oauth.messages import OAUTHBEARER
from kwire.security.plain import PlainServer, passwords_of
from kwire.security.scram import (
    BY_NAME,
    NONCE_BYTES,
    Credential,
    Decoys,
    ScramMechanism,
    ScramServer,
    TokenCredential,
    secret_text,
)


def with_logins(core: Core, listener: str, dispatcher: Dispatcher) -> ForConnection:
    """Return the handler of a listener's new connections, whose clients must log in."""
    properties = core.config.static
    config = SecurityConfig.of_listener(properties, listener)
    rules = LoginRules(
        mechanisms={
            mechanism.name: Mechanism(
                begin=_exchanges(core, listener, mechanism), lifetime_ms=mechanism.lifetime_ms
            )
            for mechanism in mechanisms_of(properties, listener)
        },
        max_frame_bytes=config.sasl_server_max_receive_size,
        failure_delay_s=config.connection_failed_authentication_delay_ms / 1000,
        clock=core.clock,
        counts=LoginCounts.of(core.metrics, listener),
    )

    def for_connection(listener: str, host: str, port: int) -> LoginRequests:
        before_login = dispatcher.for_connection(listener, host, port)

        def as_user(login: Login) -> ConnectionRequests:
            return dispatcher.for_connection(
                listener,
                host,
                principal=Principal("User", login.user),
                by_token=login.by_token,
                connection=before_login.context.connection,
            )

        return LoginRequests(rules, before_login, as_user)

    return for_connection


def _exchanges(core: Core, listener: str, mechanism: MechanismConfig) -> Callable[[], Exchange]:
    """Return a function that begins an exchange with a client; raise ConfigError."""
    if mechanism.name == OAUTHBEARER:
        from kwire.node.token_logins import token_exchanges

        return token_exchanges(core, listener, mechanism)
    scram = BY_NAME.get(mechanism.name)
    if scram is None:
        return partial(PlainServer, passwords_of(mechanism.module))
    return _scram_exchanges(core, scram)


def _scram_exchanges(core: Core, mechanism: ScramMechanism) -> Callable[[], Exchange]:
    """Return a function that begins a SCRAM exchange; the users are those in the metadata."""
    decoys, random_bytes = Decoys(core.identity.cluster_id.encode()), core.random.randbytes

    def find(user: str) -> Credential | None:
        record = core.current.image.scram.get((mechanism.number, user))
        if record is None:
            return None
        return Credential(record.salt, record.stored_key, record.server_key, record.iterations)

    find_token = _token_finder(core, mechanism)

    def begin() -> ScramServer:
        nonce = secret_text(random_bytes(NONCE_BYTES))
        return ScramServer(mechanism, find, decoys, nonce, find_token)

    return begin


def _token_finder(
    core: Core, mechanism: ScramMechanism
) -> Callable[[str], TokenCredential | None] | None:
    """Return a function that finds delegation tokens; None if the node has no token secret."""
    from kwire.configs.delegation_tokens import DelegationTokenConfig

    secret = DelegationTokenConfig(core.config.static).secret
    if not secret:
        return None
    from kwire.node.delegation_tokens import TokenCredentials

    tokens = TokenCredentials(
        mechanism=mechanism,
        secret=secret,
        records=lambda: core.current.image.tokens,
        now_ms=core.clock.now_ms,
        random_bytes=core.random.randbytes,
    )
    return tokens.find
