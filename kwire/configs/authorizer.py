"""The settings of the authorizer, which DescribeConfigs hides, as in Kafka.

Kafka passes them to a plugin without interpreting them.
"""

from typing import Final

from kwire.configs.broker import BrokerConfig
from kwire.configs.declare import Config, ConfigError, Key, boolean, string

STANDARD_AUTHORIZER: Final = "org.apache.kafka.metadata.authorizer.StandardAuthorizer"
"""The only class that ``authorizer.class.name`` may name."""


def _check_users(text: str) -> str | None:
    for user in _split(text):
        if ":" not in user:
            return f"expected a string in format principalType:principalName but got {user}"
    return None


def _split(text: str) -> list[str]:
    return [user.strip() for user in text.split(";") if user.strip()]


class AuthorizerConfig(Config):
    """The settings of Kafka's StandardAuthorizer."""

    super_users = string(
        "",
        "Principals that may do everything, such as User:admin;User:broker, despite all ACLs.",
        check=_check_users,
    )
    allow_everyone_if_no_acl_found = boolean(
        False, "Whether everyone may do everything with a resource that no ACL covers."
    )

    @property
    def users(self) -> frozenset[tuple[str, str]]:
        """The super users, by kind and name."""
        parts = (user.partition(":") for user in _split(self.super_users))
        return frozenset((kind, name) for kind, _, name in parts)


def authorizer_key(name: str) -> Key[object] | None:
    """Return a setting of the authorizer; None if it has no setting of this name."""
    return AuthorizerConfig.keys().get(name)


def authorizer_config(config: BrokerConfig) -> AuthorizerConfig | None:
    """Return the settings of a node's authorizer; None for a node without one."""
    return AuthorizerConfig(config.static) if config.authorizer_class_name else None


def early_listeners(config: BrokerConfig) -> frozenset[str]:
    """Return the listeners that serve before the ACLs are loaded: by default the controllers'."""
    names = config.early_start_listeners
    if names is None or not config.authorizer_class_name:
        names = config.controller_listener_names
    return frozenset(name.upper() for name in names)


def check_authorizer(config: BrokerConfig) -> None:
    """Reject an authorizer that kwire does not have, and early listeners that do not exist."""
    name = config.authorizer_class_name
    if name not in ("", STANDARD_AUTHORIZER):
        raise ConfigError(
            f"kwire does not support authorizer.class.name={name}; set it to "
            f"{STANDARD_AUTHORIZER}, or remove it and let only trusted networks reach the node"
        )
    listeners = {endpoint.name for endpoint in config.endpoints}
    listeners.update(name.upper() for name in config.controller_listener_names)
    for listener in config.early_start_listeners or ():
        if listener.upper() not in listeners:
            raise ConfigError(
                f"early.start.listeners contains listener {listener}, but this is not contained "
                "in listeners or controller.listener.names; it may name "
                f"{', '.join(sorted(listeners))}"
            )
