"""The TLS of a node: of its own listeners, and of its connections to other nodes.

The modules for encryption are loaded only on a node with an encrypted listener.
"""

import logging
from collections.abc import Collection, Mapping
from typing import TYPE_CHECKING

import attrs

from kwire.clock import NodeClock
from kwire.configs.broker import BrokerConfig
from kwire.configs.declare import ConfigError
from kwire.configs.listeners import has_tls
from kwire.metrics import Metrics

if TYPE_CHECKING:
    from collections.abc import Callable

    from kwire.configs.tls import TlsConfig
    from kwire.net.tls.client_tls import ClientTls
    from kwire.net.tls.server_tls import ServerTls

logger = logging.getLogger(__name__)


@attrs.frozen(kw_only=True, eq=False, repr=False)
class NodeTls:
    """The certificates of a node, for encrypted listeners and connections."""

    listeners: "Mapping[str, ServerTls]" = attrs.field(factory=dict)
    """The TLS of this node's listeners, by their names."""
    to_controllers: "ClientTls | None" = None
    to_brokers: "ClientTls | None" = None

    def configure(self, config: BrokerConfig) -> None:
        """Apply changed settings of certificates, and read their files again."""
        for name, tls in self.listeners.items():
            _configure(config, name, tls.certificates.configure)
        if self.to_controllers is not None:
            _configure(
                config, controller_listener(config), self.to_controllers.certificates.configure
            )
        if self.to_brokers is not None:
            _configure(config, config.inter_broker_listener, self.to_brokers.certificates.configure)

    async def check(self, config: BrokerConfig, names: Collection[str]) -> None:
        """Raise ConfigError if a listener could not use the changed settings.

        ``config`` has the changed settings, ``names`` are their names. Reads the files that the
        settings name, even if their values are the same as before.
        """
        from kwire.configs.listener_tls import listener_tls
        from kwire.configs.listeners import listener_prefix

        for listener, tls in self.listeners.items():
            start = f"{listener_prefix(listener)}ssl."
            if not any(name.startswith(start) for name in names):
                continue
            settings = listener_tls(config, listener)
            server = await tls.certificates.examine(settings)
            for peers, name in (
                (self.to_brokers, config.inter_broker_listener),
                (self.to_controllers, controller_listener(config)),
            ):
                if peers is not None and name == listener:
                    old, now_ms = tls.certificates.current, tls.clock.now_ms()
                    await peers.check_replacement(settings, old, server, now_ms)


def _configure(
    config: BrokerConfig, listener: str, configure: "Callable[[TlsConfig], None]"
) -> None:
    from kwire.configs.listener_tls import listener_tls

    try:
        configure(listener_tls(config, listener))
    except ConfigError as error:
        logger.error("settings of certificates ignored listener=%s reason=%s", listener, error)


def controller_listener(config: BrokerConfig) -> str:
    """Return the listener for connections to controllers: the first one named."""
    return config.controller_listener_names[0].upper() if config.controller_listener_names else ""


def open_node_tls(config: BrokerConfig, metrics: Metrics, clock: NodeClock) -> NodeTls:
    """Read the certificates of a node; raise ConfigError if any are unusable."""
    names = [endpoint.name for endpoint in config.endpoints if has_tls(endpoint.protocol)]
    controllers, brokers = controller_listener(config), config.inter_broker_listener
    others = {
        name
        for name in (controllers, brokers)
        if has_tls(config.protocols.get(name, "")) and (name == controllers or config.is_broker)
    }
    if not names and not others:
        return NodeTls()
    from kwire.configs.listener_tls import listener_tls
    from kwire.net.tls.client_tls import open_client_tls
    from kwire.net.tls.server_tls import open_tls

    settings = {name: listener_tls(config, name) for name in {*names, *others}}
    clients = {name: open_client_tls(name, settings[name], clock.now) for name in others}
    return NodeTls(
        listeners={name: open_tls(name, settings[name], clock, metrics) for name in names},
        to_controllers=clients.get(controllers),
        to_brokers=clients.get(brokers),
    )
