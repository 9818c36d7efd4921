"""The log-ins of the clients of a node's listeners; loaded only if one has SASL."""

from collections.abc import Callable
from functools import partial

from kwire.configs.sasl import MechanismConfig, mechanisms_of
from kwire.configs.security import SecurityConfig
from kwire.handlers.dispatch import Dispatcher
from kwire.handlers.shared.context import Principal
from kwire.net.listener import ConnectionRequests, ForConnection
from kwire.net.log_in import LoginCounts, LoginRequests, LoginRules
from kwire.node.core import Core
from kwire.security.conversation import Mechanism
from kwire.security.exchange import Exchange
from kwire.security.plain import PlainServer, passwords_of


def with_logins(core: Core, listener: str, dispatcher: Dispatcher) -> ForConnection:
    """Return what a listener does with a new connection: its client must log in."""
    properties = core.config.static
    config = SecurityConfig.of_listener(properties, listener)
    rules = LoginRules(
        mechanisms={
            mechanism.name: Mechanism(
                begin=_exchanges(mechanism), lifetime_ms=mechanism.lifetime_ms
            )
            for mechanism in mechanisms_of(properties, listener)
        },
        max_frame_bytes=config.sasl_server_max_receive_size,
        failure_delay_s=config.connection_failed_authentication_delay_ms / 1000,
        clock=core.clock,
        counts=LoginCounts.of(core.metrics, listener),
    )

    def for_connection(listener: str, host: str) -> LoginRequests:
        def as_user(user: str) -> ConnectionRequests:
            return dispatcher.for_connection(listener, host, Principal("User", user))

        return LoginRequests(rules, dispatcher.for_connection(listener, host), as_user)

    return for_connection


def _exchanges(mechanism: MechanismConfig) -> Callable[[], Exchange]:
    """Return a function that begins an exchange with a client."""
    return partial(PlainServer, passwords_of(mechanism.module))
