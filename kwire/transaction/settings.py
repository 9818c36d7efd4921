"""The settings of transactions, under Kafka's names."""

from typing import TYPE_CHECKING

import attrs

if TYPE_CHECKING:
    from kwire.configs.broker import BrokerConfig


@attrs.frozen(kw_only=True, eq=False, repr=False)
class TransactionSettings:
    """The settings of transactions, from the broker's configuration; the defaults are Kafka's."""

    max_timeout_ms: int = 900_000
    expiration_ms: int = 604_800_000
    abort_check_ms: int = 10_000
    expiry_check_ms: int = 3_600_000
    """The interval at which expired transactional ids are removed."""
    commit_timeout_ms: int = 30_000
    """The longest wait for the replicas of `__transaction_state` (`request.timeout.ms`)."""
    concurrent_wait_ms: int = 100
    """The longest time that a new transaction waits for the markers of the previous one."""

    @classmethod
    def of(cls, config: "BrokerConfig") -> "TransactionSettings":
        """Return the settings from the broker's configuration."""
        return cls(
            commit_timeout_ms=config.request_timeout_ms,
            max_timeout_ms=config.transaction_max_timeout_ms,
            expiration_ms=config.transactional_id_expiration_ms,
            abort_check_ms=config.transaction_abort_timed_out_transaction_cleanup_interval_ms,
            expiry_check_ms=config.transaction_remove_expired_transaction_cleanup_interval_ms,
        )
