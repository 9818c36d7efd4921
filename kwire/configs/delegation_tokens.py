"""The settings of delegation tokens (KIP-48); loaded when a node or a request needs them.

Tokens work if the secret key is set, to the same value on every broker and controller.
"""

from kwire.configs.declare import Config, Kind, long, optional_string


class DelegationTokenConfig(Config):
    """The settings of delegation tokens."""

    delegation_token_expiry_check_interval_ms = long(
        3_600_000, "How often the active controller removes expired delegation tokens.", low=1
    )
    delegation_token_expiry_time_ms = long(
        86_400_000, "How long a delegation token is valid before it has to be renewed.", low=1
    )
    delegation_token_max_lifetime_ms = long(
        604_800_000, "How long a delegation token can be renewed.", low=1
    )
    delegation_token_secret_key = optional_string(
        "The secret from which the passwords of delegation tokens are made; the same on all nodes.",
        kind=Kind.PASSWORD,
    )

    @property
    def secret(self) -> bytes:
        """The secret key; empty if there are no delegation tokens."""
        return (self.delegation_token_secret_key or "").encode()
